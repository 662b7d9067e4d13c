"""Invariances are found where they are known to be, and only there; Spearman's correlation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from evoprune.errors import ScoringError
from evoprune.expression.library import functions
from evoprune.expression.text import parse
from evoprune.scoring.invariance import invariances, spearman


def verdicts(text: str) -> dict[str, str]:
    expr = functions[text].expr if text in functions else parse(text)
    assert expr is not None
    return {each.change: each.verdict for each in invariances(expr)}


def test_mean_activation_scales_and_shifts_with_the_maps() -> None:
    found = {each.change: each for each in invariances(parse("mean_g(F)"))}
    assert found["maps times 3"].verdict == "scaled" and found["maps times 3"].power == 1
    assert found["maps plus 0.7"].verdict == "ranked"
    assert found["images in another order"].verdict == "same"
    assert "labels renumbered" not in found and "filters times 3" not in found


@pytest.mark.parametrize(("text", "power"), [("var_g(F+)", 2), ("sqrt(var_g(F))", 1), ("inv(std_g(F))", -1)])
def test_powers_of_the_scale(text: str, power: float) -> None:
    found = {each.change: each for each in invariances(parse(text))}
    assert found["maps times 3"].power == power
    assert found["maps plus 0.7"].verdict == "same"


def test_a_quotient_without_a_ridge_has_no_scale() -> None:
    found = verdicts("div(var_g(F-), var_g(F+))")
    assert found["maps times 3"] == found["maps plus 0.7"] == found["labels renumbered"] == "same"


@pytest.mark.parametrize("name", ["xi_star", "di", "mmd", "fdr", "abs_snr", "t_test", "sym_div"])
def test_labels_and_orders_do_not_matter_to_the_library(name: str) -> None:
    found = verdicts(name)
    for change in ("labels renumbered", "images in another order", "channels in another order"):
        assert found[change] == "same", change


def test_what_depends_on_an_order_is_caught() -> None:
    assert verdicts("mean_g(slice(F))")["images in another order"] == "changed"
    assert verdicts("tr(mean_s(F))")["pixels in another order"] == "changed"
    assert verdicts("mean_g(mul(W_I, slice(W)))")["channels in another order"] == "changed"


def test_filters_alone_concern_nothing_else() -> None:
    assert verdicts("l1") == {"filters times 3": "scaled", "channels in another order": "same"}


def test_spearman_is_scipys() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 6, 30).astype(float), rng.normal(size=30)
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
        assert spearman(a, 3 * a) == pytest.approx(1)
    assert np.isnan(spearman(np.ones(4), np.arange(4.0)))


def test_a_ridge_that_hardly_matters_shows_in_the_difference() -> None:
    found = {each.change: each for each in invariances(parse("div(var_g(F-), ridge(var_g(F+)))"))}
    scaled = found["maps times 3"]
    assert scaled.verdict in ("ranked", "changed") and 1e-7 < scaled.difference < 0.05
    assert "of their spread" in str(scaled)
    assert found["maps plus 0.7"].difference < 1e-7


def test_what_scores_all_channels_alike_has_no_rank_correlation() -> None:
    found = {each.change: each for each in invariances(parse("prod_g(F)"))}  # 0 behind a ReLU
    for change in ("maps times 3", "maps plus 0.7"):
        assert np.isnan(found[change].correlation) and "score alike" in str(found[change])
    assert found["maps times 3"].verdict == "same" and found["maps plus 0.7"].verdict == "changed"


def test_scores_that_overflow() -> None:
    with pytest.raises(ScoringError, match="not finite"):
        invariances(parse("prod_g(ridge(F, 100.0))"))
    found = {each.change: each for each in invariances(parse("prod_g(ridge(F, 2.0))"))}
    assert found["maps times 3"].verdict == found["maps plus 0.7"].verdict == "not finite"
    assert str(found["maps times 3"]) == "scores that are not finite"
    assert found["images in another order"].verdict == "same"
