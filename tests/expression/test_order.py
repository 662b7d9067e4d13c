"""Which trees depend on the order of images or filters."""

from __future__ import annotations

import pytest

from evoprune import functions, parse
from evoprune.expression.order import order_dependence


@pytest.mark.parametrize(
    "text",
    [
        "sum_g(slice(F))",
        "sum_g(mul(F+, F-))",
        "tr(W)",
        "sum_g(inv(F))",
        "sum_g(add(F, W))",
        "dot(F, tran(F))",
        "dot(F+, F-)",
        "slice(tr(F))",
        "sum_g(mul(F, tr(F)))",
        "tr(matmul(F+, tran(F-)))",
        "sum_g(matmul(tran(F+), F-))",
        "sum_g(rbf(tran(F), tran(W)))",
        "geo(tr(F))",
        "tr(outprod(tr(F+), tr(F)))",
        "dot(var_g(F), F)",
        "tr(tr(F))",
        "sum_g(sub(B, tr(F)))",
    ],
)
def test_dependent(text: str) -> None:
    expr = parse(text)
    assert expr.order_dependent
    found = order_dependence(expr)
    assert found is not None
    node, reason = found
    assert node in set(expr.walk())
    assert "order of their own" in reason


@pytest.mark.parametrize(
    "text",
    [
        "sum_g(slice(mean_s(F)))",
        "sum_g(slice(tran(F)))",
        "sum_g(mul(F, abs(F)))",
        "tr(matmul(tran(F), F))",
        "tr(matmul(F, tran(F)))",
        "sum_g(inv(matmul(F, tran(F))))",
        "sum_g(inv(rbf(F+, F+)))",
        "var_g(tr(F+))",
        "tr(rbf(W, W))",
        "dot(F, F)",
        "sum_g(geo(W))",
        "slice(B)",
        "tr(mean_s(F))",
        "geo(B)",
        "tr(outprod(B, W_I))",
        "sum_g(add(mean_s(F), W_I))",
        "sum_g(mul(tr(F), tr(F)))",
    ],
)
def test_independent(text: str) -> None:
    assert not parse(text).order_dependent


def test_the_library_is_independent() -> None:
    assert not any(f.expr is not None and f.expr.order_dependent for f in functions.values())
