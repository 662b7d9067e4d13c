"""What is told of a run, as plain data: every chart and table is drawn from these."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from evoprune.errors import RunError
from evoprune.evolution.comparison import Comparison, Row
from evoprune.evolution.hall_of_fame import HallOfFame
from evoprune.evolution.ledger import Individual, Judged, Place
from evoprune.evolution.selection import combined
from evoprune.expression.library import SOAP, functions
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERANDS, OPERATORS
from evoprune.report.reading import RunView

TOP = 0.25
"""The share of a generation that is at least as fit as the second curve of the progress."""

ANCESTORS = 150
"""How many ancestors are told of at most."""

SOAP_ORIGIN = "SOAP"


@dataclass(frozen=True)
class Progress:
    """Per generation: the fittest so far, and the fitness that a quarter of it reaches."""

    generations: tuple[int, ...]
    best: tuple[float, ...]
    top: tuple[float, ...]


def progress(run: RunView) -> Progress:
    """The curves of the progress; the last generation may be judged in part only."""
    by_generation = _by_generation(run)
    best, top = [], []
    high = -math.inf
    for members in by_generation.values():
        fitness = sorted((each.fitness for each in members), reverse=True)
        high = max(high, fitness[0])
        best.append(high)
        top.append(fitness[math.ceil(TOP * len(fitness)) - 1])
    return Progress(tuple(by_generation), tuple(best), tuple(top))


def window(runs: Sequence[RunView]) -> tuple[float, float] | None:
    """From the lowest to the highest fitness of those who did not fail, with a margin; None if nobody failed.

    Failed evaluations have fitness 0: with them in sight, all others would be a line.
    """
    valid = [each.fitness for run in runs for each in run.judged if not each.error]
    if not valid or not any(each.error for run in runs for each in run.judged):
        return None
    margin = max(0.01, 0.05 * (max(valid) - min(valid)))
    return min(valid) - margin, max(valid) + margin


def origin(individual: Individual) -> str:
    """How a function came about, in one of a few words."""
    first = individual.origin.split()[0].rstrip(",") if individual.origin else ""
    if first == "soap":
        return SOAP_ORIGIN
    return "crossover + mutation" if individual.origin == "crossover, mutation" else first


def of_sizes(run: RunView) -> tuple[Judged, ...]:
    """The fittest function of every size, the smallest first; failed ones only where all have failed."""
    return HallOfFame.of([each for each in run.judged if not each.error] or run.judged).of_sizes


def front(run: RunView) -> tuple[Judged, ...]:
    """The functions that no smaller one is as fit as; the smallest first."""
    found: list[Judged] = []
    for each in of_sizes(run):
        if not found or each.fitness > found[-1].fitness:
            found.append(each)
    return tuple(found)


@dataclass(frozen=True)
class Ancestry:
    """A function's ancestors, the first generation first, itself last; edges are (parent, child)."""

    members: tuple[Individual, ...]
    edges: tuple[tuple[Place, Place], ...]
    complete: bool
    """Whether these are all; in a long run there are many, and only the nearest are told of."""


def ancestry(run: RunView, place: Place) -> Ancestry:
    """Where a function comes from. Staying unchanged from one generation to the next is no step."""
    root = _origin_of(run, place)
    members = {root: run.ledger.born[root]}
    edges: dict[tuple[Place, Place], None] = {}
    waiting = deque([root])
    complete = True
    while waiting:
        child = waiting.popleft()
        for parent in run.ledger.born[child].parents:
            first = _origin_of(run, parent)
            if first not in members and len(members) >= ANCESTORS:
                complete = False
                continue
            edges[first, child] = None
            if first not in members:
                members[first] = run.ledger.born[first]
                waiting.append(first)
    return Ancestry(tuple(members[each] for each in sorted(members)), tuple(sorted(edges)), complete)


def _origin_of(run: RunView, place: Place) -> Place:
    """Where the one at a place first came about."""
    while True:
        one = run.ledger.born[place]
        if one.origin != "selected" or len(one.parents) != 1:
            return place
        place = one.parents[0]


@dataclass(frozen=True)
class Usage:
    """The share of each generation's functions that use a name, `[name][generation]`."""

    names: tuple[str, ...]
    generations: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]


def usage(run: RunView) -> Usage:
    """Which operands and operators are in use; those never used are left out."""
    by_generation = _by_generation(run)
    counts: dict[str, dict[int, int]] = {name: defaultdict(int) for name in (*OPERANDS, *OPERATORS)}
    used: dict[Expr, frozenset[str]] = {}
    for number, members in by_generation.items():
        for each in members:
            expr = each.individual.expr
            if expr not in used:
                used[expr] = frozenset(node.name for node in expr.distinct())
            for name in used[expr]:
                counts[name][number] += 1
    names = tuple(name for name, found in counts.items() if found)
    shares = tuple(tuple(counts[name][g] / len(m) for g, m in by_generation.items()) for name in names)
    return Usage(names, tuple(by_generation), shares)


@dataclass(frozen=True)
class Diversity:
    """Per generation: shares of distinct functions and of distinct cuts, and the functions' mean size."""

    generations: tuple[int, ...]
    functions: tuple[float, ...]
    cuts: tuple[float, ...]
    size: tuple[float, ...]


