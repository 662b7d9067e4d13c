"""The probe: what it lets through has scores that are finite and differ, and is what the limits allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoprune import check, functions, parse
from evoprune.errors import ConfigError, ShapeError
from evoprune.evolution import probe as probes
from evoprune.evolution.probe import Limits, Probe
from evoprune.evolution.variation import Nursery, Variation
from evoprune.expression.library import SOAP
from evoprune.expression.order import order_dependence
from evoprune.scoring import reference

NUMBER = {name: i for i, name in enumerate(("noise", "twin"))}


@pytest.mark.parametrize("name", [name for name in functions if functions[name].expr is not None])
def test_every_function_of_the_library_may_be_bred(name: str) -> None:
    expr = functions[name].expr
    assert expr is not None
    assert Probe().objection(expr) is None


@pytest.mark.parametrize(
    ("text", "objection"),
    [
        ("F", "not a scalar"),
        ("mean_s(F)", "not a scalar"),
        ("count_g(F)", "constant"),
        ("sum_g(W)", "constant"),
        ("sum_g(sub(F, F))", "constant"),
        ("mean_g(sub(F, mean_s(F)))", "constant"),  # rounding, another for every channel
        ("div(sum_g(F), mean_g(F))", "constant"),  # the number of entries, give or take rounding
        ("sqrt(sqrt(mean_g(sub(F, mean_s(F)))))", "constant"),
        ("mean_g(slice(F))", "depends on the order of images or filters"),
        ("tr(W)", "depends on the order of images or filters"),
        ("sum_g(mul(F+, F-))", "depends on the order of images or filters"),
        ("sum_g(outprod(F, F))", "a value would be too large"),
        ("div(sum_g(F), sub(count_g(F), count_g(F)))", "constant"),  # protected: 0 everywhere
        ("prod_g(" + "sq(" * 12 + "ridge(F, 10)" + ")" * 13, "not finite"),
    ],
)
def test_what_may_not_be_bred(text: str, objection: str) -> None:
    assert Probe().objection(parse(text)) == objection


def test_limits_on_size_and_depth() -> None:
    small = Probe(Limits(max_size=3, max_depth=2))
    assert small.objection(parse("sum_g(abs(W_I))")) is None
    for text in ("sum_g(add(F, F))", "sum_g(abs(abs(W_I)))"):
        assert "more than 3 nodes, or deeper than 2" in str(small.objection(parse(text)))
    flat = Probe(Limits(max_size=80, max_depth=2))
    assert flat.objection(parse("sum_g(add(F, F))")) is None
    assert "deeper than 2" in str(flat.objection(parse("sum_g(abs(abs(W_I)))")))
    with pytest.raises(ConfigError, match="at least 2 nodes"):
        Limits(max_size=1)


def test_order_dependent_trees_where_they_are_asked_for() -> None:
    assert Probe(Limits(order_dependent=True)).objection(parse("mean_g(slice(F))")) is None


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_the_cached_probe_scores_as_the_reference_does(seed: int) -> None:
    """Whatever was evaluated before, in whatever order: the scores are those of the plain definition."""
    nursery = Nursery(Variation())
    rng = np.random.default_rng(seed)
    parents = [expr for name in SOAP if (expr := functions[name].expr) is not None]
    layer = probes._layer()
    classes = np.repeat(np.arange(len(probes.CLASS_SIZES)), probes.CLASS_SIZES)
    for _ in range(5):
        child = nursery.child(rng, parents)
        assert child is not None
        expected = reference.score(
            child.expr,
            np.stack(layer["F"], axis=1),
            probes.MAP_SIZE,
            classes,
            layer["W"][0],
            np.stack(layer["B"]),
        )
        np.testing.assert_array_equal(nursery.probe.scores(child.expr), expected)
        parents.append(child.expr)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_what_is_let_through_is_valid_by_the_definition_and_on_other_data(seed: int) -> None:
    nursery = Nursery()
    rng = np.random.default_rng(seed)
    child = nursery.random(rng)
    assert child is not None
    assert not check(child.expr).axes
    assert order_dependence(child.expr) is None
    scores = reference.score(
        child.expr,
        np.maximum(rng.normal(size=(11, 5, 9)), 0),
        (3, 3),
        rng.integers(0, 2, 11) if (rng.integers(0, 2, 11) > 0).any() else None,
        rng.normal(size=(5, 7)),
        rng.normal(size=(5, 4)),
    )
    assert np.isfinite(scores).all()
    assert np.ptp(scores) > 0


def test_an_objection_does_not_depend_on_what_was_asked_before() -> None:
    nursery = Nursery()
    rng = np.random.default_rng(5)
    asked = [child.expr for _ in range(100) if (child := next(nursery._random_trees(rng), None))]
    seen = Probe()
    first = [seen.objection(expr) for expr in asked]
    forgetful = Probe(remembers=20)
    assert [forgetful.objection(expr) for expr in reversed(asked)][::-1] == first
    assert len(set(first)) > 2


def test_the_static_check_agrees() -> None:
    probe = Probe()
    for text in ("sum_g(outprod(F, F))", "mean_g(matmul(tran(outprod(W, W)), F))"):
        with pytest.raises(ShapeError):
            check(text)
        assert probe.objection(parse(text)) == "a value would be too large"
