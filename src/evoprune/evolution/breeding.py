"""A generation in the making: which places are taken by whom, and what is drawn for the others.

What is drawn for a place depends on the seed, the generation, the place, and on which candidates their tasks
turned down; never on how fast anything ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numpy.random import Generator, default_rng

from evoprune.evolution.ledger import Individual, Judged, Place
from evoprune.evolution.selection import tournament
from evoprune.evolution.settings import Settings
from evoprune.evolution.variation import Child, Nursery, index
from evoprune.expression.library import SOAP, functions, resolve
from evoprune.expression.tree import Expr

ROUNDS = 50
"""How many candidates a place gets turned down by the tasks before it is given to a clone."""

_SELECTION, _PLACE = 0, 1


class Brood:
    """The places of one generation."""

    def __init__(
        self,
        settings: Settings,
        nursery: Nursery,
        generation: int,
        before: Sequence[Judged],
        known: set[bytes],
    ) -> None:
        self._settings = settings
        self._nursery = nursery
        self._generation = generation
        self._known = known
        self._placed: dict[int, Individual] = {}
        self._open: dict[int, Callable[[], Child | None]] = {}
        self._parents: list[Judged] = []
        self._rngs: dict[int, Generator] = {}
        self._rounds = 0
        for name in SOAP:
            known.add(_soap(name).canonical_key)
        if before:
            self._next(before)
        else:
            self._first()

    @property
    def members(self) -> list[Individual]:
        """Those who have their place, in order; all of them once no place is open."""
        return [self._placed[place] for place in sorted(self._placed)]

    def draw(self) -> dict[int, Child]:
        """A candidate for every open place, in order."""
        self._rounds += 1
        drawn: dict[int, Child] = {}
        for place, draw in list(self._open.items()):
            child = draw() if self._rounds <= ROUNDS else None
            if child is None:
                self._put(place, *self._clone(place))
            else:
                self._known.add(child.expr.canonical_key)
                drawn[place] = child
        return drawn

    def accept(self, place: int, child: Child) -> None:
        """Give the place to a candidate."""
        parents = tuple(self._parents[each].individual.place for each in child.parents)
        self._put(place, child.expr, child.origin, parents)

    def _first(self) -> None:
        population = self._settings.population
        place = 0
        for seed in population.seeds:
            function = resolve(seed)
            assert function.expr is not None
            self._put(place, function.expr, "seed" if function.name == function.text else f"seed {seed}")
            place += 1
        for _ in range(population.soap):
            self._put(place, *self._soap_clone(place))
            place += 1
        while place < population.size:
            self._open_for_random(place)
            place += 1

    def _next(self, before: Sequence[Judged]) -> None:
        population = self._settings.population
        fitness = [each.fitness for each in before]
        rng = default_rng([self._settings.seed, _SELECTION, self._generation, 0])
        won = tournament(rng, fitness, entrants=population.tournament, winners=population.selected)
        self._parents = [before[each] for each in won]
        exprs = [parent.individual.expr for parent in self._parents]
        for place, parent in enumerate(self._parents):
            self._put(place, parent.individual.expr, "selected", (parent.individual.place,))
        place = population.selected
        for _ in range(population.children):
            self._open_for_child(place, exprs)
            place += 1
        for _ in range(population.immigrants):
            source = population.immigrants_from
            if source == "soap" or (source == "both" and self._rng(place).random() < 0.5):
                self._put(place, *self._soap_clone(place))
            else:
                self._open_for_random(place)
            place += 1

    def _open_for_child(self, place: int, parents: Sequence[Expr]) -> None:
        self._open[place] = lambda: self._nursery.child(self._rng(place), parents, self._known)

    def _open_for_random(self, place: int) -> None:
        self._open[place] = lambda: self._nursery.random(self._rng(place), self._known)

    def _soap_clone(self, place: int) -> tuple[Expr, str]:
        name = SOAP[index(self._rng(place), len(SOAP))]
        return _soap(name), f"soap {name}"

    def _clone(self, place: int) -> tuple[Expr, str, tuple[Place, ...]]:
        """Who has a place for which nothing new and valid was found."""
        if not self._parents:
            return (*self._soap_clone(place), ())
        parent = self._parents[index(self._rng(place), len(self._parents))].individual
        return parent.expr, "clone", (parent.place,)

    def _put(self, place: int, expr: Expr, origin: str, parents: tuple[Place, ...] = ()) -> None:
        self._placed[place] = Individual(self._generation, place, expr, origin, parents)
        self._open.pop(place, None)

    def _rng(self, place: int) -> Generator:
        """The one stream of random numbers of a place."""
        if place not in self._rngs:
            self._rngs[place] = default_rng([self._settings.seed, _PLACE, self._generation, place])
        return self._rngs[place]


def _soap(name: str) -> Expr:
    expr = functions[name].expr
    assert expr is not None
    return expr
