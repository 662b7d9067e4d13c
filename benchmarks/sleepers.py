"""A task whose evaluations take time and nothing else: for benchmarks of what surrounds evaluations."""

from __future__ import annotations

import time
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

SITES, CHANNELS = 4, 256


class Kept(NamedTuple):
    channels: dict[str, tuple[int, ...]]
    constant: tuple[str, ...] = ()


class Judged(NamedTuple):
    accuracy: float


class Sleeper:
    """Every function keeps channels of its own. Each evaluation leaves its beginning and its end (of the
    machine's monotonic clock) in `PROCESS.times`."""

    def __init__(self, folder: Path, shortest: float, longest: float) -> None:
        self.folder = folder
        self.shortest = shortest
        self.longest = longest

    def base(self) -> None:
        """There is none."""

    def kept(self, function: str) -> Kept:
        return Kept(
            {
                f"site {i}": (each,)
                for i, each in enumerate(blake2b(function.encode(), digest_size=SITES).digest())
            }
        )

    def evaluate(self, kept: Kept, seed: int) -> Judged:
        begun = time.monotonic()
        time.sleep(self.seconds(kept.channels))
        with (self.folder / f"{id(self)}-{begun}.times").open("w") as file:
            file.write(f"{begun} {time.monotonic()}\n")
        return Judged(self._share(kept.channels, "accuracy"))

    def seconds(self, channels: dict[str, tuple[int, ...]]) -> float:
        """How long the evaluation of these channels takes."""
        return self.shortest + (self.longest - self.shortest) * self._share(channels, "seconds")

    def _share(self, channels: dict[str, tuple[int, ...]], what: str) -> float:
        """A number from 0 to 1 that looks drawn at random."""
        text = repr((what, sorted((site, tuple(kept)) for site, kept in channels.items())))
        return int.from_bytes(blake2b(text.encode(), digest_size=4).digest()) / 2**32
