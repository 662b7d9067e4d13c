"""The words of the language: 6 operands and 23 operators, in one table.

Docs, parser, shape check, LaTeX and random generation all read it. Adding an operator means a row
here, a kernel in `scoring/execute.py` and a definition in `scoring/reference.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evoprune.expression import shapes
from evoprune.expression.shapes import Shape

DEFAULT_RHO = 1e-4
"""What `ridge` adds where no number is given, and what `inv` adds to a square matrix."""

TINY = 1e-12
"""A divisor smaller than this in size makes the quotient 0."""

# How tightly a LaTeX form binds; a looser operand is put in parentheses.
SUM, PRODUCT, POWER, ATOM = 1, 2, 3, 4


@dataclass(frozen=True)
class Operand:
    """A leaf: what is known about a channel."""

    name: str
    shape: Shape
    latex: str
    doc: str
    label_aware: bool = False


@dataclass(frozen=True)
class Operator:
    """An inner node: its group, its rule for shapes, its form in LaTeX, and what it does.

    `latex` has a field for each operand; `binds` is how tightly the whole holds together and
    `needs` what each operand must at least be, so as not to be put in parentheses.
    """

    name: str
    group: str
    arity: int
    rule: Callable[..., Shape]
    latex: str
    doc: str
    binds: int = ATOM
    needs: tuple[int, ...] = (0, 0)
    commutative: bool = False

    @property
    def base(self) -> str:
        """The operator's name in the paper: `var` for both `var_g` and `var_s`."""
        return self.name.removesuffix("_g").removesuffix("_s")


OPERANDS = {
    operand.name: operand
    for operand in (
        Operand("F", Shape((shapes.N, shapes.P), maps=True), r"\mathcal{F}", "the channel's feature maps: a row per image, a column per pixel"),
        Operand("F+", Shape((shapes.N_PLUS, shapes.P), maps=True), r"\mathcal{F}^{+}", "the rows of `F` whose label is the class at hand", label_aware=True),
        Operand("F-", Shape((shapes.N_MINUS, shapes.P), maps=True), r"\mathcal{F}^{-}", "the rows of `F` whose label is another", label_aware=True),
        Operand("W", Shape((shapes.FILTERS, shapes.WEIGHTS)), r"\mathcal{W}", "the layer that produced the channel: a row per filter, a column per weight"),
        Operand("W_I", Shape((shapes.WEIGHTS,)), r"\mathcal{W}_I", "the channel's own filter, a row of `W`"),
        Operand("B", Shape((shapes.FOUR,)), r"\mathcal{B}", "the channel's batch-norm: scale, offset, running mean, running variance"),
    )
}  # fmt: skip


def _statistic(base: str, what: str) -> tuple[Operator, Operator]:
    over_rows = shapes.whole if base == "count" else shapes.over_rows
    rows = (
        "the number of rows"
        if base == "count"
        else f"{what} over the rows: matrix to vector, vector to scalar"
    )
    every = "the number of entries" if base == "count" else f"{what} over all entries"
    latex = rf"\mathrm{{{{{base}}}}}_"
    return (
        Operator(f"{base}_g", "statistics", 1, shapes.whole, latex + "g({0})", every),
        Operator(f"{base}_s", "statistics", 1, over_rows, latex + "s({0})", rows),
    )


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("add", "elementwise", 2, shapes.elementwise, "{0} + {1}", "sum; the shorter is padded with 0", SUM, (SUM, SUM), commutative=True),
        Operator("sub", "elementwise", 2, shapes.elementwise, "{0} - {1}", "difference; the shorter is padded with 0", SUM, (SUM, PRODUCT)),
        Operator("mul", "elementwise", 2, shapes.elementwise, r"{0} \times {1}", "product; the shorter is padded with 1", PRODUCT, (PRODUCT, POWER), commutative=True),
        Operator("div", "elementwise", 2, shapes.elementwise, r"\frac{{{0}}}{{{1}}}", "quotient, 0 where the divisor is below 1e-12 in size; the shorter is padded with 1", POWER),
        Operator("abs", "elementwise", 1, shapes.same, r"\left|{0}\right|", "absolute value"),
        Operator("sq", "elementwise", 1, shapes.same, "{{{0}}}^{{2}}", "square", POWER, (ATOM,)),
        Operator("sqrt", "elementwise", 1, shapes.same, r"\sqrt{{\left|{0}\right|}}", "square root of the absolute value"),
        Operator("ridge", "elementwise", 1, shapes.same, "{0} + {rho}", "adds ρ (1e-4, or the number given) to every entry, but ρ·I to a matrix that is square by construction", SUM, (SUM,)),
        Operator("tr", "matrix", 1, shapes.trace, r"\mathrm{{tr}}({0})", "trace of each feature map; of another matrix, of its leading square block; of another vector, its first entry"),
        Operator("matmul", "matrix", 2, shapes.matrix_product, r"{0} \, {1}", "matrix product, the longer inner side cut to the shorter; a scalar multiplies", PRODUCT, (PRODUCT, POWER)),
        Operator("inv", "matrix", 1, shapes.inverse, "{{{0}}}^{{-1}}", "inverse of a square matrix plus ρ·I, of another's leading square block; the reciprocal of a scalar or of each entry", POWER, (ATOM,)),
        Operator("dot", "matrix", 2, shapes.inner, r"\left\langle {0}, {1} \right\rangle", "inner product of all entries, row by row, the longer cut", commutative=True),
        Operator("outprod", "matrix", 2, shapes.outer, r"{0} \otimes {1}", "outer product of all entries, row by row", PRODUCT, (POWER, POWER)),
        Operator("tran", "matrix", 1, shapes.transposed, r"{{{0}}}^{{\top}}", "transposed matrix; leaves the rest", POWER, (ATOM,)),
        *_statistic("sum", "sum"),
        *_statistic("prod", "product"),
        *_statistic("mean", "mean"),
        *_statistic("std", "standard deviation of the population"),
        *_statistic("var", "variance of the population"),
        *_statistic("count", "count"),
        Operator("rbf", "special", 2, shapes.between_rows, r"\mathrm{{rbf}}({0}, {1})", "matrix of exp(−‖a−b‖²/2) between rows, the narrower padded with 0"),
        Operator("geo", "special", 1, shapes.over_rows, r"\mathrm{{geo}}({0})", "the row with the least summed distance to the other rows, the first of equals"),
        Operator("slice", "special", 1, shapes.over_rows, r"\mathrm{{slice}}({0})", "first row of a matrix, first entry of a vector"),
    )
}  # fmt: skip

GROUPS = ("elementwise", "matrix", "statistics", "special")
