"""Trees: frozen values that never recurse."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoprune import Expr, check, parse, score_arrays
from evoprune.errors import EvopruneError, ExpressionError
from evoprune.expression.simplify import simplify
from evoprune.expression.tree import MAX_SIZE
from strategies import expressions


def deep(levels: int) -> Expr:
    expr = parse("W_I")
    for level in range(levels - 1):
        expr = Expr("abs", (expr,)) if level % 2 else Expr("add", (expr, Expr("W_I")))
    return Expr("sum_g", (expr,))


def test_a_tree_5000_deep_does_everything() -> None:
    expr = deep(5000)
    assert expr.depth == 5000
    assert parse(str(expr)) == expr
    assert hash(parse(str(expr))) == hash(expr)
    assert copy.deepcopy(expr) == pickle.loads(pickle.dumps(expr)) == expr
    assert not check(expr).axes
    assert not expr.order_dependent
    assert expr.latex()
    assert len(expr.tree().splitlines()) == expr.size
    assert simplify(expr) == expr
    assert expr.replace(expr.size - 1, parse("B")).size == expr.size
    small = deep(200)
    filters = [[1.0, -2.0], [0.5, 0.25]]
    for executor in ("batched", "reference"):
        assert score_arrays(small, filters=filters, executor=executor).shape == (2,)
        score_arrays(expr, filters=[[0.0, 0.0]], executor=executor)


def test_a_tree_that_is_too_large_is_refused_with_the_limit() -> None:
    expr = parse("W")
    with pytest.raises(ExpressionError, match=f"at most {MAX_SIZE} nodes"):
        for _ in range(40):
            expr = Expr("add", (expr, expr))
    with pytest.raises(EvopruneError, match=f"at most {MAX_SIZE}"):
        parse("abs(" * (MAX_SIZE + 1) + "F" + ")" * (MAX_SIZE + 1))


def test_it_is_frozen() -> None:
    expr = parse("var_g(F)")
    with pytest.raises(FrozenInstanceError):
        expr.name = "mean_g"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "args", "rho"),
    [
        ("plus", (), None),
        ("add", (Expr("F"),), None),
        ("F", (Expr("F"),), None),
        ("abs", (Expr("F"),), 0.5),
        ("ridge", (Expr("F"),), -1.0),
        ("ridge", (Expr("F"),), float("inf")),
        ("ridge", (Expr("F"),), "much"),
        ("abs", Expr("F"), None),
        (["abs"], (Expr("F"),), None),
        ("abs", ("F",), None),
    ],
)
def test_what_cannot_be_a_tree_is_refused(name: str, args: tuple[Expr, ...], rho: float | None) -> None:
    with pytest.raises(ExpressionError):
        Expr(name, args, rho)


@given(expressions())
def test_measures(expr: Expr) -> None:
    nodes = list(expr.walk())
    assert expr.size == len(nodes)
    assert expr.operands == {node.name for node in nodes if not node.args}
    assert expr.depth == (1 + max(arg.depth for arg in expr.args) if expr.args else 0)
    assert expr.is_label_aware == bool({"F+", "F-"} & expr.operands)
    assert expr.distinct()[-1] == expr
    assert set(expr.distinct()) == set(nodes)


@given(expressions(), expressions(), st.data())
def test_replace_at_a_position(expr: Expr, new: Expr, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, expr.size - 1))
    old = expr.at(index)
    assert old == list(expr.walk())[index]
    changed = expr.replace(index, new)
    assert changed.at(index) == new
    assert changed.size == expr.size - old.size + new.size
    assert changed.replace(index, old) == expr


def test_replace_a_subtree_everywhere() -> None:
    expr = parse("add(var_g(F), sub(var_g(F), W))")
    assert str(expr.replace(parse("var_g(F)"), parse("B"))) == "add(B, sub(B, W))"
    with pytest.raises(ExpressionError, match="positions 0 to 6"):
        expr.at(7)


def test_canonical_key_knows_what_commutes() -> None:
    def key(text: str) -> bytes:
        return parse(text).canonical_key

    assert key("add(F, mul(W, B))") == key("add(mul(B, W), F)")
    assert key("dot(F, W)") == key("dot(W, F)")
    for text, other in [
        ("sub(F, W)", "sub(W, F)"),
        ("div(F, W)", "div(W, F)"),
        ("matmul(F, W)", "matmul(W, F)"),
    ]:
        assert key(text) != key(other)
    assert key("ridge(F)") == key("ridge(F, 0.0001)") != key("ridge(F, 0.05)")


def test_a_name_drawn_by_numpy_is_a_name() -> None:
    drawn = Expr(np.str_("ridge"), (Expr(np.str_("W_I")),), np.float32(0.5))
    assert drawn == parse("ridge(W_I, 0.5)")
    assert hash(drawn) == hash(parse("ridge(W_I, 0.5)"))
    assert type(drawn.name) is str


@given(expressions(), expressions())
def test_equality_is_of_texts(a: Expr, b: Expr) -> None:
    assert (a == b) == (str(a) == str(b))
    assert a != str(a)