def diversity(run: RunView) -> Diversity:
    """How different the members of each generation are. A cut is what is kept on all tasks together."""
    different, cuts, size = [], [], []
    by_generation = _by_generation(run)
    for members in by_generation.values():
        keys = [each.individual.expr.canonical_key for each in members]
        kept = {
            tuple(run.ledger.scores[task, key].kept for task in run.tasks if (task, key) in run.ledger.scores)
            for key in keys
        }
        different.append(len(set(keys)) / len(members))
        cuts.append(len(kept) / len(members))
        size.append(statistics.fmean(each.individual.expr.size for each in members))
    return Diversity(tuple(by_generation), tuple(different), tuple(cuts), tuple(size))


@dataclass(frozen=True)
class Effort:
    """Per generation: retrainings done, those saved by reason, and the seconds that the retrainings took."""

    generations: tuple[int, ...]
    retrained: tuple[int, ...]
    saved: dict[str, tuple[int, ...]]
    seconds: tuple[float, ...]
    elapsed: float
    finale: int
    """Retrainings for the comparison at the end."""


def effort(run: RunView) -> Effort:
    """What the run cost, and what looking up saved."""
    retrained: Counter[int] = Counter()
    seconds: Counter[int] = Counter()
    saved: dict[str, Counter[int]] = defaultdict(Counter)
    for record in run.records:
        generation = record["generation"]
        if record["event"] == "evaluated":
            retrained[generation] += 1
            seconds[generation] += record.get("seconds", 0.0)
        elif record["event"] == "fitness":
            for reason in record.get("saved", {}).values():
                saved[reason][generation] += 1
    numbers = tuple(_by_generation(run))
    return Effort(
        numbers,
        tuple(retrained[g] for g in numbers),
        {reason: tuple(counts[g] for g in numbers) for reason, counts in sorted(saved.items())},
        tuple(float(seconds[g]) for g in numbers),
        run.ledger.elapsed,
        sum(count for generation, count in retrained.items() if generation < 0),
    )


def soap_table(run: RunView) -> Comparison | None:
    """The best function beside those of SOAP that were judged; None before anyone is."""
    best = run.ledger.best()
    if best is None:
        return None
    rows = [Row("the best", str(best.individual.expr), best.fitness, best.accuracies)]
    for name in SOAP:
        expr = functions[name].expr
        assert expr is not None
        known = _accuracies(run, expr, run.tasks)
        if len(known) == len(run.tasks):
            accuracies = {task: accuracy for task, accuracy in known.items() if accuracy is not None}
            fitness = 0.0  # as of everyone who failed
            if len(accuracies) == len(known):
                fitness = combined(accuracies, run.settings.weights(), run.settings.fitness.combine)
            rows.append(Row(name, str(expr), fitness, accuracies))
    return Comparison.of(rows, run.tasks, verdicts(run))


def verdicts(run: RunView) -> dict[str, float | None]:
    """How the best did before the judges, as far as that is known; None where it failed."""
    best = run.ledger.best()
    judges = [judge.name for judge in run.settings.judges]
    return {} if best is None else _accuracies(run, best.individual.expr, judges)


def _accuracies(run: RunView, expr: Expr, tasks: Sequence[str]) -> dict[str, float | None]:
    """By task, where it is known, what a function keeps of the accuracy; None where it failed."""
    found: dict[str, float | None] = {}
    for task in tasks:
        score = run.ledger.scores.get((task, expr.canonical_key))
        if score is None:
            continue
        outcome = run.ledger.outcomes.get((task, score.kept))
        if score.error:
            found[task] = None
        elif outcome is not None:
            found[task] = outcome.accuracy
    return found


@dataclass(frozen=True)
class Scheme:
    """A run of the ablation of how accuracies are combined: its scheme, α, and the judge's verdict."""

    run: str
    combine: str
    alpha: float
    accuracy: float


def schemes(runs: Sequence[RunView]) -> tuple[str, tuple[Scheme, ...]]:
    """The judge's name, and what it says of the best of each run."""
    for run in runs:
        if not run.settings.judges:
            raise RunError(
                f"--ablation compares what a judge says of the best functions, and the run {run.name!r} has "
                "none; run the presets combination-…, or give your own [[judges]]"
            )
        if len(run.settings.tasks) != 2:
            raise RunError(
                f"--ablation plots α, the weight of the first of two tasks; {run.name!r} has "
                f"{len(run.settings.tasks)}"
            )
    judges = {run.settings.judges[0].name for run in runs}
    if len(judges) > 1:
        raise RunError(f"--ablation needs the same judge in all runs, these have {', '.join(sorted(judges))}")
    (judge,) = judges
    found = []
    for run in runs:
        accuracy = verdicts(run).get(judge)
        if accuracy is not None:
            alpha = run.settings.fitness.of_tasks(2)[0]
            found.append(Scheme(run.name, run.settings.fitness.combine, alpha, accuracy))
    if not found:
        raise RunError(
            f"--ablation: none of the runs has been judged on {judge!r} yet; that comes when a run ends"
        )
    return judge, tuple(sorted(found, key=lambda each: (each.combine, each.alpha)))


def _by_generation(run: RunView) -> dict[int, list[Judged]]:
    found: dict[int, list[Judged]] = {}
    for each in run.judged:
        found.setdefault(each.individual.generation, []).append(each)
    return found
