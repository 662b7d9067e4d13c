"""Functions against each other: the same shapes and the same recipe for all, paired by seed."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from evoprune.errors import ConfigError
from evoprune.tasks.importances import check_method
from evoprune.tasks.paired import holm, paired_p
from evoprune.tasks.results import Kept, On, Result, aligned
from evoprune.tasks.training import Watcher

if TYPE_CHECKING:
    from evoprune.tasks.task import Task

ALWAYS = ("mean_activation", "random")


@dataclass(frozen=True)
class Item:
    """One function with one seed."""

    function: str
    seed: int
    kept: Kept
    result: Result


@dataclass(frozen=True)
class Row:
    """One function over all seeds: shares of the images, and deviations over the seeds (0 for one seed).

    `difference` is to the reference, the first function, over pairs of the same seed; `p` is corrected by
    Holm for the number of functions compared with it. Both are None for the reference, `p` also where
    there is nothing to test.
    """

    function: str
    cut: float
    cut_deviation: float
    accuracy: float
    deviation: float
    difference: float | None
    p: float | None
    constant: int


@dataclass(frozen=True)
class Comparison:
    """All results, and a row for each function, the best first."""

    task: str
    on: On
    seeds: tuple[int, ...]
    items: tuple[Item, ...]
    rows: tuple[Row, ...]
    reference: str

    def __str__(self) -> str:
        header = [
            "function",
            "right after the cut (%)",
            "after retraining (%)",
            f"Δ to {self.reference}",
            "p (Holm)",
        ]
        rows = [
            [
                row.function,
                _with_deviation(row.cut, row.cut_deviation, len(self.seeds)),
                _with_deviation(row.accuracy, row.deviation, len(self.seeds)),
                "" if row.difference is None else f"{row.difference * 100:+.2f}",
                "" if row.difference is None else "–" if row.p is None else f"{row.p:.3f}",
            ]
            for row in self.rows
        ]
        result = self.items[0].result
        pruned = 1 - result.macs / result.macs_base, 1 - result.parameters / result.parameters_base
        lines = [
            f"{self.task}: accuracy on {result.images:,} {self.on} images, base {result.accuracy_base:.2%}; "
            f"{pruned[0]:.1%} of FLOPs and {pruned[1]:.1%} of parameters pruned; "
            f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}",
            "",
            aligned(header, rows),
        ]
        if any(row.difference is not None and row.p is None for row in self.rows):
            lines += [
                "",
                "–: nothing to test; that takes two seeds or more whose differences are not all equal",
            ]
        if constant := [row for row in self.rows if row.constant]:
            told = ", ".join(f"{row.function} at {row.constant}" for row in constant)
            lines += ["", f"cut by index, as the function scores all channels of a site alike: {told} sites"]
        return "\n".join(lines)

    def csv(self) -> str:
        """The rows, as CSV; accuracies are shares."""
        header = (
            "function,accuracy_cut,accuracy_cut_deviation,accuracy,accuracy_deviation,"
            "difference,p_holm,seeds,constant_sites"
        )
        rows = [
            [
                row.function, row.cut, row.cut_deviation, row.accuracy, row.deviation,
                row.difference, row.p, len(self.seeds), row.constant,
            ]
            for row in self.rows
        ]  # fmt: skip
        return _csv(header.split(","), rows)

    def items_csv(self) -> str:
        """Every single result, as CSV."""
        names = [name for name in self.items[0].result.table() if name != "seed"]
        rows = [
            [item.function, item.seed, item.kept.key, *(item.result.table()[name] for name in names)]
            for item in self.items
        ]
        return _csv(["function", "seed", "kept", *names], rows)


def compare(
    task: Task,
    functions: Sequence[str],
    seeds: Sequence[int],
    *,
    on: On = "test",
    watch: Callable[[str], Watcher | None] = lambda title: None,
) -> Comparison:
    """Judge functions on a task, each with every seed; `mean_activation` and `random` are always among them.

    The first function is the one that the others are compared with. `watch` gives the watcher of a training
    by its title. Where the task has a folder, what was done is found there and not done again.
    """
    if not functions or not seeds:
        raise ConfigError("a comparison needs at least one function and one seed")
    if task.settings.cut.scope == "global":
        raise ConfigError(
            "functions are compared with the same number of channels at every site, but with "
            "scope = 'global' each function has its own; set cut.scope = 'site'"
        )
    names = list(dict.fromkeys([*functions, *ALWAYS]))
    for name in names:
        check_method(name)
    items = []
    # All functions with one seed before the next, so that an early stop leaves whole pairs.
    for seed in seeds:
        for name in names:
            kept = task.kept(name, seed=seed)
            watcher = watch(f"{name}, seed {seed}")
            items.append(Item(name, seed, kept, task.evaluate(kept, seed, on=on, watcher=watcher)))
    return Comparison(task.name, on, tuple(seeds), tuple(items), _rows(names, items), names[0])


def _rows(names: Sequence[str], items: Sequence[Item]) -> tuple[Row, ...]:
    by_name = {name: [item.result for item in items if item.function == name] for name in names}
    reference = [result.accuracy for result in by_name[names[0]]]
    differences = {
        name: [result.accuracy - other for result, other in zip(by_name[name], reference, strict=True)]
        for name in names[1:]
    }
    corrected = holm({name: paired_p(values) for name, values in differences.items()})
    rows = []
    for name in names:
        cut = [result.accuracy_cut for result in by_name[name]]
        after = [result.accuracy for result in by_name[name]]
        rows.append(
            Row(
                name,
                fmean(cut),
                _deviation(cut),
                fmean(after),
                _deviation(after),
                fmean(differences[name]) if name in differences else None,
                corrected.get(name),
                max(len(item.kept.constant) for item in items if item.function == name),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.accuracy))


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _with_deviation(mean: float, deviation: float, seeds: int) -> str:
    return f"{mean * 100:.2f} ± {deviation * 100:.2f}" if seeds > 1 else f"{mean * 100:.2f}"


def _csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
