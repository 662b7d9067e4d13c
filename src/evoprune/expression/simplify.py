"""A smaller tree with the same scores, where that is certain.

Only rewrites are made after which every entry is the same number, for all data: no sum is reordered, no
protected division or ridge dropped, and what a value knows of its shape (square by construction, height and
width) stays. Constants cannot be written down, so `sub(x, x)` stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from evoprune.expression.check import infer, shape_of
from evoprune.expression.shapes import Shape
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERATORS

_NEVER_NEGATIVE = frozenset({"abs", "sq", "sqrt", "rbf"})
_KEEPS_SIGN = frozenset(
    {"add", "mul", "div", "matmul", "dot", "outprod", "ridge", "tr", "tran", "geo", "slice"}
)
_OF_SCALAR_ITSELF = frozenset({"tr", "tran", "slice", "geo", "sum", "prod", "mean"})
_SAME_ENTRIES = frozenset({"abs", "sq", "sqrt", "ridge"})


def simplify(expr: Expr) -> Expr:
    """The tree with everything left out that changes no score.

    >>> str(simplify(parse("abs(sq(mean_g(slice(sum_g(F)))))")))
    'sq(sum_g(F))'
    """
    shapes = infer(expr)
    signs: dict[Expr, bool] = {}

    def rebuilt(node: Expr, args: list[Expr]) -> Expr:
        if node.name == "inv" and args[0].name == "ridge" != node.args[0].name:
            # Over a literal ridge `inv` adds none of its own, so that none may appear here.
            args = [node.args[0]]
        new = _reduced(Expr(node.name, args, node.rho) if node.args else node, shapes, signs)
        unknown = [new]
        while unknown:
            below = [arg for arg in unknown[-1].args if arg not in signs]
            if not below:
                each = unknown.pop()
                shapes[each] = shape_of(each, shapes)
                signs[each] = _never_negative(each, shapes, signs)
            unknown += below
        return new

    return expr.fold(rebuilt)


def _reduced(node: Expr, shapes: dict[Expr, Shape], signs: Mapping[Expr, bool]) -> Expr:
    """The node, or a smaller one in its place; its operands are as small as they get."""
    if not node.args:
        return node
    arg = node.args[0]
    shape = shapes[arg]
    base = OPERATORS[node.name].base
    if node.name == "abs" and signs[arg]:
        return arg
    if node.name in ("sq", "sqrt") and arg.name == "abs":
        return Expr(node.name, arg.args)
    if base in _OF_SCALAR_ITSELF and not shape.axes:
        return arg
    if node.name == "tran" and len(shape.axes) == 1 and not shape.maps:
        return arg
    if node.name == "tran" and arg.name == "tran" and not shapes[arg.args[0]].maps:
        return arg.args[0]
    if base == "count":
        while arg.name in _SAME_ENTRIES:
            arg = arg.args[0]
        return Expr(node.name, (arg,))
    return node


def _never_negative(node: Expr, shapes: Mapping[Expr, Shape], signs: Mapping[Expr, bool]) -> bool:
    if not node.args:
        return False
    base = OPERATORS[node.name].base
    if base in _NEVER_NEGATIVE or base in ("std", "var", "count"):
        return True
    known = all(signs[arg] for arg in node.args)
    if base == "inv":
        return known and len(shapes[node.args[0]].axes) < 2
    return known and (base in _KEEPS_SIGN or base in ("sum", "prod", "mean"))
