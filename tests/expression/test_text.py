"""Parsing and printing, and errors that point at the place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoprune import Expr, parse
from evoprune.errors import ExpressionError, ParseError
from evoprune.expression.text import span
from strategies import expressions


@given(expressions(max_leaves=20))
@settings(max_examples=300)
def test_parse_reads_what_print_writes(expr: Expr) -> None:
    assert parse(str(expr)) == expr
    assert parse(f"  {expr} \n".replace("(", " ( ").replace(",", " ,\n")) == expr
    assert parse(expr) is expr


@given(expressions(), st.floats(1e-300, 1e300))
def test_every_ridge_survives(expr: Expr, rho: float) -> None:
    ridged = Expr("ridge", (expr,), rho)
    assert parse(str(ridged)) == ridged
    assert parse(str(ridged)).rho == rho


@given(expressions(max_leaves=12), st.data())
def test_a_span_is_the_place_of_a_node(expr: Expr, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, expr.size - 1))
    start, end = span(expr, index)
    assert str(expr)[start:end] == str(expr.at(index))


@pytest.mark.parametrize(
    ("text", "message", "under"),
    [
        ("meang(F+)", "did you mean mean_g?", "meang"),
        ("add(F, vra_g(F))", "did you mean var_g?", "vra_g"),
        ("var(F)", "did you mean var_g (over all entries) or var_s (over the rows)?", "var"),
        ("MEAN_G(F)", "did you mean mean_g?", "MEAN_G"),
        ("sum_g(w)", "did you mean W?", "w"),
        ("add(F)", "add takes 2 operands, got 1", "add"),
        ("add(F, F, F)", "expected ')': add takes 2 operands", ","),
        ("ridge(F, -1)", "a number above 0", "-1"),
        ("ridge(F, 0)", "a number above 0", "0"),
        ("ridge(F, 1e999)", "a number above 0", "1e999"),
        ("ridge(F, nan)", "a number above 0, got nan", "nan"),
        ("ridge(F, -inf)", "a number above 0, got -inf", "-inf"),
        ("sum_g(add(F,\r\n\tvra_g(F)))", "did you mean var_g?", "vra_g"),
        ("xi_star", "a function of the library", "xi_star"),
        ("ridge(0.1, F)", "second argument of ridge", "0.1"),
        ("add(F, 2)", "second argument of ridge", "2"),
        ("F(W)", "takes no parentheses", "("),
        ("add", "expected '(' after the operator add", ""),
        ("abs F", "expected '(' after the operator abs", "F"),
        ("abs(F))", "the expression ends before this", ")"),
        ("abs(F", "got the end of the text", ""),
        ("", "the text ends here", ""),
        ("abs(F) & W", "got '&', which is not part of the language", "&"),
        ("mean_g(F) + W", "which is not part of the language: write add(x, y)", "+"),
        ("F -", "F- without a space", "-"),
        ("f-", "did you mean F-?", "f-"),
        ("W_i", "did you mean W_I?", "W_i"),
        ("trace(F)", "did you mean tr?", "trace"),
        ("variance(F)", "did you mean var_g (over all entries) or var_s (over the rows)?", "variance"),
        ("mean_g(F W)", "expected ')' inside mean_g(…), got 'W'", "W"),
        ("add(F W)", "expected ',' inside add(…), got 'W'", "W"),
        ("ridge(F W)", "expected ',' or ')' inside ridge(…), got 'W'", "W"),
        ("ridge(F, 1, 2)", "ridge takes 1 operand and possibly a number", ","),
        ("abs(,F)", "expected an operand or an operator", ","),
        ("ridge(F, W)", "a number above 0, got 'W'", "W"),
        ("ridge(F, )", "a number above 0, got ')'", ")"),
        ("__import__('os')", "unknown name '__import__'", "__import__"),
    ],
)  # fmt: skip
def test_errors_point_at_the_place(text: str, message: str, under: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    shown = str(caught.value)
    assert message in shown
    source, carets = shown.splitlines()[-2:]
    assert re.fullmatch(r" *\^+", carets)
    if under:
        column = carets.index("^")
        assert source[column : column + len(under)] == under
        assert carets.count("^") == len(under)


def test_a_long_text_is_shown_around_the_place() -> None:
    text = "add(" * 300 + "meang(F)" + ", F)" * 300
    with pytest.raises(ParseError) as caught:
        parse(text)
    source, carets = str(caught.value).splitlines()[-2:]
    assert len(source) < 110
    assert source[carets.index("^") : carets.index("^") + 5] == "meang"


def test_latex() -> None:
    assert parse("div(var_g(F-), ridge(var_g(F+), 0.05))").latex() == (
        r"\frac{\mathrm{var}_g(\mathcal{F}^{-})}{\mathrm{var}_g(\mathcal{F}^{+}) + 0.05}"
    )
    assert parse("mul(add(B, W_I), sq(F+))").latex() == (
        r"\left(\mathcal{B} + \mathcal{W}_I\right) \times {\mathcal{F}^{+}}^{2}"
    )
    assert r"\mathbf{I}" in parse("ridge(matmul(tran(F), F))").latex()
    assert r"\mathbf{I}" not in parse("ridge(matmul(F, tran(W)))").latex()


@given(expressions())
def test_latex_braces_balance(expr: Expr) -> None:
    latex = expr.latex()
    assert latex.count("{") == latex.count("}")
    assert latex.count(r"\left") == latex.count(r"\right")
    assert "^{+}^" not in latex


def test_a_drawing_has_a_limit() -> None:
    expr = parse("W_I")
    for _ in range(10_000):
        expr = Expr("abs", (expr,))
    with pytest.raises(ExpressionError, match="at most 100,000,000 characters"):
        Expr("add", (expr, expr)).tree()


def test_the_drawn_tree() -> None:
    assert parse("add(ridge(F, 0.5), sub(B, W))").tree().splitlines() == [
        "add",
        "├─ ridge 0.5",
        "│  └─ F",
        "└─ sub",
        "   ├─ B",
        "   └─ W",
    ]
