"""The best functions of a run: the fittest, and the fittest of every size."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evoprune.evolution.ledger import Judged

SHOWN = 10
"""How many of the fittest are listed."""


@dataclass(frozen=True)
class HallOfFame:
    """Distinct functions, the better first; of equals the smaller, then the earlier."""

    fittest: tuple[Judged, ...]
    of_sizes: tuple[Judged, ...]
    """The fittest of each size, the smaller first."""

    @classmethod
    def of(cls, judged: Iterable[Judged]) -> HallOfFame:
        """The hall of fame of those who were judged."""
        distinct: dict[bytes, Judged] = {}
        for each in sorted(judged, key=lambda each: each.order):
            distinct.setdefault(each.individual.expr.canonical_key, each)
        sizes: dict[int, Judged] = {}
        for each in distinct.values():
            sizes.setdefault(each.individual.expr.size, each)
        return cls(tuple(distinct.values())[:SHOWN], tuple(sizes[size] for size in sorted(sizes)))

    def joined_by(self, judged: Iterable[Judged]) -> HallOfFame:
        """As if these had been judged, too."""
        return HallOfFame.of((*self.fittest, *self.of_sizes, *judged))

    def text(self, tasks: Sequence[str]) -> str:
        """For people."""
        lines = ["The fittest", *_rows(self.fittest, tasks), "", "The fittest of every size"]
        return "\n".join([*lines, *_rows(self.of_sizes, tasks)]) + "\n"

    def csv(self, tasks: Sequence[str]) -> str:
        """For programs."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        of_tasks = [f"accuracy {task}" for task in tasks]
        of_one = ["size", "depth", "generation", "index", "origin", "function"]
        writer.writerow(["list", "rank", "fitness", *of_tasks, *of_one])
        for name, members in (("fittest", self.fittest), ("of size", self.of_sizes)):
            for rank, each in enumerate(members, start=1):
                one = each.individual
                on_tasks = [repr(each.accuracies[t]) if t in each.accuracies else "" for t in tasks]
                place = [one.expr.size, one.expr.depth, one.generation, one.index, one.origin]
                writer.writerow([name, rank, repr(each.fitness), *on_tasks, *place, str(one.expr)])
        return out.getvalue()


def _rows(members: Sequence[Judged], tasks: Sequence[str]) -> list[str]:
    head = (
        f"{'fitness':>8}  " + "".join(f"{task:>{max(8, len(task))}}  " for task in tasks) + "size  function"
    )
    rows = []
    for each in members:
        accuracies = "".join(f"{percent(each.accuracies.get(task)):>{max(8, len(task))}}  " for task in tasks)
        one = each.individual
        rows.append(f"{percent(each.fitness):>8}  {accuracies}{one.expr.size:>4}  {one.expr}")
    return [head, *rows]


def percent(share: float | None) -> str:
    """A share of 1 in percent."""
    return "failed" if share is None else f"{100 * share:.2f}"
