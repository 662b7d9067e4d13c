"""What is known of a run so far, and the one way in which more gets known: through its journal.

Everything an evolution decides upon is looked up here. A fresh run and a resumed one fill the ledger with the
same records, the one as they happen, the other by reading; so they go on alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from evoprune.expression.text import parse
from evoprune.expression.tree import Expr
from evoprune.runs.journal import Journal, Record

Place = tuple[int, int]
"""A generation and an index in it."""

# The same text is scored on every task, born, and selected again.
_parsed = lru_cache(maxsize=4_096)(parse)


@dataclass(frozen=True)
class Individual:
    """A function at a place of the population, and how it came there."""

    generation: int
    index: int
    expr: Expr
    origin: str
    parents: tuple[Place, ...] = ()

    @property
    def place(self) -> Place:
        """Generation and index."""
        return (self.generation, self.index)


@dataclass(frozen=True)
class Score:
    """What a function keeps on a task: the key of the evaluation that these channels get, and where they are
    written down (the key of a scoring, and the text there); or why the task cannot use the function."""

    text: str
    kept: str = ""
    scoring: str = ""
    constant: tuple[str, ...] = ()
    everywhere: bool = False
    """Constant at every site of the task."""
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of an evaluation."""

    place: Place
    accuracy: float | None
    error: str = ""


@dataclass(frozen=True)
class Judged:
    """An individual with its fitness; `accuracies` has no task whose evaluation failed."""

    individual: Individual
    fitness: float
    accuracies: dict[str, float]
    error: str = ""

    @property
    def order(self) -> tuple[float, int, Place]:
        """Sorts the better first; of equals the smaller, then the earlier."""
        return (-self.fitness, self.individual.expr.size, self.individual.place)


@dataclass
class Ledger:
    """What is known; filled by `enter` only."""

    journal: Journal | None = None
    bases: dict[str, float | None] = field(default_factory=dict)
    scores: dict[tuple[str, bytes], Score] = field(default_factory=dict)
    drawn: dict[bytes, int] = field(default_factory=dict)
    """The canonical keys of all functions that were bred, valid or not, and the first generation they were
    bred for."""
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    born: dict[Place, Individual] = field(default_factory=dict)
    judged: dict[Place, Judged] = field(default_factory=dict)
    savings: Counter[str] = field(default_factory=Counter)
    ended: str = ""
    ended_after: int = -1
    elapsed: float = 0.0
    ready: float = 0.0
    """What `elapsed` was when the last task had been made ready."""
    generations: list[Record] = field(default_factory=list)

    @classmethod
    def of(cls, records: Iterable[Record], journal: Journal | None = None) -> Ledger:
        """What records say."""
        ledger = cls(journal)
        for record in records:
            ledger._take(record)
        return ledger

    def enter(self, *records: Record) -> None:
        """Write records down, then know them."""
        if records:
            assert self.journal is not None
            self.journal.append(*records)
            for record in records:
                self._take(record)

    def generation(self, number: int, size: int) -> list[Individual] | None:
        """The individuals of a generation, where all are recorded."""
        found = [self.born.get((number, index)) for index in range(size)]
        members = [each for each in found if each is not None]
        return members if len(members) == size else None

    def best(self) -> Judged | None:
        """The fittest so far."""
        return min(self.judged.values(), key=lambda each: each.order, default=None)

    def _take(self, record: Record) -> None:
        self.elapsed = max(self.elapsed, record.get("elapsed", 0.0))
        take = getattr(self, f"_take_{record['event']}", None)
        if take is not None:
            take(record)

    def _take_prepared(self, record: Record) -> None:
        self.bases[record["task"]] = record["accuracy"]
        self.ready = record.get("elapsed", 0.0)

    def _take_scored(self, record: Record) -> None:
        for each in record["functions"]:
            key = _parsed(each["text"]).canonical_key
            self.drawn.setdefault(key, record["generation"])
            self.scores[record["task"], key] = Score(
                each["text"],
                each.get("kept", ""),
                record["scoring"],
                tuple(each.get("constant", ())),
                each.get("everywhere", False),
                each.get("error", ""),
            )

    def _take_born(self, record: Record) -> None:
        place = (record["generation"], record["index"])
        parents = tuple((generation, index) for generation, index in record["parents"])
        expr = _parsed(record["text"])
        self.drawn.setdefault(expr.canonical_key, place[0])
        self.born[place] = Individual(*place, expr, record["origin"], parents)

    def _take_evaluated(self, record: Record) -> None:
        place = (record["generation"], record["index"])
        self.outcomes[record["task"], record["kept"]] = Outcome(
            place, record.get("accuracy"), record.get("error", "")
        )

    def _take_fitness(self, record: Record) -> None:
        place = (record["generation"], record["index"])
        self.judged[place] = Judged(
            self.born[place], record["fitness"], record["accuracies"], record.get("error", "")
        )
        self.savings.update(record["saved"].values())

    def _take_generation(self, record: Record) -> None:
        self.generations.append(record)

    def _take_end(self, record: Record) -> None:
        self.ended = record["reason"]
        self.ended_after = record["index"]
