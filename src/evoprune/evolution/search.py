"""The generation loop: where breeding, work and record come together.

    bred ─▶ scored on every task ─▶ kept channels ─▶ evaluated once each ─▶ fitness ─▶ selected ─▶ bred …

Everything found out goes through the ledger into the journal before it is used, so that a run which was
killed goes on as if it had not been.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from evoprune.errors import RunError
from evoprune.evolution.breeding import Brood
from evoprune.evolution.comparison import Comparison, Row
from evoprune.evolution.desk import FINALE, TICK, Desk, Stopped
from evoprune.evolution.hall_of_fame import HallOfFame, percent
from evoprune.evolution.ledger import Individual, Judged, Ledger, Place, Score
from evoprune.evolution.selection import combined
from evoprune.evolution.settings import Settings
from evoprune.evolution.variation import Nursery
from evoprune.evolution.watching import Silent, Status, Watch, duration
from evoprune.expression.library import SOAP, functions
from evoprune.expression.tree import Expr
from evoprune.files import write
from evoprune.runs.executors import Executor
from evoprune.runs.files import refusals_said
from evoprune.runs.folder import Lock, RunFolder, now
from evoprune.runs.journal import NOTE, Journal, Record

SAME_FUNCTION, SAME_CHANNELS, BY_INDEX = "same function", "same channels", "cut by index"
"""Why a retraining was saved: the function had been judged before; another function keeps the same channels
of the task; or the function is constant at every site, and that cut had been judged before."""


@dataclass(frozen=True)
class Generation:
    """A generation that has been judged."""

    number: int
    members: tuple[Judged, ...]

    @property
    def best(self) -> Judged:
        """The fittest of this generation."""
        return min(self.members, key=lambda each: each.order)

    @property
    def median(self) -> float:
        """The median fitness."""
        return statistics.median(each.fitness for each in self.members)


class Run:
    """A run that is open for work. Iterating over it carries it on, a generation at a time.

    A loop that is left closes it; between two calls of `next` it stays open.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: Settings,
        journal: Journal,
        executor: Executor,
        lock: Lock,
        watch: Watch | None = None,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.ended = ""
        """Why it ended or stopped; empty while it runs."""
        self.setting = ""
        """An assignment with which a run goes on that has stopped; empty where none is needed."""
        self.interrupted = False
        self.comparison: Comparison | None = None
        """The best beside SOAP, once the run has ended."""
        self._watch = watch or Silent()
        self._lock = lock
        self._executor = executor
        self._journal = journal
        self.ledger = Ledger.of(self._journal.records, self._journal)
        self._hall = HallOfFame.of(self.ledger.judged.values())
        self._weights = settings.weights()
        self._nursery = Nursery(settings.variation)
        self._desk = Desk(folder, settings, self.ledger, executor, self.say)
        self._desk.tick = self._tick
        self._stop = ""
        self._shown = float("-inf")
        self._closed = False
        self._generations: Iterator[Generation] | None = None
        self._now = 0
        self._wanted: dict[str, tuple[Place, str, Score]] = {}
        if self._journal.torn:
            self.say(f"the end of the journal was torn ({self._journal.torn} bytes), and is dropped")

    def hall_of_fame(self) -> HallOfFame:
        """The best so far."""
        return self._hall

    def say(self, text: str) -> None:
        """Tell people, and the log."""
        self.folder.say(text)
        self._watch.say(text)

    @property
    def tasks(self) -> list[str]:
        """The tasks that have a part in the fitness."""
        return list(self._weights)

    def interrupt(self) -> None:
        """As `stop`, on behalf of a person."""
        self.interrupted = True
        self.stop("interrupted")

    def stop(self, reason: str = "stopped") -> None:
        """Have the run stop at the next opportunity; it can be resumed."""
        self._stop = reason

    def __iter__(self) -> Iterator[Generation]:
        return self._generations or self._carried_on()

    def __next__(self) -> Generation:
        if self._generations is None:
            self._generations = self._carried_on()
        return next(self._generations)

    def _carried_on(self) -> Iterator[Generation]:
        if self._closed:
            raise RunError(f"the run is closed; go on with it by evoprune.resume({self.folder.name!r})")
        try:
            self._desk.begin()
            self.folder.exercise()
            self._prepare()
            for number in range(self.settings.population.generations):
                judged_before = len(self.ledger.generations) > number
                generation = self._judged(number, self._members(number))
                if not judged_before:
                    self._desk.rest()  # what whoever iterates does meanwhile is not the run's time
                    yield generation
                    self._desk.begin()
                # Where a later generation is recorded already, this one was not enough.
                reason = self._enough() if len(self.ledger.generations) <= number + 1 else ""
                if reason:
                    break
            self._finish(reason or "all generations are judged")
        except Stopped as stopped:
            self.ended, self.setting = str(stopped), stopped.setting
            self._note(self.ended)
        finally:
            self.close()

    def close(self) -> None:
        """Give up what is being evaluated, and let go of the run."""
        self._closed = True
        self._executor.close()
        self._journal.close()
        self._lock.release()
        self._watch.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self) -> None:
        """Every task made ready, the judges' too, and every file written once."""
        for choice in self.settings.tasks:
            if choice.name not in self._weights:
                self.say(f"{choice.name} has the weight 0 and is left out")
        self._desk.prepare([*self._weights, *(judge.name for judge in self.settings.judges)])
        self._write_hall_of_fame()

    def _members(self, number: int) -> list[Individual]:
        """The individuals of a generation: as recorded, or newly bred."""
        size = self.settings.population.size
        recorded = self.ledger.generation(number, size)
        if recorded is not None:
            return recorded
        before = [self.ledger.judged[number - 1, index] for index in range(size)] if number else []
        known = {key for key, generation in self.ledger.drawn.items() if generation < number}
        brood = Brood(self.settings, self._nursery, number, before, known)
        while len(brood.members) < size:
            candidates = brood.draw()
            exprs = [member.expr for member in brood.members]
            exprs += [candidate.expr for candidate in candidates.values()]
            self._desk.score(number, exprs, list(self._weights))
            for place, candidate in candidates.items():
                objection = self._objection(candidate.expr)
                if objection is None:
                    brood.accept(place, candidate)
                else:
                    self.folder.say(f"turned down before any retraining: {candidate.expr}: {objection}")
        self.ledger.enter(*[_born(one) for one in brood.members if one.place not in self.ledger.born])
        return brood.members

    def _objection(self, expr: Expr) -> str | None:
        """Why the tasks turn down a bred tree."""
        scores = [self.ledger.scores[task, expr.canonical_key] for task in self._weights]
        errors = [score.error for score in scores if score.error]
        if errors:
            return errors[0]
        return "constant on every task" if all(score.everywhere for score in scores) else None

    def _judged(self, number: int, members: Sequence[Individual]) -> Generation:
        """Evaluate what has not been yet, and give everyone a fitness."""
        self._now = number
        self._desk.score(number, [member.expr for member in members], list(self._weights))
        saved = self._savings(members)
        waiting = {one.place: one for one in members if one.place not in self.ledger.judged}
        self._plan(wanted := self._evaluations(waiting.values()))
        concerned: dict[str, list[Place]] = {}
        for place, one in waiting.items():
            for score in self._scores(one.expr).values():
                concerned.setdefault(score.kept, []).append(place)

        def settle(places: Iterable[Place]) -> None:
            """Give a fitness to those of whom everything is known."""
            records = []
            for place in places:
                fitness = self._fitness(waiting[place].expr) if place in waiting else None
                if fitness is not None:
                    del waiting[place]
                    records.append(self._desk.record("fitness", place, **fitness, saved=saved[place]))
            self.ledger.enter(*records)
            self._write_hall_of_fame(self.ledger.judged[r["generation"], r["index"]] for r in records)

        settle(list(waiting))
        self._desk.evaluate(wanted, lambda keys: settle(place for key in keys for place in concerned[key]))
        generation = Generation(number, tuple(self.ledger.judged[one.place] for one in members))
        if len(self.ledger.generations) <= number:
            self._conclude(generation)
        return generation

    def _plan(self, wanted: dict[str, tuple[Place, str, Score]]) -> None:
        """These evaluations come next: to be shown at once, since the first may take long."""
        self._wanted, self._shown = wanted, float("-inf")

    def _evaluations(self, members: Iterable[Individual]) -> dict[str, tuple[Place, str, Score]]:
        """The evaluations that are not recorded yet, each for the first who needs it."""
        wanted: dict[str, tuple[Place, str, Score]] = {}
        for one in members:
            for task, score in self._scores(one.expr).items():
                if score.kept and (task, score.kept) not in self.ledger.outcomes:
                    wanted.setdefault(score.kept, (one.place, task, score))
        return wanted

    def _scores(self, expr: Expr) -> dict[str, Score]:
        return {task: self.ledger.scores[task, expr.canonical_key] for task in self._weights}

    def _savings(self, members: Sequence[Individual]) -> dict[Place, dict[str, str]]:
        """For everyone, the tasks on which no retraining is needed on their behalf, and why."""
        first: dict[bytes, Place] = {}
        for place, one in sorted(self.ledger.born.items()):
            first.setdefault(one.expr.canonical_key, place)
        owners = {unit: outcome.place for unit, outcome in self.ledger.outcomes.items()}
        saved: dict[Place, dict[str, str]] = {}
        for one in members:
            saved[one.place] = {}
            for task, score in self._scores(one.expr).items():
                if score.error:
                    continue
                owner = owners.setdefault((task, score.kept), one.place)
                if owner == one.place:
                    continue
                if first[one.expr.canonical_key] != one.place:
                    why = SAME_FUNCTION
                else:
                    why = BY_INDEX if score.everywhere else SAME_CHANNELS
                saved[one.place][task] = why
        return saved

    def _fitness(self, expr: Expr) -> dict[str, Any] | None:
        """A function's fitness and what it is made of; None while an evaluation is missing."""
        accuracies: dict[str, float] = {}
        errors: list[str] = []
        for task, score in self._scores(expr).items():
            if score.error:
                errors.append(f"{task}: {score.error}")
                continue
            outcome = self.ledger.outcomes.get((task, score.kept))
            if outcome is None:
                return None
            if outcome.accuracy is None:
                errors.append(f"{task}: {outcome.error}")
            else:
                accuracies[task] = outcome.accuracy
        if errors:
            return {"fitness": 0.0, "accuracies": accuracies, "error": "; ".join(errors)}
        fitness = combined(accuracies, self._weights, self.settings.fitness.combine)
        return {"fitness": fitness, "accuracies": accuracies}

    def _conclude(self, generation: Generation) -> None:
        best = self.ledger.best()
        assert best is not None
        retrainings = len(self.ledger.outcomes)
        self._desk.enter(
            "generation",
            (generation.number, len(generation.members)),
            best=best.fitness,
            median=generation.median,
            function=str(best.individual.expr),
            retrainings=retrainings,
            savings=dict(sorted(self.ledger.savings.items())),
        )
        self.say(
            f"generation {generation.number + 1} of {self.settings.population.generations}: "
            f"best {percent(best.fitness)}, median {percent(generation.median)}; "
            f"{retrainings} retrainings so far, {self._saved_text()}; {best.individual.expr}"
        )

    def _saved_text(self) -> str:
        savings = self.ledger.savings
        if not savings:
            return "none saved"
        reasons = ", ".join(f"{count} {why}" for why, count in sorted(savings.items()))
        return f"{savings.total()} saved ({reasons})"

    def _enough(self) -> str:
        """Why no further generation is needed; empty if one is."""
        budget = self.settings.budget
        bests = [record["best"] for record in self.ledger.generations]
        if budget.fitness is not None and bests[-1] >= budget.fitness:
            return f"the best has reached {percent(budget.fitness)}"
        patience = budget.patience
        if patience is not None and len(bests) > patience and bests[-1] <= bests[-1 - patience]:
            return f"{patience} generation{'s' * (patience != 1)} brought no better best"
        return ""

    def _finish(self, reason: str) -> None:
        """The best beside every function of SOAP on the same tasks, and before the judges."""
        last = len(self.ledger.generations) - 1
        best = self.hall_of_fame().fittest[0]
        rivals = {name: expr for name in SOAP if (expr := functions[name].expr) is not None}
        self._desk.score(FINALE, list(rivals.values()), list(self._weights))
        judges = [judge.name for judge in self.settings.judges]
        self._desk.score(FINALE, [best.individual.expr], judges)
        extra = [Individual(FINALE, i, expr, "soap") for i, expr in enumerate(rivals.values())]
        wanted = self._evaluations(extra)
        before_judges = {
            judge: self.ledger.scores[judge, best.individual.expr.canonical_key] for judge in judges
        }
        for judge, score in before_judges.items():
            if score.kept and (judge, score.kept) not in self.ledger.outcomes:
                wanted[score.kept] = ((FINALE, len(rivals)), judge, score)
        if wanted:
            self.say(f"comparing: {len(wanted)} evaluations that the evolution did not need")
        self._plan(wanted)
        self._desk.evaluate(wanted, lambda keys: None)
        rows = [Row("the best", str(best.individual.expr), best.fitness, best.accuracies)]
        for name, expr in rivals.items():
            judged = self._fitness(expr)
            assert judged is not None
            rows.append(Row(name, str(expr), judged["fitness"], judged["accuracies"]))
        verdicts = {
            judge: outcome.accuracy
            for judge, score in before_judges.items()
            if (outcome := self.ledger.outcomes.get((judge, score.kept))) is not None
        }
        self.comparison = Comparison.of(rows, list(self._weights), verdicts)
        with refusals_said("writing the comparison"):
            write(self.folder.comparison_csv, self.comparison.csv())
        if self.ledger.ended_after != last:
            self._desk.enter("end", (FINALE, last), reason=reason)
            self.say(f"the run has ended: {reason}; {self._saved_text()}")
        self.ended = reason

    def _write_hall_of_fame(self, new: Iterable[Judged] = ()) -> None:
        """Write it where those who are new change it."""
        hall, tasks = self._hall.joined_by(new), list(self._weights)
        if hall == self._hall and new:
            return
        self._hall = hall
        with refusals_said("writing the hall of fame"):
            write(self.folder.hall_of_fame, hall.text(tasks), sync=False)
            write(self.folder.hall_of_fame_csv, hall.csv(tasks), sync=False)

    def _note(self, text: str) -> None:
        place = (self._now, self.settings.population.size + 1)
        self._desk.enter(NOTE, place, text=text)
        self.folder.say(text)

    def _tick(self) -> None:
        """Called whenever work has been done, and several times a second: see whether to stop."""
        if time.monotonic() - self._shown >= TICK:
            self._shown = time.monotonic()
            self._watch.show(self._status())
        if self._stop:
            raise Stopped(self._stop)
        seconds = self.settings.budget.seconds
        if seconds is not None and self._desk.elapsed >= seconds:
            more = f"budget.seconds={2 * seconds:g}"
            raise Stopped(f"the budget of {duration(seconds)} is used up", setting=more)

    def _status(self) -> Status:
        best = self.ledger.best()
        done = sum((task, key) in self.ledger.outcomes for key, (_, task, _) in self._wanted.items())
        fitness = [one.fitness for place, one in self.ledger.judged.items() if place[0] == self._now]
        population = self.settings.population
        return Status(
            name=self.folder.name,
            generation=min(self._now, population.generations - 1),
            generations=population.generations,
            best=None if best is None else best.fitness,
            median=statistics.median(fitness) if fitness else None,
            formula="" if best is None else str(best.individual.expr),
            done=done,
            wanted=len(self._wanted),
            running=self._desk.running,
            saved=self.ledger.savings.total(),
            elapsed=self._desk.elapsed,
            left=self._left(len(self._wanted) - done),
        )

    def _left(self, open_here: int) -> float | None:
        """Seconds that the rest may take, judged by the evaluations so far."""
        outcomes = self.ledger.outcomes.values()
        if not outcomes:
            return None
        population = self.settings.population
        bred = [outcome for outcome in outcomes if 0 < outcome.place[0] < self._now]
        each: float = (population.children + population.immigrants) * len(self._weights)
        if bred:
            each = len(bred) / (self._now - 1)
        still = max(0, population.generations - 1 - self._now)
        spent = self._desk.elapsed - self.ledger.ready
        return spent / len(outcomes) * (open_here + still * each)


def _born(one: Individual) -> Record:
    return {
        "event": "born",
        "generation": one.generation,
        "index": one.index,
        "text": str(one.expr),
        "origin": one.origin,
        "parents": [list(parent) for parent in one.parents],
        "at": now(),
    }
