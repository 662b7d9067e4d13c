"""The static check: shapes and sizes, before any data is seen."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from evoprune.errors import ExpressionError, ShapeError
from evoprune.expression.library import Function, resolve
from evoprune.expression.shapes import Shape
from evoprune.expression.text import point, span, to_text
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERANDS, OPERATORS

NOMINAL_SIZES = {
    "N": 2_000,
    "N+": 2_000,
    "N-": 2_000,
    "P": 1_024,
    "filters": 512,
    "weights": 4_608,
}
"""What a symbol counts for where sizes are limited: 2,000 images of 32×32 pixels, a layer of 512
filters over 512·3·3 weights. The limit must not depend on the data at hand, or the same function
would be valid on one network and not on another."""

MAX_ENTRIES = 2**25
"""The most entries a value may have at nominal sizes (256 MiB in float64, per channel and class)."""


def infer(expr: Expr) -> dict[Expr, Shape]:
    """The shape of every distinct subtree. `check` says which are too large.

    Raises ShapeError where an axis has more than MAX_CASES, far beyond what `check` lets pass.
    """
    shapes: dict[Expr, Shape] = {}
    for node in expr.distinct():
        shapes[node] = shape_of(node, shapes)
    return shapes


def shape_of(node: Expr, shapes: Mapping[Expr, Shape]) -> Shape:
    """The shape of a node from the known shapes of its operands."""
    if not node.args:
        return OPERANDS[node.name].shape
    return OPERATORS[node.name].rule(*[shapes[arg] for arg in node.args])


@lru_cache(maxsize=4096)
def nominal_entries(shape: Shape) -> int:
    """How many entries a value of this shape has at nominal sizes."""
    return shape.entries.size(NOMINAL_SIZES)


def check(function: str | Expr | Function) -> Shape:
    """The shape of the root of a function, given as a name, a text or a tree; without data.

    Raises ShapeError, pointing at the sub-expression, where a value would be larger than MAX_ENTRIES
    at nominal sizes.

    >>> str(check("mean_s(F)"))
    'vector [P]'
    """
    expr = resolve(function).expr
    if expr is None:
        raise ExpressionError(f"{function} draws its scores: it is not an expression and has no shape")
    return fitting(expr, NOMINAL_SIZES, MAX_ENTRIES)[expr]


def fitting(expr: Expr, sizes: Mapping[str, int], limit: int) -> dict[Expr, Shape]:
    """The shape of every distinct subtree.

    Raises ShapeError, pointing at the sub-expression, where a value would have more entries than the limit.
    """
    shapes: dict[Expr, Shape] = {}
    for node in expr.distinct():
        shape = shapes[node] = shape_of(node, shapes)
        size = shape.entries.size(sizes)
        if size > limit:
            got = ", ".join(f"{to_text(a)[:40]} is a {shapes[a]}" for a in node.args)
            symbols = sorted({s for each in shape.axes for s in each.symbols})
            raise ShapeError(
                f"{node.name} would make a {shape}: {size:,} entries where the limit is {limit:,} "
                f"(at {', '.join(f'{s} = {sizes[s]:,}' for s in symbols)}); its operands: {got}. "
                f"Reduce an operand first, as in mean_s(…), sum_g(…) or slice(…)\n{_at(expr, node)}"
            )
    return shapes


def check_scalar(expr: Expr) -> None:
    """Raise ShapeError where the root is not a scalar and so cannot be a score."""
    shape = infer(expr)[expr]
    if shape.axes:
        raise ShapeError(
            f"a score is a scalar, but this is a {shape}; mean_g(…), sum_g(…) or another _g operator "
            f"around it would do\n{_at(expr, expr)}"
        )


def _at(expr: Expr, node: Expr) -> str:
    index = next(i for i, each in enumerate(expr.walk()) if each == node)
    return point(to_text(expr), *span(expr, index))
