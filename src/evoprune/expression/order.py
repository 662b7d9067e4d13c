"""Which expressions depend on the order of images or filters.

Permuting the images permutes the rows of `F`, `F+` and `F-`; permuting a layer's channels permutes
the rows of `W`. An axis that moves along is *loose*. A value is safe while loose axes are summed
up, or paired with themselves; cutting them, padding them, or pairing them with something else makes
it depend on an order that means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from evoprune.expression.check import infer
from evoprune.expression.shapes import Shape
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERATORS

# An axis: None where its order is fixed, else what moves, as a nested name: "N", ("N", None).
_Axis = object | None
Axes = tuple[_Axis, ...]

_LEAVES: dict[str, Axes] = {
    "F": ("N", None),
    "F+": ("N+", None),
    "F-": ("N-", None),
    "W": ("filters", None),
    "W_I": (None,),
    "B": (None,),
}


class Dependent(Exception):
    """Raised with the reason."""


def order_dependence(expr: Expr) -> tuple[Expr, str] | None:
    """The first sub-expression whose value depends on the order of rows, and why; None if none does."""
    shapes = infer(expr)
    axes: dict[Expr, Axes] = {}
    for node in expr.distinct():
        try:
            axes[node] = axes_of(node, shapes, axes)
        except Dependent as reason:
            return node, str(reason)
    return None


def axes_of(node: Expr, shapes: Mapping[Expr, Shape], axes: Mapping[Expr, Axes]) -> Axes:
    """A node's axes from what is known of its operands; raises Dependent with the reason."""
    if not node.args:
        return _LEAVES[node.name]
    args = [(shapes[arg], axes[arg]) for arg in node.args]
    name = OPERATORS[node.name].base
    group = OPERATORS[node.name].group
    (shape, a), b = args[0], args[-1][1]
    if group == "elementwise":
        if len(args) == 2:
            return _elementwise(a, b)
        if name == "ridge" and shape.is_square and a[0] != a[1]:
            raise Dependent("ridge adds ρ·I to a matrix whose rows and columns move differently")
        return a
    if group == "statistics":
        return () if node.name.endswith("_g") or name == "count" else a[1:]
    if name == "tran":
        return a[::-1]
    if name == "dot":
        _pair(_flat(a), _flat(b), "dot")
        return ()
    if name == "outprod":
        return (_flat(a), _flat(b))
    if name == "rbf":
        _pair(_column(a), _column(b), "rbf")
        return (a[0] if a else None, b[0] if b else None)
    if name == "matmul":
        if not a or not b:
            return a or b
        _pair(a[-1], b[0], "matmul")
        return a[:-1] + b[1:]
    if name == "tr" and shape.maps:
        return a[:-1]
    if name in ("tr", "inv") and len(a) == 2:
        if (a[0] is not None or a[1] is not None) and not (shape.is_square and a[0] == a[1]):
            raise Dependent(f"{name} cuts rows that have no order of their own")
        return () if name == "tr" else a
    if name == "inv" or not a:
        return a
    # slice of anything, tr and geo of a vector. The two middle entries of a vector of even length
    # always tie for geo, so that the first of them is picked by its place.
    if a[0] is not None and not (name == "geo" and len(a) == 2):
        raise Dependent(f"{name} picks one of several rows that have no order of their own")
    return a[1:]


def _elementwise(a: Axes, b: Axes) -> Axes:
    if not a or not b:
        return a or b
    _pair(a[-1], b[-1], "an elementwise operator")
    if len(a) == 2 and len(b) == 2:
        _pair(a[0], b[0], "an elementwise operator")
    return max(a, b, key=len)


def _pair(x: _Axis, y: _Axis, who: str) -> None:
    if x != y:
        raise Dependent(f"{who} pairs rows that have no order of their own with others")


def _flat(a: Axes) -> _Axis:
    return None if all(each is None for each in a) else a if len(a) > 1 else a[0]


def _column(a: Axes) -> _Axis:
    return a[1] if len(a) == 2 else None
