"""The whole way: function or scores, ratio or target, a verified network and its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

import evoprune
from evoprune import networks
from evoprune.errors import EvopruneError, NetworkError, ScoringError, SiteError, SurgeryError, TargetError
from evoprune.pruning import surgery
from evoprune.pruning.recalibrate import recalibrate


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return networks.ResNet(1, 5)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def data(images: Tensor) -> tuple[Tensor, Tensor]:
    return images, torch.arange(40) % 5


def l1(net: nn.Module, x: Tensor, **options: Any) -> dict[str, Tensor]:
    return {
        site.name: evoprune.pruning.sites.filters_of(net, site).abs().sum((1, 2, 3))
        for site in evoprune.sites(net, x, **options)
    }


@pytest.mark.parametrize("function", ["l1", "sum_g(abs(W_I))", evoprune.parse("sum_g(abs(W_I))")])
@pytest.mark.parametrize("selection", [False, True])
def test_a_function_of_filters_needs_no_data(
    net: nn.Module, images: Tensor, function: Any, selection: bool
) -> None:
    x = images[:1]
    pruned = evoprune.prune(net, function, example_inputs=x, ratio=0.5, selection=selection)
    given = evoprune.prune(
        net, l1(net, x, selection=selection), example_inputs=x, ratio=0.5, selection=selection
    )
    assert pruned.kept == given.kept
    assert torch.equal(pruned.network.eval()(x), given.network.eval()(x))
    assert pruned.made["function"] == "sum_g(abs(W_I))"


@pytest.mark.parametrize("selection", [False, True])
def test_a_function_of_maps_is_scored_on_the_data(
    net: nn.Module, data: tuple[Tensor, Tensor], selection: bool
) -> None:
    pruned = evoprune.prune(net, "xi_star", data, flops=0.5, selection=selection)
    found = evoprune.sites(net, data[0][:1], selection=selection)
    scores = evoprune.score(net, ["xi_star"], data, sites=found)["xi_star"]
    again = evoprune.prune(net, scores, example_inputs=data[0][:1], flops=0.5, selection=selection)
    assert pruned.kept == again.kept
    assert abs(pruned.flops_removed - 0.5) <= 0.005
    for site in found:
        kept = list(pruned.kept[site.name])
        gone = [channel for channel in range(site.channels) if channel not in kept]
        assert scores[site.name][kept].min() >= scores[site.name][gone].max()


def test_scores_of_one_function_by_function_and_site(net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    found = evoprune.sites(net, data[0][:1])
    scores = evoprune.score(net, ["l1", "fdr"], data, sites=found)
    with pytest.raises(SiteError, match=r"scores of one function are needed, got those of 'l1', 'fdr'"):
        evoprune.prune(net, scores, data, ratio=0.5)
    one = evoprune.score(net, ["fdr"], data, sites=found)
    assert (
        evoprune.prune(net, one, data, ratio=0.5).kept
        == evoprune.prune(net, scores["fdr"], data, ratio=0.5).kept
    )


@pytest.mark.parametrize("target", ["flops", "params"])
@pytest.mark.parametrize("scope", ["site", "global"])
def test_targets(net: nn.Module, images: Tensor, target: str, scope: str) -> None:
    x = images[:1]
    pruned = evoprune.prune(net, "l1", example_inputs=x, scope=scope, **{target: 0.4})
    assert abs(getattr(pruned, f"{target}_removed") - 0.4) <= 0.005
    after = evoprune.cost(pruned.network, x)
    assert (after.macs, after.parameters) == (pruned.after.macs, pruned.after.parameters)
    before = evoprune.cost(net, x)
    assert (before.macs, before.parameters) == (pruned.before.macs, pruned.before.parameters)


def test_ignored_sites_and_ratios_of_their_own(net: nn.Module, images: Tensor) -> None:
    pruned = evoprune.prune(
        net, "l1", example_inputs=images[:1], ratio=0.5, ignore=["conv1"], per_site={"layer3.0.conv1": 0.75}
    )
    assert "conv1" not in pruned.kept and pruned.network.conv1.out_channels == 16
    assert len(pruned.kept["layer3.0.conv1"]) == 16 and len(pruned.kept["layer2.0.conv1"]) == 16
    only = evoprune.prune(net, "l1", example_inputs=images[:1], per_site={"layer3.0.conv1": 0.75})
    assert {name: len(kept) for name, kept in only.kept.items() if len(kept) % 16} == {}
    assert len(only.kept["conv1"]) == 16 and len(only.kept["layer3.0.conv1"]) == 16


def test_names_and_numbers_come_in_other_forms(net: nn.Module, images: Tensor) -> None:
    x = images[:1]
    plain = evoprune.prune(net, "l1", example_inputs=x, ratio=0.5, ignore=["conv1"], round_to=4, steps=2)
    other = evoprune.prune(
        net, "l1", example_inputs=x, ratio=np.float32(0.5), ignore=iter(["conv1"]), round_to=np.int64(4),
        steps=np.int64(2),
    )  # fmt: skip
    assert other.kept == plain.kept and other.made == plain.made


def test_data_of_other_types_are_data(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    half = networks.ResNet(1, 5).bfloat16(), (data[0].bfloat16(), data[1])
    pruned = evoprune.prune(half[0], "fdr", half[1], ratio=np.float32(0.5), per_site={"conv1": np.float32(0)})
    assert pruned.made["data"].startswith("sha256:")
    loaded = evoprune.load_pruned(lambda: networks.ResNet(1, 5), pruned.save(tmp_path)).eval()
    assert torch.equal(loaded(half[1][0]), pruned.network.eval()(half[1][0]))


def test_scores_of_ignored_sites_may_come_along(net: nn.Module, images: Tensor) -> None:
    x = images[:1]
    pruned = evoprune.prune(net, l1(net, x), example_inputs=x, ratio=0.5, ignore=["conv1"])
    assert "conv1" not in pruned.kept and len(pruned.kept["layer1.0.conv1"]) == 8


def test_kept_numbers_are_rounded_up(net: nn.Module, images: Tensor) -> None:
    pruned = evoprune.prune(net, "l1", example_inputs=images[:1], ratio=0.55, round_to=8)
    assert {len(kept) for kept in pruned.kept.values()} == {8, 16, 32}


def test_steps_score_anew_and_reach_the_same_target(net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    once = evoprune.prune(net, "var_g(F)", data, flops=0.6)
    thrice = evoprune.prune(net, "var_g(F)", data, flops=0.6, steps=3)
    assert [len(k) for k in once.kept.values()] == [len(k) for k in thrice.kept.values()]
    assert once.kept != thrice.kept  # what is left is scored as it is then
    half = evoprune.prune(net, "var_g(F)", data, flops=0.4, steps=2)
    for name, kept in thrice.kept.items():
        assert set(kept) <= set(half.kept[name])
        assert torch.isnan(thrice.scores[name]).sum() == thrice.scores[name].numel() - len(half.kept[name])
    filters = [evoprune.prune(net, "l1", data, ratio=0.5, steps=steps, selection=True) for steps in (1, 4)]
    assert len(filters[1].kept["layer3.0.conv1.in"]) == 16
    with pytest.raises(ScoringError, match="needs a function"):
        evoprune.prune(net, once.scores, data, ratio=0.5, steps=2)


@pytest.mark.parametrize("name", ["grouped", "densenet", "shared", "lenet", "mobilenet"])
def test_steps_on_other_networks(name: str) -> None:
    factory, shape = ZOO[name]
    net, x = factory(), torch.randn(shape)
    options = {"flatten_features": ["fc1"]} if name == "lenet" else {}
    once = evoprune.prune(net, "l2", example_inputs=x, ratio=0.7, **options)
    stepped = evoprune.prune(net, "l2", example_inputs=x, ratio=0.7, steps=3, **options)
    assert [len(k) for k in once.kept.values()] == [len(k) for k in stepped.kept.values()]


def test_batch_norms_are_recalibrated_where_asked(net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    plain = evoprune.prune(net, "l1", data, ratio=0.5)
    fresh = evoprune.prune(net, "l1", data, ratio=0.5, recalibrate=True)
    given = evoprune.prune(net, "l1", example_inputs=data[0][:1], ratio=0.5, recalibrate=[data])
    assert torch.equal(plain.network.bn1.running_mean, net.bn1.running_mean[list(plain.kept["conv1"])])
    expected = fresh.network.conv1(data[0]).mean((0, 2, 3))
    torch.testing.assert_close(fresh.network.bn1.running_mean, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(given.network.bn1.running_mean, expected, rtol=1e-4, atol=1e-5)
    assert fresh.made["recalibrated"] and not plain.made["recalibrated"]
    assert fresh.network.bn1.momentum == 0.1 and fresh.network.bn1.training == net.training
    with pytest.raises(NetworkError, match="without a batch"):
        recalibrate(fresh.network, [])


def test_data_that_cannot_recalibrate_are_refused(net: nn.Module, images: Tensor) -> None:
    with pytest.raises(NetworkError, match="recalibrate=True averages over `data`, and there are none"):
        evoprune.prune(net, "l1", example_inputs=images[:1], ratio=0.5, recalibrate=True)
    for wrong, told in (
        (images[:, :1], r"failed on the images to recalibrate with, of shape \[\d+, 1, "),
        (["yes"], "failed on the images to recalibrate with, 'yes'"),
        ("yes", r"the data is \(images, labels\), or an iterable of such batches, got 'yes'"),
        (3, "got 3"),
    ):
        with pytest.raises(NetworkError, match=told):
            evoprune.prune(net, "l1", example_inputs=images[:1], ratio=0.5, recalibrate=wrong)


def test_the_result_is_a_table(net: nn.Module, images: Tensor) -> None:
    pruned = evoprune.prune(net, "l1", example_inputs=images[:1], ratio=0.5, latency=True)
    text = str(pruned)
    assert "pruned by l1" in text and "layer2.0.conv2" in text and "50.0%" in text
    assert f"{pruned.after.macs:,}" in text and f"{pruned.before.parameters:,}" in text and " ms" in text


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ratio": 1.0}, TargetError, r"in \[0, 1\), got 1.0"),
        ({"ratio": -0.5}, TargetError, r"in \[0, 1\), got -0.5"),
        ({"flops": 1.5}, TargetError, r"in \[0, 1\), got 1.5"),
        ({}, TargetError, "exactly one of ratio=, flops= and params= .* got none"),
        ({"ratio": 0.5, "flops": 0.5}, TargetError, "got ratio and flops"),
        ({"flops": 0.5, "params": 0.5}, TargetError, "got flops and params"),
        (
            {"ratio": 0.5, "ignore": ["conv"]},
            SiteError,
            "unknown site 'conv' .*the sites are conv1, layer1.0",
        ),
        ({"ratio": 0.5, "per_site": {"fc": 0.1}}, SiteError, "unknown site 'fc'"),
        ({"flops": 0.99, "selection": True}, TargetError, "nearest that can be reached is 9"),
        ({"ratio": 0.5, "steps": 0}, TargetError, "whole number from 1, got 0"),
    ],
)
def test_bad_input(
    net: nn.Module, images: Tensor, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        evoprune.prune(net, "l1", example_inputs=images[:1], **options)


def test_what_cannot_be_traced_or_scored_is_said(net: nn.Module) -> None:
    with pytest.raises(NetworkError, match="example_inputs= is needed"):
        evoprune.prune(net, "l1", ratio=0.5)
    with pytest.raises(NetworkError, match="only once"):
        evoprune.prune(net, "l1", iter([]), ratio=0.5)
    with pytest.raises(NetworkError, match="without a batch"):
        evoprune.prune(net, "l1", [], ratio=0.5)
    for wrong in ("cifar10", {"x": [1]}, 3):
        with pytest.raises(NetworkError, match=r"the data is \(images, labels\), or an iterable .*, got"):
            evoprune.prune(net, "l1", wrong, ratio=0.5)
    with pytest.raises(EvopruneError, match="data"):
        evoprune.prune(net, "xi_star", example_inputs=torch.randn(1, 3, 16, 16), ratio=0.5)
    with pytest.raises(EvopruneError, match="no function 'l3'"):
        evoprune.prune(net, "l3", example_inputs=torch.randn(1, 3, 16, 16), ratio=0.5)
    data = torch.randn(4, 3, 16, 16), torch.arange(4) % 2
    with pytest.raises(NetworkError, match=r"'cuda:99' is not there: this machine has \d+ CUDA devices"):
        evoprune.prune(net, "xi_star", data, ratio=0.5, device="cuda:99")
    alone = nn.Sequential(nn.Conv2d(3, 4, 1))
    with pytest.raises(SiteError, match="no site whose channels can be removed"):
        evoprune.prune(alone, "l1", example_inputs=torch.randn(1, 3, 4, 4), ratio=0.5)


def test_a_failed_check_reaches_the_caller(
    net: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = surgery.cut
    monkeypatch.setattr(
        surgery, "cut", lambda m, s, kept: honest(m, s, {n: tuple(range(len(k))) for n, k in kept.items()})
    )
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(SurgeryError, match="is wrong"):
        evoprune.prune(net, "l1", example_inputs=images[:1], ratio=0.5)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_equal_seeds_give_equal_networks(net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    kept = [evoprune.prune(net, "random", data, ratio=0.5, seed=seed).kept for seed in (1, 1, 2)]
    assert kept[0] == kept[1] != kept[2]
    random_state = torch.get_rng_state()
    evoprune.prune(net, "random", data, ratio=0.5)
    assert torch.equal(random_state, torch.get_rng_state())


def test_loaders_and_arrays_are_data_too(net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=16)
    arrays = (data[0].numpy(), np.asarray(data[1]))
    kept = [evoprune.prune(net, "fdr", form, ratio=0.5).kept for form in (data, loader, arrays)]
    assert kept[0] == kept[1] == kept[2]
