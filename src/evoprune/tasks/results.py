"""What comes out of a task: the channels a function keeps, and what the pruned network then achieves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from torch import Tensor

from evoprune.errors import SavedFileError

On = Literal["validation", "test"]


@dataclass(frozen=True)
class Kept:
    """Which channels stay, in ascending order, by site.

    `constant` names the sites at which the function scored all channels alike, so that the cut there goes by
    index; `sampled` says that it was evaluated on a sample of the scoring images. `scores` are `[channel]`
    by site.
    """

    channels: Mapping[str, tuple[int, ...]]
    constant: tuple[str, ...] = ()
    sampled: bool = False
    scores: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def key(self) -> str:
        """The same for the same channels, whichever function keeps them."""
        return channels_key(self.channels)

    @property
    def counts(self) -> dict[str, int]:
        return {site: len(channels) for site, channels in self.channels.items()}


def channels_key(channels: Mapping[str, Sequence[int]]) -> str:
    """A hash of which channels are kept where."""
    plain = {site: [int(channel) for channel in kept] for site, kept in channels.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """A pruned network, judged after retraining on one split, beside its base network.

    Accuracies are shares of the split's images; `*_cut` is right after the cut, before any retraining. Costs
    are multiply-accumulates for one image, and parameters.
    """

    on: On
    seed: int
    accuracy: float
    top5: float
    accuracy_cut: float
    top5_cut: float
    accuracy_base: float
    top5_base: float
    images: int
    macs: int
    macs_base: int
    parameters: int
    parameters_base: int
    epochs: int
    loss: float | None
    """The training loss of the last epoch."""

    def table(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, table: Mapping[str, Any], where: object = "a result") -> Result:
        """What `table` wrote."""
        try:
            return cls(**{each.name: table[each.name] for each in fields(cls)})
        except KeyError as error:
            raise SavedFileError(f"{where} has no {error}; remove it to have it made anew") from None


def paper_row(network: str, method: str, result: Result, *, top5: bool, retrained: bool) -> str:
    """The paper's table row: accuracy before → after, the drop, FLOPs and parameters with what is pruned."""
    pairs = [("Acc", result.accuracy_base, result.accuracy if retrained else result.accuracy_cut)]
    if top5:
        pairs = [("Top-1", pairs[0][1], pairs[0][2])]
        pairs.append(("Top-5", result.top5_base, result.top5 if retrained else result.top5_cut))
    cells = [("Network", network), ("Method", method)]
    split = result.on.capitalize()
    for name, before, after in pairs:
        cells.append((f"{split} {name} (%)", f"{before * 100:.2f} → {after * 100:.2f}"))
        cells.append((f"{name} ↓ (%)", f"{(before - after) * 100:.2f}"))
    for name, after, before in (
        ("FLOPs", result.macs, result.macs_base),
        ("Parameters", result.parameters, result.parameters_base),
    ):
        cells += [(name, short(after)), ("Pruned (%)", f"{(1 - after / before) * 100:.1f}")]
    return aligned([name for name, _ in cells], [[value for _, value in cells]])


def short(count: int) -> str:
    """A large number as the paper writes it: 172M, 1.46M, 431k."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            value = count / size
            return (
                f"{value:.2f}{unit}"
                if value < 10
                else f"{value:.1f}{unit}"
                if value < 100
                else f"{value:.0f}{unit}"
            )
    return str(count)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table with its columns aligned, numbers to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell[:1] in "-+–0123456789." for cell in column[1:] if cell) for column in columns]

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(header), "  ".join("─" * width for width in widths), *map(line, rows)])
