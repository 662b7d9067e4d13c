"""Tasks that need no network: a small layer in NumPy, whose accuracy is a function of what is kept.

Worker processes build them from `toys:Layer`, as they would a user's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from evoprune.errors import ScoringError
from evoprune.expression.text import parse
from evoprune.scoring import reference

SITES = ("first", "second")

ENDS = {
    "die once": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit once": lambda: os._exit(0),
    "crash once": lambda: os.kill(os.getpid(), signal.SIGSEGV),
}
"""How a process ends without an exception, the first time."""

CHANNELS, KEPT = 6, 3


@dataclass(frozen=True)
class Kept:
    channels: dict[str, tuple[int, ...]]
    constant: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    accuracy: float


@dataclass
class Layer:
    """Two sites of six channels. Every evaluation leaves a line in `calls.txt`.

    `trouble` happens on the evaluations whose number (in a fixed order of kept channels) is a multiple of
    `every`: see `_trouble`.
    """

    folder: Path
    seed: int = 0
    trouble: str = ""
    every: int = 3
    seconds: float = 0.0

    @cached_property
    def sites(self) -> dict[str, dict[str, np.ndarray]]:
        rng = np.random.default_rng(self.seed)
        return {
            site: {
                "maps": np.maximum(rng.normal(size=(10, CHANNELS, 4)), 0),
                "filters": rng.normal(size=(CHANNELS, 5)),
                "norms": rng.normal(size=(CHANNELS, 4)),
                "quality": rng.random(CHANNELS),
            }
            for site in SITES
        }

    @property
    def spec(self) -> dict[str, object]:
        return {"seed": self.seed}

    def base(self) -> Judged:
        (self.folder / "base.txt").write_text("trained\n")
        return Judged(0.95)

    def kept(self, function: str) -> Kept:
        channels, constant = {}, []
        for site, layer in self.sites.items():
            classes = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2])
            scores = reference.score(
                parse(function), layer["maps"], (2, 2), classes, layer["filters"], layer["norms"]
            )
            if not np.isfinite(scores).all():
                raise ScoringError(f"scores at {site} are not finite")
            if np.ptp(scores) < 1e-9:
                constant.append(site)
                scores = np.zeros(CHANNELS)
            channels[site] = tuple(sorted(np.argsort(-scores, kind="stable")[:KEPT].tolist()))
        return Kept(channels, tuple(constant))

    def evaluate(self, kept: Kept, seed: int) -> Judged:
        with (self.folder / "calls.txt").open("a") as file:
            file.write(call(self.folder.name, dict(kept.channels), seed) + "\n")
        if self.seconds:
            time.sleep(self.seconds)
        number = sum(channel << (3 * i) for i, channel in enumerate(sum(kept.channels.values(), ())))
        if self.trouble and number % self.every == 0:
            self._trouble(number)
        good = [
            self.sites[site]["quality"][list(channels)].mean() for site, channels in kept.channels.items()
        ]
        return Judged(float(0.3 + 0.6 * np.mean(good) + 1e-3 * (seed % 7) / 7))

    def _trouble(self, number: int) -> None:
        if self.trouble == "raise":
            raise ZeroDivisionError(f"the toy breaks on {number}")
        if self.trouble == "hang":
            if pipe := os.environ.get("TOY_PIPE"):
                os.write(os.open(pipe, os.O_WRONLY), b"hanging\n")  # held open as long as this lives
            time.sleep(3600)
        if self.trouble == "wait" and (pipe := os.environ.get("TOY_PIPE")):
            with Path(pipe).open() as waiting:
                waiting.read()
        if self.trouble == "stall once":
            mark = self.folder / f"stalled-{number}"
            if mark.exists():
                return
            mark.touch()
            with Path(os.environ["TOY_PIPE"]).open("w") as pipe:
                pipe.write(f"{slurm_job()} {os.getpid()}\n")
            while True:
                signal.pause()
        if self.trouble == "deaf":  # in C, holding the interpreter's lock, and no signal gets through
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            ctypes.PyDLL(None).pause()
        if self.trouble == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.trouble == "leave a child":  # that holds open whatever its parent had open
            if os.fork() == 0:
                os.write(os.open(os.environ["TOY_PIPE"], os.O_WRONLY), b"child\n")
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble in ENDS:
            mark = self.folder / f"died-{number}"
            if mark.exists():
                return
            mark.touch()
            ENDS[self.trouble]()
        if self.trouble == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == "crash":
            os.abort()
        if self.trouble == "stop":
            raise GeneratorExit("the toy stops everything")
        if self.trouble == "disk full":
            raise OSError(28, "No space left on device")
        if self.trouble == "disk full until" and not (self.folder / "space").exists():
            raise OSError(28, "No space left on device")
        if self.trouble == "exit":
            raise SystemExit("the toy exits")


def slurm_job() -> str:
    """The job that this process runs in; of an array, what every command of SLURM understands."""
    array, index = (os.environ.get(f"SLURM_ARRAY_{what}_ID") for what in ("JOB", "TASK"))
    return f"{array}_{index}" if array else os.environ["SLURM_JOB_ID"]


def call(task: str, channels: dict[str, object], seed: int) -> str:
    """An evaluation as a line."""
    return json.dumps([task, channels, seed], sort_keys=True)


def calls(folder: Path) -> list[str]:
    """The evaluations that were begun, over all toy tasks of a run."""
    return [
        line for file in sorted(folder.glob("tasks/*/calls.txt")) for line in file.read_text().splitlines()
    ]


def nan_task(folder: Path) -> object:
    """A task whose accuracy is not a number."""

    class Nan(Layer):
        def evaluate(self, kept: Kept, seed: int) -> Judged:
            return Judged(float("nan"))

    return Nan(folder)


def last_words(folder: Path) -> object:
    """A task that takes its worker down with it."""
    print("these are my last words", flush=True)
    os._exit(3)


def environment(folder: Path) -> object:
    """A task whose kept channels tell how many threads it was given, and which GPU."""

    class Environment(Layer):
        def kept(self, function: str) -> Kept:
            numbers = {name: os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
            return Kept({name: (int(value),) for name, value in numbers.items() if value}, ())

    return Environment(folder)


def surroundings(**more: str) -> dict[str, str]:
    """The environment for a driver in another process, which finds these tasks."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more
