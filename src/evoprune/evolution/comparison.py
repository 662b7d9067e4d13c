"""The best function of a run beside the hand-made ones, on the tasks that it was bred on."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evoprune.evolution.hall_of_fame import percent


@dataclass(frozen=True)
class Row:
    """A function, its fitness, and its accuracies on the validation images of the tasks."""

    name: str
    function: str
    fitness: float
    accuracies: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """Functions, the fittest first; and how the best did before tasks that had no part in its fitness."""

    rows: tuple[Row, ...]
    tasks: tuple[str, ...]
    verdicts: Mapping[str, float | None]

    @classmethod
    def of(
        cls, rows: Sequence[Row], tasks: Sequence[str], verdicts: Mapping[str, float | None]
    ) -> Comparison:
        """The rows sorted; of equals the one given first."""
        return cls(tuple(sorted(rows, key=lambda row: -row.fitness)), tuple(tasks), verdicts)

    def text(self) -> str:
        """For people."""
        width = max(len(row.name) for row in self.rows)
        columns = {task: max(8, len(task)) for task in self.tasks}
        head = f"{'function':<{width}}  {'fitness':>8}" + "".join(f"  {t:>{w}}" for t, w in columns.items())
        lines = [head]
        for row in self.rows:
            each = "".join(f"  {percent(row.accuracies.get(t)):>{w}}" for t, w in columns.items())
            lines.append(f"{row.name:<{width}}  {percent(row.fitness):>8}{each}")
        lines += [f"the best, judged on {task}: {percent(a)}" for task, a in self.verdicts.items()]
        return "\n".join(lines)

    def csv(self) -> str:
        """For programs."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["name", "fitness", *(f"accuracy {task}" for task in self.tasks), "function"])
        for row in self.rows:
            each = [repr(row.accuracies[task]) if task in row.accuracies else "" for task in self.tasks]
            writer.writerow([row.name, repr(row.fitness), *each, row.function])
        for task, accuracy in self.verdicts.items():
            writer.writerow([f"the best on {task}", repr(accuracy), *("" for _ in self.tasks), ""])
        return out.getvalue()
