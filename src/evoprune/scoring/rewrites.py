"""Exact rewrites before planning: the same scores, reached through sums instead of single images.

A matrix product or outer product that is summed up at once needs none of its entries: the sum of all
entries of A·B is the dot product of the row sum of A and the column sum of B. What reduces each image to
one number and is linear, such as `tr`, moves inside a scale or shift that is known only after the pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from evoprune.expression.check import infer
from evoprune.expression.shapes import Shape
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERATORS
from evoprune.scoring.steps import MAPS


def rewritten(expr: Expr) -> Expr:
    """The expression in a form that needs the rows of single images less often.

    >>> str(rewritten(parse("sum_g(matmul(F, tran(F)))")))
    'dot(sum_s(F), sum_s(tran(tran(F))))'
    """
    shapes = infer(expr)

    def of(node: Expr, args: list[Expr]) -> Expr:
        if not node.args or not node.operands & MAPS:
            return node
        new = Expr(node.name, args, node.rho)
        below = node.args[0]
        if below.name == "matmul":
            return _of_product(new, [shapes[arg] for arg in below.args]) or new
        if below.name == "outprod":
            return _of_outer_product(new) or new
        return _linear(node, new, shapes)

    return expr.fold(of)


def _of_product(node: Expr, shapes: list[Shape]) -> Expr | None:
    """A sum, mean or trace of a matrix product of values that both come of maps."""
    a, b = node.args[0].args
    ranks = [len(shape.axes) for shape in shapes]
    if not (a.operands & MAPS and b.operands & MAPS) or 0 in ranks:
        return None
    if shapes[0].axes[-1] != shapes[1].axes[0]:
        return None  # one of them is cut
    if node.name == "tr":
        closed = ranks == [2, 2] and shapes[0].axes[0] == shapes[1].axes[1]
        return Expr("dot", (a, Expr("tran", (b,)))) if closed else None
    if OPERATORS[node.name].base not in ("sum", "mean") or (node.name.endswith("_s") and ranks == [2, 2]):
        return None
    over_rows = f"{OPERATORS[node.name].base}_s"
    left = a if ranks[0] == 1 else Expr(over_rows, (a,))
    right = b if ranks[1] == 1 else Expr(over_rows, (Expr("tran", (b,)),))
    return Expr("dot", (left, right))


def _of_outer_product(node: Expr) -> Expr | None:
    """A sum, mean or deviation of an outer product, of those of its factors."""

    def each(name: str) -> list[Expr]:
        return [Expr(name, (factor,)) for factor in node.args[0].args]

    if node.name in ("sum_g", "mean_g"):
        return Expr("mul", each(node.name))
    if node.name not in ("var_g", "std_g"):
        return None
    of_a, of_b = each("var_g")
    squared_a, squared_b = (Expr("sq", (mean,)) for mean in each("mean_g"))
    around = Expr("add", (Expr("mul", (of_a, squared_b)), Expr("mul", (squared_a, of_b))))
    variance = Expr("add", (Expr("mul", (of_a, of_b)), around))
    return variance if node.name == "var_g" else Expr("sqrt", (variance,))


def _linear(node: Expr, new: Expr, shapes: Mapping[Expr, Shape]) -> Expr:
    """`tr`, or a sum or mean over the columns, taken into what its map is scaled and shifted by."""
    over_columns = node.name in ("sum_s", "mean_s") and node.args[0].name == "tran"
    if over_columns:
        old, inner = node.args[0].args[0], new.args[0].args[0]
    elif node.name == "tr" and shapes[node.args[0]].maps:
        old, inner = node.args[0], new.args[0]
    else:
        return new

    def reduced(rows: Expr) -> Expr:
        return Expr(node.name, (Expr("tran", (rows,)) if over_columns else rows,))

    outside: list[tuple[str, bool, Expr]] = []  # operator, whether the map is its first operand, the other
    while old.name in ("add", "sub", "mul", "div"):
        first = len(shapes[old.args[0]].axes) == 2
        rows, other = old.args if first else old.args[::-1]
        of_rows, by = shapes[rows], shapes[other]
        if len(of_rows.axes) != 2 or not other.operands & MAPS:
            break
        if old.name in ("mul", "div"):
            moves = not by.axes and (first or old.name == "mul")
        else:
            moves = by.axes == of_rows.axes[1:] and (over_columns or by.maps)
        moves = moves and (over_columns or of_rows.maps)
        if not moves:
            break
        value = inner.args[1 if first else 0]
        if by.axes:
            value = Expr(node.name.replace("_s", "_g"), (value,))
        outside.append((old.name, first, value))
        old, inner = rows, inner.args[0 if first else 1]
    result = reduced(inner)
    for name, first, value in reversed(outside):
        result = Expr(name, (result, value) if first else (value, result))
    return result if outside else new
