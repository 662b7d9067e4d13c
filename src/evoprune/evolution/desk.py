"""Having work done and recorded: bases, scores and evaluations, each at most once.

A desk sits between the search, which decides, and the executor, which carries out. What is in the ledger is
not asked for again; what has a result in the run's folder (a driver was killed before it could record it) is
recorded, and not done again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

from evoprune.errors import RunError
from evoprune.evolution.hall_of_fame import percent
from evoprune.evolution.ledger import Ledger, Place, Score
from evoprune.evolution.settings import Settings
from evoprune.expression.tree import Expr
from evoprune.runs import work as works
from evoprune.runs.executors import Executor
from evoprune.runs.files import read_json, refusals_said
from evoprune.runs.folder import RunFolder, now
from evoprune.runs.journal import Record
from evoprune.runs.work import Table, Work

TICK = 0.25
"""Seconds between two looks at whether to stop, and between two pictures of the live view."""


PREPARING, FINALE = -1, -2
"""What the journal has in the place of a generation before the first, and for the comparison at the end."""


class Stopped(Exception):
    """The run stops early, with the reason; it can be resumed, by some only with other settings."""

    def __init__(self, reason: str, *, setting: str = "") -> None:
        super().__init__(reason)
        self.setting = setting
        """An assignment with which a resumed run goes on."""


class Desk:
    """Gives out work and enters what comes of it."""

    def __init__(
        self,
        folder: RunFolder,
        settings: Settings,
        ledger: Ledger,
        executor: Executor,
        say: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._ledger = ledger
        self._executor = executor
        self._say = say
        self._before = ledger.elapsed
        self._started: float | None = None
        self._scored = lru_cache(maxsize=8)(self._scoring)
        self.tick: Callable[[], None] = lambda: None
        """Called several times a second while work is being done; may raise Stopped."""

    @property
    def elapsed(self) -> float:
        """Seconds of work so far, those before a resume included."""
        return self._before + (0.0 if self._started is None else time.monotonic() - self._started)

    def begin(self) -> None:
        """Time counts from now on."""
        self._started = time.monotonic()

    def rest(self) -> None:
        """Time does not count until work begins again."""
        self._before, self._started = self.elapsed, None

    @property
    def running(self) -> int:
        """How many evaluations run now."""
        return self._executor.running

    def enter(self, event: str, place: Place, **what: object) -> None:
        """Record something."""
        self._ledger.enter(self.record(event, place, **what))

    def record(self, event: str, place: Place, **what: object) -> Record:
        """Something to enter, with the time."""
        record = {"event": event, "generation": place[0], "index": place[1], **what}
        return record | {"at": now(), "elapsed": round(self.elapsed, 3)}

    def prepare(self, tasks: Sequence[str]) -> None:
        """Have tasks made ready: their data found, their base networks trained."""
        wanted = [self._work(works.PREPARE, task) for task in tasks if task not in self._ledger.bases]
        if wanted:
            self._say(f"making ready: {', '.join(work.task for work in wanted)}")
        for work, result in self._done(wanted):
            if not result["ok"]:
                shutil.rmtree(self._folder.evals / work.key)  # so that a resumed run tries again
                self._folder.say(result["traceback"])
                told = f"the task {work.task} cannot be made ready: {result['error']}"
                raise RunError(f"{told}; more is in {self._folder.log}")
            accuracy = result["accuracy"]
            self.enter("prepared", (PREPARING, tasks.index(work.task)), task=work.task, accuracy=accuracy)
            if accuracy is not None:
                self._say(f"{work.task}: the base network has {percent(accuracy)} % on validation")

    def score(self, generation: int, exprs: Sequence[Expr], tasks: Sequence[str]) -> None:
        """Have the channels found that functions keep; those of one call are scored together."""
        wanted = []
        for task in tasks:
            new = {
                e.canonical_key: str(e) for e in exprs if (task, e.canonical_key) not in self._ledger.scores
            }
            if new:
                wanted.append(self._work(works.SCORE, task, functions=tuple(new.values())))
        while wanted:
            again = []
            for work, result in self._done(wanted):
                if result["ok"]:
                    self._enter_scores(generation, work, result["functions"])
                elif len(work.functions) > 1:  # whoever it was, the others are not to suffer
                    again += [
                        self._work(works.SCORE, work.task, functions=(each,)) for each in work.functions
                    ]
                else:
                    self._enter_scores(generation, work, [result])
            wanted = again

    def _enter_scores(self, generation: int, work: Work, results: Sequence[Table]) -> None:
        functions = []
        for text, result in zip(work.functions, results, strict=True):
            if "error" in result:
                functions.append({"text": text, "error": result["error"]})
                self._folder.say(f"{work.task} cannot use {text}: {result['error']}")
                continue
            constant = result["constant"]
            key = self._work(works.EVALUATE, work.task, kept=result).key
            everywhere = set(constant) >= set(result["channels"])
            functions.append({"text": text, "kept": key, "constant": constant, "everywhere": everywhere})
            if constant:
                where = "everywhere" if everywhere else f"at {', '.join(constant)}"
                self._folder.say(f"{work.task} is cut by index {where}, where {text} is constant")
        index = self._settings.names().index(work.task)
        self.enter("scored", (generation, index), task=work.task, scoring=work.key, functions=functions)

    def evaluate(
        self, wanted: Mapping[str, tuple[Place, str, Score]], entered: Callable[[list[str]], None]
    ) -> None:
        """Have evaluations done, by key, on behalf of places; `entered` is told of those just recorded."""
        limit = self._settings.budget.evaluations
        keys = list(wanted)
        if limit is not None:
            keys = keys[: max(0, limit - len(self._ledger.outcomes))]
        for batch in self._batches([self._evaluation(*wanted[key][1:]) for key in keys]):
            records = []
            for work, result in batch:
                place, _, score = wanted[work.key]
                outcome = {"accuracy": result["accuracy"]} if result["ok"] else {"error": result["error"]}
                facts = {"task": work.task, "kept": work.key, "seconds": round(result["seconds"], 3)}
                records.append(self.record("evaluated", place, **facts, **outcome))
                if not result["ok"]:
                    self._say(
                        f"an evaluation failed on {work.task} and counts as fitness 0: {result['error']}"
                    )
                    self._folder.say(f"it was that of {score.text}\n{result['traceback']}")
            self._ledger.enter(*records)
            entered([work.key for work, _ in batch])
        if len(keys) < len(wanted):
            more = f"budget.evaluations={2 * (limit or 0)}"
            raise Stopped(f"the budget of {limit} evaluations is used up", setting=more)

    def _evaluation(self, task: str, score: Score) -> Work:
        """The evaluation of what a function keeps on a task."""
        scored = self._scored(score.scoring)
        if scored is None:
            place = self._folder.evals / score.scoring
            self._say(f"{place} is gone: {task} is asked again what {score.text} keeps")
            ((_, result),) = self._done([self._work(works.SCORE, task, functions=(score.text,))])
            scored = {score.text: result["functions"][0] if result["ok"] else result}
        kept = scored.get(score.text, {})
        evaluation = self._work(works.EVALUATE, task, kept=kept) if "channels" in kept else None
        if evaluation is None or evaluation.key != score.kept:
            raise RunError(
                f"on {task}, {score.text} does not keep the channels any more that the journal speaks of; "
                "results of the two do not mix"
            )
        return evaluation

    def _scoring(self, key: str) -> dict[str, Table] | None:
        """What the functions of a scoring keep, by their texts; None where its files are gone."""
        place = self._folder.evals / key
        order, result = read_json(place / "work.json"), read_json(place / "result.json")
        if order is None or result is None:
            return None
        return dict(zip(order["functions"], result["functions"], strict=True)) if result["ok"] else {}

    def _work(self, kind: str, task: str, **what: Any) -> Work:
        factory, options = self._settings.choice(task).source(self._settings.run.device)
        limit = self._settings.run.time_limit
        if kind == works.PREPARE:
            limit = None
        elif limit is not None and kind == works.SCORE:
            limit *= len(what["functions"])
        # One seed for a run and a task, so that functions differ in nothing but what they keep.
        seed = crc32(f"{self._settings.seed} {task}".encode())
        threads = self._settings.run.threads
        return Work(kind, task, factory, options, threads=threads, seed=seed, limit=limit, **what)

    def _done(self, wanted: Sequence[Work]) -> Iterator[tuple[Work, Table]]:
        """Work with its results, as they come."""
        for batch in self._batches(wanted):
            yield from batch

    def _batches(self, wanted: Sequence[Work]) -> Iterator[list[tuple[Work, Table]]]:
        """Work with its results, as they come; what has a result already is not done again."""
        there: list[tuple[Work, Table]] = []
        pending: dict[str, Work] = {}
        with refusals_said("writing down what is to be done"):
            for work in wanted:
                result = works.result(self._folder.path, work.key)
                if result is not None:
                    there.append((work, result))
                else:
                    works.order(self._folder.path, work)
                    pending[work.key] = work
        self._executor.submit(list(pending))
        if there:
            yield there
        while pending:
            self.tick()
            batch = []
            for key in self._executor.finished(TICK):
                result = works.result(self._folder.path, key)
                if result is None:
                    raise RunError(f"the result of {self._folder.evals / key} cannot be read")
                batch.append((pending.pop(key), result))
            if batch:
                yield batch
        self.tick()
