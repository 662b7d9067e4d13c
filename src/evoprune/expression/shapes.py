"""Symbolic shapes: what an expression's values look like before any data is seen.

An axis is a length known by name only: the number of images `N`, of images with and without the
label `N+` and `N-`, of pixels `P`, of `filters`, of `weights` a filter has, a number, or the max,
min and products of these. Two axes are *the same* where their canonical forms are equal; equal
numbers in one data set never count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from evoprune.errors import ShapeError

MAX_CASES = 4_096
"""The most symbols that the max of mins of products for the length of an axis may be written with."""

# A product of symbols with a whole factor: (4, ("N", "P")) is 4·N·P.
Monomial = tuple[int, tuple[str, ...]]


@dataclass(frozen=True)
class Axis:
    """A length: the max over its alternatives of the min over their products of symbols.

    Lengths are at least 1, so products distribute over max and min and every axis has this one flat
    form. Flat matters: shapes of very deep trees neither nest nor recurse.
    """

    alternatives: frozenset[frozenset[Monomial]]

    def size(self, sizes: Mapping[str, int]) -> int:
        """The length where the symbols have these sizes."""
        return max(
            min(factor * prod(sizes[symbol] for symbol in symbols) for factor, symbols in group)
            for group in self.alternatives
        )

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols the length depends on."""
        return frozenset(s for group in self.alternatives for _, symbols in group for s in symbols)

    def __str__(self) -> str:
        groups = sorted(_call("min", sorted(map(_monomial_text, group))) for group in self.alternatives)
        return _call("max", groups)


def axis(symbol: str | int) -> Axis:
    """The axis of one symbol, or of a fixed length."""
    monomial: Monomial = (symbol, ()) if isinstance(symbol, int) else (1, (symbol,))
    return Axis(frozenset({frozenset({monomial})}))


@lru_cache(maxsize=4096)
def longest(a: Axis, b: Axis) -> Axis:
    """max(a, b)"""
    return _canonical(a.alternatives | b.alternatives)


@lru_cache(maxsize=4096)
def shortest(a: Axis, b: Axis) -> Axis:
    """min(a, b)"""
    return _canonical(x | y for x in a.alternatives for y in b.alternatives)


@lru_cache(maxsize=4096)
def product(a: Axis, b: Axis) -> Axis:
    """a · b"""
    return _canonical(
        frozenset((f * g, tuple(sorted(s + t))) for f, s in x for g, t in y)
        for x in a.alternatives
        for y in b.alternatives
    )


def _canonical(groups: Iterable[frozenset[Monomial]]) -> Axis:
    """Without what another part is never shorter (in a min) or never longer (in a max) than."""
    groups = set(groups)
    if sum(len(symbols) + 1 for group in groups for _, symbols in group) > MAX_CASES:
        raise ShapeError(
            f"the length of an axis has over {MAX_CASES:,} cases: too many products, max and min of the "
            "numbers of images, pixels, filters and weights; reduce an operand first, as in mean_g(…)"
        )
    reduced = {
        frozenset(m for m in group if not any(_at_most(n, m) and n != m for n in group)) for group in groups
    }
    return Axis(frozenset(g for g in reduced if not any(g != h and _min_at_most(g, h) for h in reduced)))


def _at_most(a: Monomial, b: Monomial) -> bool:
    """Whether a ≤ b whatever the symbols' sizes: b is a times lengths, and those are at least 1."""
    return a[0] <= b[0] and not Counter(a[1]) - Counter(b[1])


def _min_at_most(g: frozenset[Monomial], h: frozenset[Monomial]) -> bool:
    return all(any(_at_most(a, b) for a in g) for b in h)


def _monomial_text(monomial: Monomial) -> str:
    factor, symbols = monomial
    return "·".join(([str(factor)] if factor != 1 or not symbols else []) + list(symbols))


def _call(name: str, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{name}({', '.join(parts)})"


N, N_PLUS, N_MINUS, P = axis("N"), axis("N+"), axis("N-"), axis("P")
FILTERS, WEIGHTS, ONE, FOUR = axis("filters"), axis("weights"), axis(1), axis(4)


@dataclass(frozen=True)
class Shape:
    """A scalar, a vector or a matrix, by its axes.

    `maps` says that the last axis is the pixels of feature maps whose height and width are still
    known.
    """

    axes: tuple[Axis, ...] = ()
    maps: bool = False

    @property
    def kind(self) -> str:
        """`scalar`, `vector` or `matrix`."""
        return ("scalar", "vector", "matrix")[len(self.axes)]

    @property
    def is_square(self) -> bool:
        """Square by construction: both axes are the same symbol."""
        return len(self.axes) == 2 and self.axes[0] == self.axes[1]

    @property
    def entries(self) -> Axis:
        """The number of entries."""
        result = ONE
        for each in self.axes:
            result = product(result, each)
        return result

    def __str__(self) -> str:
        return self.kind + (f" [{', '.join(map(str, self.axes))}]" if self.axes else "")


SCALAR = Shape()


def same(x: Shape) -> Shape:
    """Entry by entry, of one operand."""
    return x


def elementwise(x: Shape, y: Shape) -> Shape:
    """Entry by entry, of two operands: a vector lies along a matrix's columns, the shorter is padded."""
    if not x.axes or not y.axes:
        axes = x.axes or y.axes
    else:
        axes = (longest(x.axes[-1], y.axes[-1]),)
        rows = [s.axes[0] for s in (x, y) if len(s.axes) == 2]
        if rows:
            axes = (rows[0] if len(rows) == 1 else longest(*rows), *axes)
    return Shape(axes, maps=(x.maps or y.maps) and axes[-1] == P)


def matrix_product(x: Shape, y: Shape) -> Shape:
    """NumPy's `@` with the inner sides cut to the shorter; a scalar multiplies."""
    if not x.axes or not y.axes:
        return Shape(x.axes or y.axes)
    return Shape(x.axes[:-1] + (y.axes[1:] if len(y.axes) == 2 else ()))


def inverse(x: Shape) -> Shape:
    """A square matrix, or the leading square block of another; entry by entry for the rest."""
    if len(x.axes) < 2 or x.is_square:
        return Shape(x.axes)
    side = shortest(*x.axes)
    return Shape((side, side))


def trace(x: Shape) -> Shape:
    """One number, but one for each of several feature maps."""
    return Shape(x.axes[:1]) if x.maps and len(x.axes) == 2 else SCALAR


def inner(x: Shape, y: Shape) -> Shape:
    """One number."""
    return SCALAR


def outer(x: Shape, y: Shape) -> Shape:
    """A row per entry of the first, a column per entry of the second."""
    return Shape((x.entries, y.entries))


def transposed(x: Shape) -> Shape:
    """Rows and columns exchanged."""
    return Shape(x.axes[::-1])


def whole(x: Shape) -> Shape:
    """One number of all entries."""
    return SCALAR


def over_rows(x: Shape) -> Shape:
    """Rows are summed up: a matrix gives a vector, a vector a scalar."""
    return Shape(x.axes[1:], maps=x.maps and len(x.axes) == 2)


def between_rows(x: Shape, y: Shape) -> Shape:
    """A row per row of the first, a column per row of the second."""
    return Shape(tuple(s.axes[0] if s.axes else ONE for s in (x, y)))
