"""The functions that come with the package, as text.

The ten hand-made ones are the paper's SOAP (state-of-the-art population); the evolved ones are the
paper's equations. The published formulas of SOAP carry no ridge in their denominators, where dead
channels (variance 0) would win or break them; the ridges written here are those of the published
experiments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from evoprune.errors import ExpressionError
from evoprune.expression.text import parse, suggest
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERANDS, OPERATORS


@dataclass(frozen=True)
class Function:
    """A named function: its text, where it comes from, and what it rewards in a sentence.

    `random` is the one function that is not an expression: its `text` is its name, its `expr` None.
    """

    name: str
    group: str
    text: str
    source: str
    rewards: str

    @cached_property
    def expr(self) -> Expr | None:
        """The tree, or None for `random`."""
        return None if self.name == RANDOM else parse(self.text)

    @property
    def latex(self) -> str:
        """The formula in LaTeX."""
        return rf"\mathrm{{{self.name}}}" if self.expr is None else self.expr.latex()

    def __str__(self) -> str:
        return self.text


RANDOM = "random"
_MEANS = "sub(mean_g(F+), mean_g(F-))"
_THIRD = "add(mul(mul(std_g(mean_s(F)), var_g(F-)), mean_s(F)), sub(var_g(F+), mean_g(F-)))"
_RATIOS = "add(div(var_g(F-), ridge(var_g(F+), 0.05)), div(var_g(F+), ridge(var_g(F-), 0.05)))"
_SYMMETRIC = "add(div(var_g(F+), ridge(var_g(F-), 0.05)), div(var_g(F-), ridge(var_g(F+), 0.05)))"
_VARIANCES = "ridge(add(var_g(F+), var_g(F-)), 0.05)"
_SHIFT = "sub(mean_s(F+), mean_s(F))"
_CENTRED = "sub(F, mean_s(F))"
_CROSS = "div(sum_g(rbf(F+, F-)), mul(count_s(F+), count_s(F-)))"

_TABLE = (
    Function("l1", "soap", "sum_g(abs(W_I))",
        "Li et al. 2017, Pruning Filters for Efficient ConvNets",
        "Filters with large weights."),
    Function("l2", "soap", "sqrt(sum_g(sq(W_I)))",
        "He et al. 2018, Soft Filter Pruning",
        "Filters with large weights, single large ones above all."),
    Function("bn_scale", "soap", "abs(slice(B))",
        "Liu et al. 2017, Learning Efficient Convolutional Networks through Network Slimming",
        "Channels that their batch-norm scales up."),
    Function("fpgm", "soap", "sqrt(sum_g(sq(sub(W_I, geo(W)))))",
        "He et al. 2019, Filter Pruning via Geometric Median",
        "Filters far from the layer's most central filter, which the others cannot stand in for."),
    Function("di", "soap",
        f"mul(count_s(F+), matmul(matmul(tran({_SHIFT}), inv(ridge(matmul(tran({_CENTRED}), {_CENTRED})))), {_SHIFT}))",
        "Kung and Hou 2019, Discriminant Information",
        "Maps whose class means lie far from the overall mean, measured by the scatter of all maps."),
    Function("mmd", "soap",
        "sub(sub(add(div(sum_g(rbf(F+, F+)), sq(count_s(F+))), div(sum_g(rbf(F-, F-)), sq(count_s(F-)))), "
        f"{_CROSS}), {_CROSS})",
        "Gretton et al. 2012, A Kernel Two-Sample Test",
        "Maps whose distribution within a class differs from that outside it."),
    Function("abs_snr", "soap", f"div(abs({_MEANS}), ridge(add(std_g(F+), std_g(F-))))",
        "Golub et al. 1999, as adapted by Liu et al. 2020",
        "Maps whose mean within a class is far from that outside it, in standard deviations."),
    Function("t_test", "soap",
        f"div(abs({_MEANS}), sqrt(ridge(add(div(var_g(F+), count_s(F+)), div(var_g(F-), count_s(F-))))))",
        "Lehmann and Romano 2006, as adapted by Liu et al. 2020",
        "Maps whose class means differ by more than chance would let them."),
    Function("fdr", "soap", f"div(sq({_MEANS}), ridge(add(var_g(F+), var_g(F-))))",
        "Pavlidis et al. 2001, as adapted by Liu et al. 2020",
        "Maps whose class means are far apart beside the variance within the classes."),
    Function("sym_div", "soap", f"add({_SYMMETRIC}, div(sq({_MEANS}), {_VARIANCES}))",
        "Mak and Kung 2006, as adapted by Liu et al. 2020",
        "Maps whose variance or mean within a class differs from that outside it."),
    Function("xi_star", "evolved", f"add({_RATIOS}, div(sum_g(sq({_THIRD})), {_VARIANCES}))",
        "Liu et al. 2022, Eqn. 3: the winner of the paper's evolution",
        "Maps whose variance differs between a class and the rest, and whose average map is strong beside it."),
    Function("xi_1", "evolved", f"add(div(sum_g(sq(sub(mean_s(F), var_g(F-)))), {_VARIANCES}), var_g(F+))",
        "Liu et al. 2022, supplement",
        "Maps with a strong average beside their variance, and with much variance within a class."),
    Function("xi_2", "evolved", "var_g(F+)",
        "Liu et al. 2022, supplement",
        "Maps that vary much within a class."),
    Function("xi_3", "evolved", "var_g(W_I)",
        "Liu et al. 2022, supplement",
        "Filters whose weights vary much."),
    Function("xi_imagenet", "evolved",
        "div(sq(sq(div(var_g(mean_s(F+)), mul(std_g(tr(F+)), mean_g(F-))))), var_g(sqrt(F)))",
        "Liu et al. 2022, supplement: the winner of the evolution on ImageNet alone",
        "Maps whose class average has a pattern, steady over images, where other classes leave them quiet."),
    Function("xi_star_code", "evolved", f"sum_g(add({_RATIOS}, div(sq({_THIRD}), {_VARIANCES})))",
        "Liu et al. 2022, the published code",
        "As xi_star, with its variance ratios counted once for each pixel."),
    Function("mean_activation", "baseline", "mean_g(F)",
        "a plain baseline, not part of SOAP",
        "Channels that are active."),
    Function(RANDOM, "baseline", RANDOM,
        "a plain baseline, not part of SOAP and not an expression",
        "Nothing: a seeded draw."),
)  # fmt: skip


class Library(Mapping[str, Function]):
    """Names to functions, in the order of the table."""

    def __init__(self, table: tuple[Function, ...]) -> None:
        self._functions = {function.name: function for function in table}

    def __getitem__(self, name: str) -> Function:
        try:
            return self._functions[name]
        except KeyError:
            raise UnknownFunction(str(name), list(self._functions)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        return f"<functions: {', '.join(self)}>"


class UnknownFunction(ExpressionError, KeyError):
    """There is no function of this name."""

    def __init__(self, name: str, known: list[str]) -> None:
        hint = suggest(name, [*known, *OPERANDS, *OPERATORS])
        self.message = f"there is no function {name[:60]!r}{hint}\n  functions: {' '.join(known)}"
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


functions = Library(_TABLE)
"""The library: name to function."""

SOAP = tuple(name for name, function in functions.items() if function.group == "soap")
EVOLVED = tuple(name for name, function in functions.items() if function.group == "evolved")


def resolve(function: str | Expr | Function) -> Function:
    """A function by its name, its text or its tree; a text outside the library is its own name."""
    if isinstance(function, Function):
        return function
    if isinstance(function, Expr):
        return _own(function)
    if not isinstance(function, str):
        raise ExpressionError(
            f"expected a function's name, its text or an Expr, got {type(function).__name__}"
        )
    name = function.strip()
    if name in functions:
        return functions[name]
    if name.isidentifier() and name not in OPERANDS and name not in OPERATORS:
        raise UnknownFunction(name, list(functions))
    return _own(parse(function))


def resolve_all(functions: str | Expr | Function | Iterable[str | Expr | Function]) -> tuple[Function, ...]:
    """One or many functions."""
    if isinstance(functions, str | Expr | Function) or not isinstance(functions, Iterable):
        return (resolve(functions),)
    return tuple(resolve(function) for function in functions)


def _own(expr: Expr) -> Function:
    text = str(expr)
    return Function(text, "own", text, "given as text", "")
