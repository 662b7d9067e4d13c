"""Static shapes, without data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from evoprune import Expr, check, functions, parse
from evoprune.errors import EvopruneError, ShapeError
from evoprune.expression.check import check_scalar, infer
from evoprune.scoring import reference
from strategies import expressions, fits


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("F", "matrix [N, P]"),
        ("F+", "matrix [N+, P]"),
        ("W_I", "vector [weights]"),
        ("add(F+, F-)", "matrix [max(N+, N-), P]"),
        ("mul(mean_s(F), var_g(F))", "vector [P]"),
        ("matmul(tran(F), F)", "matrix [P, P]"),
        ("inv(W)", "matrix [min(filters, weights), min(filters, weights)]"),
        ("tr(F)", "vector [N]"),
        ("tr(tran(F))", "scalar"),
        ("tr(mean_s(F))", "scalar"),
        ("outprod(W_I, B)", "matrix [weights, 4]"),
        ("outprod(B, B)", "matrix [4, 4]"),
        ("rbf(F+, F-)", "matrix [N+, N-]"),
        ("rbf(B, mean_s(F))", "matrix [4, P]"),
        ("geo(W)", "vector [weights]"),
        ("geo(B)", "scalar"),
        ("slice(F)", "vector [P]"),
        ("count_s(F)", "scalar"),
        ("sum_s(sum_s(F))", "scalar"),
        ("dot(F, W)", "scalar"),
    ],
)
def test_shapes(text: str, shape: str) -> None:
    assert str(check(text)) == shape
    assert str(check(parse(text))) == shape


def test_what_is_too_large_is_pointed_at() -> None:
    with pytest.raises(ShapeError) as caught:
        check("sum_g(add(W_I, outprod(F, F)))")
    shown = str(caught.value)
    assert "matrix [N·P, N·P]" in shown
    source, carets = shown.splitlines()[-2:]
    assert source[carets.index("^") : carets.rindex("^") + 1] == "outprod(F, F)"


def test_a_shape_of_too_many_cases_is_refused_at_once() -> None:
    expr = parse("add(F+, F-)")
    for _ in range(14):
        expr = Expr("outprod", (expr, expr))
    with pytest.raises(ShapeError, match="the limit is"):
        check(Expr("sum_g", (expr,)))
    with pytest.raises(ShapeError, match="over 4,096 cases"):
        infer(expr)


def test_a_function_is_a_name_a_text_or_a_tree() -> None:
    for function in ("xi_star", functions["xi_star"], functions["xi_star"].text, functions["xi_star"].expr):
        assert check(function).kind == "scalar"  # type: ignore[arg-type]
    with pytest.raises(EvopruneError, match="has no shape"):
        check("random")
    with pytest.raises(EvopruneError, match="got int"):
        check(3)  # type: ignore[arg-type]


def test_the_size_limit_lets_the_library_and_wide_layers_pass() -> None:
    for text in ("rbf(F, F)", "matmul(tran(W), W)", "matmul(tran(F), F)", "outprod(mean_s(F), mean_s(F))"):
        check(text)


def test_a_score_is_a_scalar() -> None:
    check_scalar(parse("var_g(F)"))
    with pytest.raises(ShapeError, match=r"vector \[P\].*mean_g"):
        check_scalar(parse("mean_s(F)"))


def test_a_mistake_in_the_text_is_a_parse_error() -> None:
    with pytest.raises(EvopruneError, match="did you mean"):
        check("meen_g(F)")


@given(expressions().filter(fits))
@settings(max_examples=300)
def test_static_shapes_are_those_of_the_values(expr: Expr) -> None:
    """The sizes of the axes, put in, are the shape of the value the definition gives."""
    sizes = {"N": 5, "N+": 2, "N-": 3, "P": 6, "filters": 4, "weights": 7}
    rng = np.random.default_rng(0)
    operands = {
        "F": rng.normal(size=(5, 6)), "F+": rng.normal(size=(2, 6)), "F-": rng.normal(size=(3, 6)),
        "W": rng.normal(size=(4, 7)), "W_I": rng.normal(size=7), "B": rng.normal(size=4),
    }  # fmt: skip
    value = reference.evaluate(expr, operands, (2, 3))
    assert value.shape == tuple(axis.size(sizes) for axis in infer(expr)[expr].axes)
