"""The simplified tree scores the same, on any data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoprune.errors import ScoringError
from evoprune.expression.check import infer
from evoprune.expression.library import functions
from evoprune.expression.simplify import simplify
from evoprune.expression.text import parse
from evoprune.expression.tree import Expr
from evoprune.scoring.arrays import score_arrays
from strategies import scalars, sites

IDLE = [
    "abs",
    "sq",
    "sqrt",
    "tran",
    "slice",
    "geo",
    "tr",
    "ridge",
    "inv",
    "mean_g",
    "count_s",
    "count_g",
    "sum_s",
]


@st.composite
def padded(draw: st.DrawFn) -> Expr:
    """A tree in which operators that may do nothing were put in, above any node."""
    expr = draw(scalars(5))
    for _ in range(draw(st.integers(1, 5))):
        place = draw(st.integers(0, expr.size - 1))
        node = expr.at(place)
        name = draw(st.sampled_from(IDLE))
        bigger = expr.replace(place, Expr(name, (node,), 0.5 if name == "ridge" else None))
        if not infer(bigger)[bigger].axes:
            expr = bigger
    return expr


def scored(expr: Expr, site: dict[str, Any]) -> np.ndarray | None:
    try:
        with np.errstate(all="ignore"):
            return score_arrays(expr, dtype="float64", executor="reference", **site)
    except (ScoringError, np.linalg.LinAlgError):  # not finite, or nothing to compare
        return None


@given(expr=padded(), site=sites())
@settings(max_examples=300)
def test_the_simplified_form_scores_the_same(expr: Expr, site: dict[str, Any]) -> None:
    smaller = simplify(expr)
    assert smaller.size <= expr.size
    assert infer(smaller)[smaller] == infer(expr)[expr]
    before = scored(expr, site)
    if before is not None and smaller != expr:
        np.testing.assert_array_equal(scored(smaller, site), before)


@given(padded())
def test_simplifying_again_changes_nothing(expr: Expr) -> None:
    once = simplify(expr)
    assert simplify(once) == once


@pytest.mark.parametrize(
    ("text", "smaller"),
    [
        ("abs(sq(mean_g(F)))", "sq(mean_g(F))"),
        ("abs(abs(sum_g(abs(sqrt(F)))))", "sum_g(sqrt(F))"),
        ("sqrt(abs(sum_g(W)))", "sqrt(sum_g(W))"),
        ("tran(geo(W_I))", "geo(W_I)"),
        ("sum_g(tran(tran(W)))", "sum_g(W)"),
        ("sum_g(tran(W_I))", "sum_g(W_I)"),
        ("mean_g(slice(sum_s(var_g(F))))", "var_g(F)"),
        ("count_g(ridge(abs(F)))", "count_g(F)"),
        ("abs(div(add(var_g(F), count_g(F)), std_g(F)))", "div(add(var_g(F), count_g(F)), std_g(F))"),
    ],
)
def test_what_is_simplified(text: str, smaller: str) -> None:
    assert str(simplify(parse(text))) == smaller


@pytest.mark.parametrize(
    "text",
    [
        "tr(tran(tran(F)))",  # the inner map knows its height and width, the outer one does not
        "tr(tran(mean_s(F)))",
        "sum_g(inv(abs(ridge(matmul(tran(sq(W)), sq(W))))))",  # `inv` adds no ridge over a literal one
        "sqrt(sq(mean_g(F)))",  # the square of a very small number is 0
        "sq(sqrt(mean_g(F)))",
        "std_g(var_g(F))",  # 0, which cannot be written
        "div(var_g(F), var_g(F))",
        "sum_g(tran(matmul(W, tran(W))))",  # sums in another order
        "sum_g(abs(inv(matmul(tran(sq(W)), sq(W)))))",  # the inverse of positive entries may be negative
        "count_s(tran(W))",
        "abs(sub(var_g(F), var_g(W)))",
    ],
)
def test_what_is_not(text: str) -> None:
    assert str(simplify(parse(text))) == text


def test_the_library_is_as_small_as_it_gets() -> None:
    for function in functions.values():
        if function.expr is not None:
            assert simplify(function.expr) == function.expr
