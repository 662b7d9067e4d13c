"""Ratios and targets to kept channels."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from evoprune import networks
from evoprune.errors import SiteError, TargetError
from evoprune.pruning.cost import cost_model
from evoprune.pruning.select import Rule, checked_scores, choose, select, site_counts
from evoprune.pruning.sites import Structure, find_sites


def structure_of(net: nn.Module, *shape: int, **options: object) -> Structure:
    return find_sites(net, torch.empty(shape), **options)


with torch.device("meta"):
    LENET = networks.LeNet5()
    SITES = structure_of(LENET, 1, 1, 28, 28)
    COSTS = cost_model(LENET, SITES)
    GROUPED = structure_of(
        nn.Sequential(nn.Conv2d(3, 12, 1), nn.Conv2d(12, 6, 1, groups=3), nn.Conv2d(6, 2, 1)), 1, 3, 4, 4
    )


def macs_removed(counts: Mapping[str, int]) -> float:
    return 1 - COSTS.totals(counts)[0] / COSTS.totals({})[0]


def draw_scores(seed: int, structure: Structure = SITES) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {site.name: generator.normal(size=site.channels) for site in structure.sites}


def test_the_highest_scores_stay_and_ties_keep_the_lower_index() -> None:
    scores = draw_scores(0) | {"conv1": np.array([1.0, 5, 5, 0] + [5] * 16)}
    assert select(SITES.sites, scores, Rule(0.75))["conv1"] == (1, 2, 4, 5, 6)


@given(ratio=st.floats(0, 0.999999), seed=st.integers(0, 99))
def test_a_ratio_never_removes_more_than_asked_nor_the_last_channel(ratio: float, seed: int) -> None:
    kept = select(SITES.sites, draw_scores(seed), Rule(ratio))
    for site in SITES.sites:
        removed = site.channels - len(kept[site.name])
        assert removed <= site.channels * ratio + 1e-6 and len(kept[site.name]) >= 1
        assert removed > site.channels * ratio - 1 - 1e-6 or len(kept[site.name]) == 1


def test_ratios_that_are_whole_numbers_of_channels_are_exact() -> None:
    counts = site_counts(SITES.sites, Rule(per_site={"conv1": 0.75, "conv2": 0.76, "fc1": 0.92}))
    assert counts == {"conv1": 5, "conv2": 12, "fc1": 40}


@pytest.mark.parametrize("round_to", [2, 8, 16, 64])
def test_rounding_is_up_to_multiples_and_never_above_all(round_to: int) -> None:
    counts = site_counts(SITES.sites, Rule(0.9, round_to=round_to))
    for site in SITES.sites:
        assert counts[site.name] % round_to == 0 or counts[site.name] == site.channels
        assert counts[site.name] >= site.channels * 0.1


def test_one_ratio_for_all_and_others_for_some() -> None:
    counts = site_counts(SITES.sites, Rule(0.5, per_site={"conv2": 0.0}))
    assert counts == {"conv1": 10, "conv2": 50, "fc1": 250}


@pytest.mark.parametrize("scope", ["site", "global"])
@given(target=st.floats(0.0, 0.99), seed=st.integers(0, 99))
def test_a_target_is_met_within_half_a_point(scope: str, target: float, seed: int) -> None:
    try:
        kept = select(SITES.sites, draw_scores(seed), Rule(target=target, scope=scope), macs_removed)
    except TargetError as error:
        assert "the nearest that can be reached is" in str(error)
        return
    assert abs(macs_removed({name: len(channels) for name, channels in kept.items()}) - target) <= 0.005
    assert all(kept.values())


def test_every_function_gets_the_same_shapes() -> None:
    shapes = {
        tuple(
            len(c) for c in select(SITES.sites, draw_scores(seed), Rule(target=0.55), macs_removed).values()
        )
        for seed in range(20)
    }
    assert len(shapes) == 1


def test_single_channels_go_in_the_order_of_the_sites() -> None:
    """Between two steps of the ratio, the earlier sites have taken the step and the later ones not."""
    with torch.device("meta"):
        net = nn.Sequential(*[nn.Conv2d(16, 16, 1) for _ in range(12)])
        structure = structure_of(net, 1, 16, 4, 4)
    costs = cost_model(net, structure)

    def share(counts: Mapping[str, int]) -> float:
        return 1 - costs.totals(counts)[1] / costs.totals({})[1]

    counts = site_counts(structure.sites, Rule(target=0.37), share)
    numbers = list(counts.values())
    assert numbers == sorted(numbers) and len(set(numbers)) == 2 and max(numbers) - min(numbers) == 1
    assert abs(share(counts) - 0.37) <= 0.005


@given(target=st.floats(0.05, 0.9))
def test_few_wide_layers_are_tuned_by_single_channels(target: float) -> None:
    """One step of the ratio at one site is more than a point here; other sites make up for it."""
    counts = site_counts(SITES.sites, Rule(target=target), macs_removed)
    assert abs(macs_removed(counts) - target) <= 0.005


@pytest.mark.parametrize("widths", [(6, 10), (8, 4, 4)])
def test_a_target_is_refused_only_where_no_counts_reach_it(widths: tuple[int, ...]) -> None:
    """Every channel is a large step here: some are removed at one site against some kept at another."""
    layers = [nn.Conv2d(a, b, 1) for a, b in pairwise((1, *widths, 3))]
    structure = find_sites(nn.Sequential(*layers), torch.randn(1, 1, 2, 2))
    costs = cost_model(nn.Sequential(*layers), structure)
    names = [site.name for site in structure.sites]

    def share(counts: Mapping[str, int]) -> float:
        return 1 - costs.totals(counts)[1] / costs.totals({})[1]

    there = [
        share(dict(zip(names, counts, strict=True)))
        for counts in product(*[range(1, width + 1) for width in widths])
    ]
    for target in np.arange(0.05, 0.95, 0.05):
        nearest = min(there, key=lambda value: abs(value - target))
        try:
            got = share(site_counts(structure.sites, Rule(target=float(target)), share))
        except TargetError as error:
            assert abs(nearest - target) > 0.005
            said = float(str(error).split()[-1].rstrip("%")) / 100
            assert abs(said - target) == pytest.approx(abs(nearest - target), abs=1e-4)
        else:
            assert abs(got - target) <= 0.005


def test_an_unreachable_target_names_the_nearest() -> None:
    with pytest.raises(TargetError, match=r"100\.00% .*nearest that can be reached is 99\.\d\d%"):
        select(SITES.sites, draw_scores(0), Rule(target=0.99999), macs_removed)
    with pytest.raises(TargetError, match="nearest"):
        select(SITES.sites, draw_scores(0), Rule(target=0.5, round_to=512), macs_removed)


def test_a_global_threshold_removes_the_lowest_scores_everywhere() -> None:
    scores = draw_scores(1)
    kept = select(SITES.sites, scores, Rule(0.5, scope="global"))
    gone = np.concatenate([np.delete(scores[n], kept[n]) for n in kept])
    left = np.concatenate([scores[n][list(kept[n])] for n in kept])
    assert len(gone) == 285 and gone.max() <= left.min()


def test_a_global_threshold_leaves_each_site_a_channel() -> None:
    scores = draw_scores(1)
    scores["conv2"] -= 1e6
    kept = select(SITES.sites, scores, Rule(0.8, scope="global"))
    assert kept["conv2"] == (int(scores["conv2"].argmax()),)


def test_a_global_threshold_with_equal_scores_goes_by_sites_and_keeps_lower_indices() -> None:
    scores = {site.name: np.zeros(site.channels) for site in SITES.sites}
    kept = select(SITES.sites, scores, Rule(0.05, scope="global"))
    assert kept["conv1"] == (0,) and kept["conv2"] == tuple(range(41)) and len(kept["fc1"]) == 500


@given(seed=st.integers(0, 99), ratio=st.floats(0, 0.99), scope=st.sampled_from(["site", "global"]))
def test_grouped_convolutions_stay_even(seed: int, ratio: float, scope: str) -> None:
    kept = select(GROUPED.sites, draw_scores(seed, GROUPED), Rule(ratio, scope=scope))
    for site in GROUPED.sites:
        run = site.channels // site.blocks
        assert site.blocks == 3
        assert len({sum(channel // run == block for channel in kept[site.name]) for block in range(3)}) == 1


def test_features_are_chosen_among_the_maps_that_stay() -> None:
    with torch.device("meta"):
        structure = structure_of(networks.LeNet5(), 1, 1, 28, 28, flatten_features=["fc1"])
    scores = draw_scores(0, structure)
    kept = select(structure.sites, scores, Rule(per_site={"conv2": 0.76, "fc1.in": 1 / 6}))
    assert len(kept["conv2"]) == 12 and len(kept["fc1.in"]) == 160
    assert {feature // 16 for feature in kept["fc1.in"]} <= set(kept["conv2"])
    survivors = [f for m in kept["conv2"] for f in range(16 * m, 16 * m + 16)]
    dropped = sorted(set(survivors) - set(kept["fc1.in"]))
    assert scores["fc1.in"][dropped].max() <= scores["fc1.in"][list(kept["fc1.in"])].min()
    with pytest.raises(SiteError, match="needs scope='site'"):
        select(structure.sites, scores, Rule(0.5, scope="global"))


@pytest.mark.parametrize("ratio", [-0.1, 1, 1.0, 1.5, float("nan"), float("inf"), "0.5", True])
def test_ratios_are_shares(ratio: object) -> None:
    for rule in (Rule(ratio), Rule(target=ratio), Rule(per_site={"conv1": ratio})):
        with pytest.raises(TargetError, match=r"share to remove, in \[0, 1\), got"):
            rule.check(SITES.sites)


def test_ratios_come_as_any_real_number() -> None:
    assert select(SITES.sites, draw_scores(0), Rule(np.float32(0.5))) == select(
        SITES.sites, draw_scores(0), Rule(0.5)
    )


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (Rule(), TargetError, "got none"),
        (Rule(0.5, 0.5), TargetError, "got both"),
        (Rule(0.5, scope="layer"), TargetError, "'site' or 'global', got 'layer'"),
        (Rule(0.5, round_to=0), TargetError, "whole number from 1, got 0"),
        (Rule(0.5, round_to=2.5), TargetError, "whole number from 1"),
        (
            Rule(0.5, per_site=["conv1"]),
            TargetError,
            r"per_site is \{name of a site: ratio\}, got \['conv1'\]",
        ),
        (
            Rule(0.5, per_site={"conv": 0.5}),
            SiteError,
            r"unknown site 'conv' .*the sites are conv1, conv2, fc1",
        ),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rule: Rule, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rule.check(SITES.sites)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv1": [1.0] * 19}, "'conv1' has 20 channels and needs as many scores, got shape \\[19\\]"),
        ({"conv1": torch.ones(20, 1)}, "needs as many scores"),
        ({"conv1": [float("nan")] + [1.0] * 19}, "'conv1' are not finite at channels \\[0\\]"),
        ({"conv1": [[1.0], [1.0, 2.0]]}, "'conv1' are to be real numbers, got"),
        ({"conv1": ["high"] * 20}, "'conv1' are to be real numbers, got"),
        ({"conv1": torch.ones(20, dtype=torch.complex64)}, "real numbers"),
        ({"conv": [1.0]}, "unknown site 'conv'"),
    ],
)
def test_scores_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(SiteError, match=message):
        checked_scores(SITES.sites, draw_scores(0) | change)
    with pytest.raises(SiteError, match=r"no scores for site 'fc1'; ignore=\['fc1'\]"):
        checked_scores(SITES.sites, {name: s for name, s in draw_scores(0).items() if name != "fc1"})


def test_scores_come_as_tensors_arrays_and_lists() -> None:
    scores = draw_scores(2)
    forms = scores | {
        "conv1": torch.tensor(scores["conv1"], requires_grad=True),
        "fc1": scores["fc1"].tolist(),
    }
    checked = checked_scores(SITES.sites, forms)
    assert choose(SITES.sites, checked, {"conv1": 3, "conv2": 2, "fc1": 1}) == choose(
        SITES.sites, scores, {"conv1": 3, "conv2": 2, "fc1": 1}
    )
