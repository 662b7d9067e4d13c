"""Making new trees: at random, by mutation, by crossover.

Trees are grown towards the kind of value that is wanted (a scalar, a vector, a matrix), and subtrees are
exchanged for others of the same shape, so that most of what is bred is valid. What the shapes cannot
promise is judged by `probe`; whatever fails is drawn again, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import TypeVar

from numpy.random import Generator

from evoprune.errors import ConfigError
from evoprune.evolution.probe import Limits, Probe
from evoprune.expression.shapes import SCALAR, Shape
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERANDS, OPERATORS

T = TypeVar("T")

ATTEMPTS = 1_000
"""How many candidates are drawn for one child before breeding gives up."""

DRAWS = 10
"""How many subtrees are drawn for one mutation: some heights and kinds do not go together."""


@dataclass(frozen=True)
class Variation:
    """How children are made; the defaults are the paper's settings, and limits against bloat."""

    mutation: float = 0.75
    crossover: float = 0.75
    min_height: int = 0
    max_height: int = 4
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("mutation", "crossover"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is a probability from 0 to 1, got {getattr(self, name)}")
        if self.mutation == self.crossover == 0:
            raise ConfigError("mutation and crossover are both 0, so that no child would be new")
        if not 0 <= self.min_height <= self.max_height:
            raise ConfigError(
                "random trees are from min_height to max_height high, "
                f"got {self.min_height} to {self.max_height}"
            )
        if self.max_height < 1:
            raise ConfigError("max_height must be at least 1: no operand alone is a score")


@dataclass(frozen=True)
class Child:
    """A new tree and how it came about; `parents` are positions among the parents given."""

    expr: Expr
    origin: str
    parents: tuple[int, ...] = ()


class Nursery:
    """Breeds trees that are valid and new, and remembers what it found out about their parts."""

    def __init__(self, variation: Variation | None = None) -> None:
        self.variation = variation or Variation()
        self.probe = Probe(self.variation.limits)
        self.tried = 0
        self.born = 0

    def random(self, rng: Generator, known: Set[bytes] = frozenset()) -> Child | None:
        """A random tree whose canonical key is not known; None if the attempts run out."""
        return self._first(self._random_trees(rng), known)

    def child(self, rng: Generator, parents: Sequence[Expr], known: Set[bytes] = frozenset()) -> Child | None:
        """A child of the parents, none of them and none that is known; None if the attempts run out."""
        own = {parent.canonical_key for parent in parents}
        candidates = self._children(rng, parents)
        return self._first((each for each in candidates if each.expr.canonical_key not in own), known)

    def _first(self, candidates: Iterator[Child], known: Set[bytes]) -> Child | None:
        for candidate in candidates:
            self.tried += 1
            if candidate.expr.canonical_key not in known and self.probe.objection(candidate.expr) is None:
                self.born += 1
                return candidate
        return None

    def _random_trees(self, rng: Generator) -> Iterator[Child]:
        for _ in range(ATTEMPTS):
            expr = self.grown(rng, SCALAR.kind)
            if expr is not None:
                yield Child(expr, "random")

    def _children(self, rng: Generator, parents: Sequence[Expr]) -> Iterator[Child]:
        """Candidates, one crossover's two children after one another, each perhaps mutated."""
        for _ in range(ATTEMPTS):
            first, second = index(rng, len(parents)), index(rng, len(parents))
            crossed = rng.random() < self.variation.crossover
            a, b = parents[first], parents[second]
            swap = meeting(rng, a, b, self.probe.shape) if crossed else None
            if swap is None:
                mutant = self.mutant(rng, a)
                if mutant is not None:
                    yield Child(mutant, "mutation", (first,))
                continue
            here, there = swap
            for tree, place, other, their_place, order in (
                (a, here, b, there, (first, second)),
                (b, there, a, here, (second, first)),
            ):
                child = tree.replace(place, other.at(their_place))
                mutant = self.mutant(rng, child)
                if mutant is None:
                    yield Child(child, "crossover", order)
                else:
                    yield Child(mutant, "crossover, mutation", order)

    def grown(self, rng: Generator, kind: str) -> Expr | None:
        """A random tree, full or grown, of the wanted kind; None where the height drawn allows none."""
        low, high = self.variation.min_height, self.variation.max_height
        height = low + index(rng, high - low + 1)
        return random_tree(rng, kind, height, full=rng.random() < 0.5)

    def mutant(self, rng: Generator, expr: Expr) -> Expr | None:
        """The tree with a random subtree in the place of another, as often as trees mutate.

        None where it does not, and where no subtree of that kind was drawn.
        """
        if rng.random() >= self.variation.mutation:
            return None
        place = index(rng, expr.size)
        kind = self.probe.shape(expr.at(place)).kind
        for _ in range(DRAWS):
            subtree = self.grown(rng, kind)
            if subtree is not None and self.probe.shape(subtree).kind == kind:
                return expr.replace(place, subtree)
        return None


def index(rng: Generator, count: int) -> int:
    """A random position among so many."""
    return int(rng.random() * count)


def crossover(rng: Generator, a: Expr, b: Expr, shape: Callable[[Expr], Shape]) -> tuple[Expr, Expr] | None:
    """One-point crossover: both trees, a subtree exchanged for one of equal shape; None if none is."""
    places = meeting(rng, a, b, shape)
    if places is None:
        return None
    here, there = places
    return a.replace(here, b.at(there)), b.replace(there, a.at(here))


def meeting(rng: Generator, a: Expr, b: Expr, shape: Callable[[Expr], Shape]) -> tuple[int, int] | None:
    """A position in each of two trees at which their subtrees have equal shapes, not both at the root."""
    places: dict[Shape, list[int]] = {}
    for place, node in enumerate(b.walk()):
        places.setdefault(shape(node), []).append(place)
    own = [shape(node) for node in a.walk()]
    # Exchanging the roots would only exchange the parents.
    choices = [place for place, each in enumerate(own) if each in places and (place or places[each] != [0])]
    if not choices:
        return None
    here = choices[index(rng, len(choices))]
    there = [place for place in places[own[here]] if place or here]
    return here, there[index(rng, len(there))]


def random_tree(rng: Generator, kind: str, height: int, *, full: bool) -> Expr | None:
    """A random tree of a kind: with every operand at the height (full), or at most there (grown).

    None where no tree of this kind has the height: no operand is a scalar.
    """
    options = _options(kind, height, full)
    if not options:
        return None
    if height and not full:
        options = [option for option in options if option[1] != _LEAF]
    name, forms = options[index(rng, len(options))]
    args = []
    for kind_of_arg in forms[index(rng, len(forms))]:
        args.append(_branch(rng, kind_of_arg, height - 1, full))
    return Expr(name, args)


def _branch(rng: Generator, kind: str, height: int, full: bool) -> Expr:
    options = _options(kind, height, full)
    name, forms = options[index(rng, len(options))]
    return Expr(name, [_branch(rng, arg, height - 1, full) for arg in forms[index(rng, len(forms))]])


# The kinds of an operator's operands.
_Form = tuple[str, ...]
_LEAF: list[_Form] = [()]


@lru_cache
def _options(kind: str, height: int, full: bool) -> list[tuple[str, list[_Form]]]:
    """The words that can be the root of a tree of this kind and height, with the forms they can have."""
    options = [(name, _LEAF) for name, operand in OPERANDS.items() if operand.shape.kind == kind]
    if height == 0:
        return options
    if full:
        options = []
    for name, forms in _forms()[kind]:
        fits = [form for form in forms if all(_options(arg, height - 1, full) for arg in form)]
        if fits:
            options.append((name, fits))
    return options


@lru_cache(maxsize=1)
def _forms() -> dict[str, list[tuple[str, list[_Form]]]]:
    """For each kind of value the operators that can make it, and from which kinds of operands.

    Read off the shape rules, by trying them on the shapes of the operands (with and without the pixels of
    maps known).
    """
    examples: dict[str, list[Shape]] = {"scalar": [SCALAR], "vector": [], "matrix": []}
    for operand in OPERANDS.values():
        examples[operand.shape.kind] += [operand.shape, Shape(operand.shape.axes)]
    forms: dict[str, list[tuple[str, list[_Form]]]] = {kind: [] for kind in examples}
    for name, operator in OPERATORS.items():
        made: dict[str, list[_Form]] = {}
        for form in product(examples, repeat=operator.arity):
            for shapes in product(*(examples[kind] for kind in form)):
                of_kind = made.setdefault(operator.rule(*shapes).kind, [])
                if form not in of_kind:
                    of_kind.append(form)
        for kind, of_kind in made.items():
            forms[kind].append((name, of_kind))
    return forms
