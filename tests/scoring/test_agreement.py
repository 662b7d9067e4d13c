"""The two executors agree, and both keep the promises of the language."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evoprune.errors import ScoringError
from evoprune.expression.text import parse
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERATORS
from evoprune.scoring import execute, reference
from evoprune.scoring.arrays import score_arrays
from strategies import scalars, sites

Site = dict[str, Any]


def scores(expr: Expr, site: Site, executor: str) -> NDArray[np.float64] | None:
    """Scores in float64, or None where they are refused."""
    try:
        return score_arrays(expr, **site, dtype="float64", executor=executor)
    except ScoringError as error:
        assert "not finite" in str(error), error
        return None


def nudged(site: Site, seed: int = 0) -> Site:
    rng = np.random.default_rng(seed)
    return {
        name: value if name == "labels" else value * (1 + 1e-12 * rng.standard_normal(value.shape))
        for name, value in site.items()
    }


def steady(expr: Expr, site: Site) -> NDArray[np.float64] | None:
    """The reference's scores; skips a case in which rounding decides."""
    want = scores(expr, site, "reference")
    for seed in range(2):
        moved = scores(expr, nudged(site, seed), "reference")
        assume((want is None) == (moved is None))
        if want is not None and moved is not None:
            assume(np.all(np.abs(want - moved) <= 1e-6 * np.abs(want)))
    return want


def assert_same(got: NDArray[np.float64] | None, want: NDArray[np.float64] | None, rtol: float) -> None:
    assert (got is None) == (want is None)
    if got is not None and want is not None:
        # Below the smallest normal number there are fewer digits than rtol asks for.
        np.testing.assert_allclose(got, want, rtol=rtol, atol=np.finfo(np.float64).tiny)


def test_every_word_is_defined_in_both_executors() -> None:
    assert set(execute.KERNELS) == set(OPERATORS) == reference.OPERATORS


@given(expr=scalars(), site=sites())
@settings(max_examples=800)
def test_batched_equals_reference(expr: Expr, site: Site) -> None:
    want = steady(expr, site)
    assert_same(scores(expr, site, "batched"), want, 1e-8)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_operator_alone_and_under_each_shape(name: str) -> None:
    """Random trees seldom put every shape under every operator; this does."""
    rng = np.random.default_rng(1)
    site = {
        "maps": np.maximum(rng.normal(0.4, 1, (7, 3, 2, 3)), 0),
        "labels": np.array([0, 0, 0, 1, 1, 2, 2]),
        "filters": rng.normal(0, 0.7, (3, 2, 2, 2)),
        "batch_norm": rng.uniform(0.2, 2, (3, 4)),
    }
    near = nudged(site)
    values = [
        "F", "F+", "F-", "W", "W_I", "B", "mean_s(F)", "mean_s(F+)", "tr(F-)", "tr(F)", "var_g(F)",
        "mean_g(F+)",
        "matmul(tran(F), F)", "tran(F+)", "outprod(B, B)", "outprod(mean_g(F), W_I)", "rbf(F+, F-)",
    ]  # fmt: skip
    arity = OPERATORS[name].arity
    for left in values:
        for right in values if arity == 2 else [""]:
            expr = parse(f"{name}({left}, {right})" if arity == 2 else f"{name}({left})")
            for root in ("sum_g({})", "sum_g(mul(outprod({}, W_I), outprod(B, F)))"):
                tree = parse(root.format(expr))
                want, moved = (scores(tree, each, "reference") for each in (site, near))
                if want is None or moved is None:
                    continue
                if np.all(np.abs(want - moved) <= 1e-6 * np.abs(want)):
                    assert_same(scores(tree, site, "batched"), want, 1e-8)


@given(expr=scalars(), site=sites(), seed=st.integers(0, 99))
@settings(max_examples=150)
def test_class_numbers_mean_nothing(expr: Expr, site: Site, seed: int) -> None:
    want = steady(expr, site)
    names = np.random.default_rng(seed).permutation(50)[: site["labels"].max() + 1] - 20
    renamed = site | {"labels": names[site["labels"]]}
    assert_same(scores(expr, renamed, "batched"), want, 1e-9)
    words = site | {"labels": np.array([f"class {k}" for k in renamed["labels"]])}
    assert_same(scores(expr, words, "batched"), want, 1e-9)


@given(expr=scalars().filter(lambda e: not e.order_dependent), site=sites(), seed=st.integers(0, 99))
@settings(max_examples=300)
def test_image_order_means_nothing_where_it_should_not(expr: Expr, site: Site, seed: int) -> None:
    assume(not ties(expr, site))
    want = steady(expr, site)
    order = np.random.default_rng(seed).permutation(len(site["labels"]))
    moved = site | {"maps": site["maps"][order], "labels": site["labels"][order]}
    for executor in ("batched", "reference"):
        assert_same(scores(expr, moved, executor), want, 1e-9)


@given(expr=scalars().filter(lambda e: not e.order_dependent), site=sites(), seed=st.integers(0, 99))
@settings(max_examples=300)
def test_channels_move_with_their_scores(expr: Expr, site: Site, seed: int) -> None:
    assume(not ties(expr, site))
    want = steady(expr, site)
    order = np.random.default_rng(seed).permutation(site["maps"].shape[1])
    moved = {
        "maps": site["maps"][:, order],
        "labels": site["labels"],
        "filters": site["filters"][order],
        "batch_norm": site["batch_norm"][order],
    }
    for executor in ("batched", "reference"):
        assert_same(scores(expr, moved, executor), None if want is None else want[order], 1e-9)


def ties(expr: Expr, site: Site) -> bool:
    """Whether rows may tie for `geo`, which then takes the first: two rows do, and rows of one entry."""
    counts = np.bincount(site["labels"])
    channels, *size = site["maps"].shape[1:]
    few = min(counts.min(), len(site["labels"]) - counts.max(), channels) < 3 or np.prod(size) < 2
    return bool(few) and any(node.name == "geo" for node in expr.walk())


@given(expr=scalars(), site=sites())
@settings(max_examples=100)
def test_chunks_change_nothing(expr: Expr, site: Site) -> None:
    want = scores(expr, site, "batched")
    budget = execute.BUDGET
    try:
        execute.BUDGET = 1  # one channel and one class at a time
        got = scores(expr, site, "batched")
    finally:
        execute.BUDGET = budget
    assert (got is None) == (want is None)
    if want is not None and steady(expr, site) is not None:
        assert_same(got, want, 1e-8)
