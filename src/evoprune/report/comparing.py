"""Comparisons that `evoprune compare` wrote → accuracy against FLOPs, a line for each function."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from evoprune.errors import SavedFileError
from evoprune.report.figures import COLOURS, GREY, legend, plain, plane

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ITEMS = "items.csv"
_MARKS = "os^Dvp*X"


@dataclass(frozen=True)
class Point:
    """One function at one cost, over the seeds: shares of the images, of the base's FLOPs, and seeds."""

    flops: float
    accuracy: float
    deviation: float
    seeds: int


@dataclass(frozen=True)
class Item:
    """A row of `items.csv`: one function retrained with one seed."""

    function: str
    seed: str
    on: str
    accuracy: float
    accuracy_base: float
    flops: float
    """The share of the base's that is left."""
    macs_base: float


@dataclass(frozen=True)
class Curves:
    """By function its points, the cheapest first; and the network before any cut."""

    of: dict[str, tuple[Point, ...]]
    on: str
    base: float


def curves(folders: Sequence[Path]) -> Curves:
    """What the comparisons in some folders say together; they must be of one network and one split."""
    results: dict[tuple[str, float], dict[str, float]] = {}
    bases: set[tuple[str, float, float]] = set()
    for folder in folders:
        for item in _items(folder):
            bases.add((item.on, item.macs_base, item.accuracy_base))
            # The same function, cost and seed in two folders is one result.
            results.setdefault((item.function, item.flops), {})[item.seed] = item.accuracy
    if len(bases) != 1:
        told = "; ".join(
            f"{on}, {macs:.0f} multiply-accumulates, {accuracy:.2%}" for on, macs, accuracy in sorted(bases)
        )
        raise SavedFileError(
            f"comparisons of one network on one split can be drawn together, these have: {told or 'no rows'}"
        )
    ((on, _, base_accuracy),) = bases
    found: dict[str, list[Point]] = {}
    for (function, flops), by_seed in sorted(results.items(), key=lambda item: item[0][1]):
        values = list(by_seed.values())
        deviation = stdev(values) if len(values) > 1 else 0.0
        found.setdefault(function, []).append(Point(flops, fmean(values), deviation, len(values)))
    ordered = sorted(found.items(), key=lambda item: -item[1][0].accuracy)
    return Curves({name: tuple(points) for name, points in ordered}, on, base_accuracy)


def figure(found: Curves) -> Figure:
    """Accuracy against FLOPs; the bars are a standard deviation over the seeds up and down."""
    drawn, axes = plane(6.2, 4.0)
    costs = {point.flops for points in found.of.values() for point in points}
    axes.axhline(100 * found.base, color=GREY, linewidth=1, linestyle="--", label="not pruned")
    for number, (name, points) in enumerate(found.of.items()):
        # At a single cost, bars beside each other instead of over each other.
        aside = number - (len(found.of) - 1) / 2 if len(costs) == 1 else 0.0
        axes.errorbar(
            [100 * point.flops + aside for point in points],
            [100 * point.accuracy for point in points],
            yerr=[100 * point.deviation for point in points],
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKS[number % len(_MARKS)],
            linestyle="-" if number < len(COLOURS) else "--",
            markersize=5,
            linewidth=1.4,
            capsize=3,
            label=plain(name if len(name) <= 40 else f"{name[:39]}…"),
        )
    if len(costs) == 1:
        at = 100 * costs.pop()
        axes.set_xticks([at], [f"{at:.1f}"])
    axes.set(xlabel="FLOPs left (%)", ylabel=f"accuracy on {found.on} (%)")
    legend(drawn, loc="outside right upper")
    return drawn


def _items(folder: Path) -> list[Item]:
    path = folder / ITEMS if folder.is_dir() else folder
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise SavedFileError(
            f"{path} cannot be read ({reason}); give folders that `evoprune compare --output` wrote"
        ) from None
    texts, numbers = ("function", "seed", "on"), ("accuracy", "accuracy_base", "macs", "macs_base")
    missing = [name for name in (*texts, *numbers) if rows and name not in rows[0]]
    if missing:
        raise SavedFileError(
            f"{path} has no columns {', '.join(missing)}; expected {ITEMS} of evoprune compare"
        )
    items = []
    for line, row in enumerate(rows, start=2):
        try:
            accuracy, base, macs, macs_base = (float(row[name]) for name in numbers)
            item = Item(row["function"], row["seed"], row["on"], accuracy, base, macs / macs_base, macs_base)
        except (TypeError, ValueError, ZeroDivisionError):  # too few fields, or words
            item = None
        if item is None or not isfinite(item.flops + item.accuracy):
            raise SavedFileError(f"{path}, line {line} is not as evoprune compare writes it: {row}")
        items.append(item)
    return items
