"""Our functions in Torch-Pruning's pruners, its importances on our surgery, and whose graph is right."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_pruning as tp
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "pruning"))

from zoo import ZOO

import evoprune
from evoprune import networks
from evoprune.errors import EvopruneError, ScoringError, SiteError
from evoprune.integrations.torch_pruning import FunctionImportance, customized_pruners
from evoprune.pruning.sites import filters_of, sites

# Its graph loses single channels where they are padded, ties no weights, and knows no depthwise layers that
# make several channels of one.
LOST = {
    "option a, padded by hand": [False],
    "shared": [False, True],
    "channels last": [False, True],
    "tokens": [False, True],
}
DATA = (torch.randn(30, 3, 16, 16), torch.arange(30) % 5)


def pruner_of(net: nn.Module, x: Tensor, importance: Any, **options: Any) -> Any:
    last = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
    return tp.pruner.BasePruner(
        net,
        x,
        importance=importance,
        ignored_layers=[last],
        customized_pruners=customized_pruners(),
        in_channel_groups={},
        out_channel_groups={},
        **{"pruning_ratio": 0.5} | options,
    )


@pytest.mark.parametrize("selection", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_its_graph_couples_as_ours_does_or_is_not_used(name: str, selection: bool) -> None:
    """Every site of every network is one of Torch-Pruning's groups, channel by channel, where it is right."""
    factory, shape = ZOO[name]
    net, x = factory(), torch.randn(shape)
    importance = tp.importance.GroupMagnitudeImportance(p=1)
    if selection in LOST.get(name, []):
        with pytest.raises(SiteError, match="graph does not couple its channels as the network does"):
            evoprune.prune(net, importance, example_inputs=x, ratio=0.5, selection=selection)
        return
    pruned = evoprune.prune(net, importance, example_inputs=x, ratio=0.5, selection=selection)
    assert pruned.made["importance"] == "GroupMagnitudeImportance"


def test_its_importance_is_compared_like_for_like() -> None:
    net, x = networks.shapes_net(), torch.randn(1, 3, 32, 32)
    importance = tp.importance.GroupMagnitudeImportance(p=1, group_reduction="first", normalizer=None)
    theirs = evoprune.prune(net, importance, example_inputs=x, flops=0.5)
    ours = evoprune.prune(net, "l1", example_inputs=x, flops=0.5)
    assert theirs.kept == ours.kept
    assert torch.equal(theirs.network.eval()(x), ours.network.eval()(x))


def test_gradients_reach_its_importances_and_frozen_networks_are_pruned() -> None:
    net, x = networks.shapes_net(), torch.randn(4, 3, 32, 32)
    net(x).square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in net.parameters()]
    pruned = evoprune.prune(net, tp.importance.GroupTaylorImportance(), example_inputs=x, ratio=0.5)
    scores = (net[0].weight * net[0].weight.grad).abs().flatten(1).sum(1)
    assert scores.shape == pruned.scores["0"].shape
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)
        parameter.requires_grad_(False)
    frozen = evoprune.prune(net, tp.importance.GroupMagnitudeImportance(), example_inputs=x, ratio=0.5)
    assert frozen.network[0].out_channels == 8 and not frozen.network[0].weight.requires_grad


def test_what_its_importances_have_gathered_is_about_the_original() -> None:
    """Hessians are kept by parameter: on a copy they would be those of nothing, and nobody would notice."""
    torch.manual_seed(0)
    net, x = networks.shapes_net().eval(), torch.randn(6, 3, 32, 32)
    importance = tp.importance.GroupHessianImportance()
    for batch in x.split(2):
        net.zero_grad()
        net(batch).square().sum().backward()
        importance.accumulate_grad(net)
    gradients = [parameter.grad.clone() for parameter in net.parameters()]
    pruned = evoprune.prune(net, importance, example_inputs=x, ratio=0.5)
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), gradients, strict=True))
    graph = tp.DependencyGraph().build_dependency(net, example_inputs=x)
    group = graph.get_pruning_group(net[4], tp.prune_conv_out_channels, idxs=list(range(32)))
    torch.testing.assert_close(pruned.scores["4"], importance(group).double())


def test_our_functions_may_come_as_its_importances() -> None:
    torch.manual_seed(0)
    net = networks.ResNet(1, 5).eval()
    for selection in (False, True):
        theirs = evoprune.prune(
            net, FunctionImportance("fdr", DATA), example_inputs=DATA[0][:1], ratio=0.5, selection=selection
        )
        ours = evoprune.prune(net, "fdr", DATA, ratio=0.5, selection=selection)
        assert theirs.kept == ours.kept
    with pytest.raises(ScoringError, match=r"ChannelSelect has no filters to score; pass example_inputs="):
        evoprune.prune(net, FunctionImportance("l1"), example_inputs=DATA[0][:1], ratio=0.5, selection=True)


@pytest.mark.parametrize("options", [{}, {"global_pruning": True}, {"iterative_steps": 2}, {"round_to": 4}])
@pytest.mark.parametrize(
    "importance",
    [
        FunctionImportance("fdr", DATA),
        FunctionImportance("l1", example_inputs=DATA[0][:1]),
        FunctionImportance("l1"),
    ],
    ids=["maps", "sites", "groups"],
)
def test_depthwise_layers_are_scored_as_what_they_carry(importance: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = networks.MobileNetV2(5, width=0.1).eval()
    pruner = pruner_of(net, DATA[0][:1], importance, **options)
    pruner.step()
    assert net(DATA[0]).shape == (30, 5)


def test_a_group_is_scored_by_its_first_layer_that_is_not_depthwise() -> None:
    net = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 2, 1))
    graph = tp.DependencyGraph().build_dependency(net, example_inputs=torch.randn(1, 3, 8, 8))
    group = graph.get_pruning_group(net[1], tp.prune_depthwise_conv_out_channels, idxs=[4, 0])
    expected = net[0].weight.abs().sum((1, 2, 3))[[4, 0]]
    for importance in (
        FunctionImportance("l1"),
        FunctionImportance("l1", example_inputs=torch.randn(1, 3, 8, 8)),
    ):
        torch.testing.assert_close(importance(group), expected)


@pytest.mark.parametrize("function", ["l1", "bn_scale", evoprune.parse("sub(var_g(W_I), slice(B))")])
def test_functions_of_parameters_need_no_data(function: Any) -> None:
    torch.manual_seed(0)
    net, x = networks.shapes_net(), torch.randn(1, 3, 32, 32)
    for module in net:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -1, 1)
    ours = evoprune.prune(net, function, example_inputs=x, ratio=0.5)
    for importance in (FunctionImportance(function), FunctionImportance(function, example_inputs=x)):
        theirs = copy.deepcopy(net)
        pruner_of(theirs, x, importance).step()
        assert all(
            torch.equal(a, b) for a, b in zip(theirs.parameters(), ours.network.parameters(), strict=True)
        )


@pytest.mark.parametrize("function", ["xi_star", "fdr", "mean_activation"])
def test_functions_of_maps_see_what_our_scoring_sees(function: str) -> None:
    torch.manual_seed(0)
    net = networks.shapes_net().eval()
    ours = evoprune.prune(net, function, DATA, ratio=0.5)
    theirs = copy.deepcopy(net)
    pruner_of(theirs, DATA[0][:1], FunctionImportance(function, DATA)).step()
    assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), ours.network.parameters(), strict=True))


def test_scores_are_taken_once_for_as_long_as_the_network_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import evoprune.scoring.score as scoring

    calls, honest = [], scoring.score

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return honest(*arguments, **options)

    monkeypatch.setattr(scoring, "score", counted)
    net = networks.shapes_net().eval()
    pruner = pruner_of(net, DATA[0][:1], FunctionImportance("fdr", DATA), iterative_steps=2)
    pruner.step()
    assert len(calls) == 1
    pruner.step()
    assert len(calls) == 2  # the network has changed since


def test_residual_networks_with_padded_shortcuts_and_selections() -> None:
    torch.manual_seed(0)
    net = networks.ResNet(2, 5).eval()
    whole = evoprune.prune(net, "l1", DATA, ratio=0.3, selection=True).network
    importance = FunctionImportance("var_g(F)", DATA)
    pruner_of(whole, DATA[0][:1], importance, pruning_ratio=0.25).step()
    assert whole(DATA[0]).shape == (30, 5)


def test_what_it_cannot_score_is_said() -> None:
    x = torch.randn(1, 3, 8, 8)
    mixing = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(256, 2)
    )
    with pytest.raises(SiteError, match=r"of layer '0' belong to no site .* ignored_layers="):
        pruner_of(mixing, x, FunctionImportance("l1", example_inputs=x)).step()
    with pytest.raises(EvopruneError, match=r"F"):
        pruner_of(networks.shapes_net(), torch.randn(1, 3, 32, 32), FunctionImportance("xi_star")).step()


def test_an_importance_that_lacks_gradients_says_so() -> None:
    with pytest.raises(ScoringError, match=r"TaylorImportance failed at site '0': .*need a backward pass"):
        evoprune.prune(
            networks.digits_net(),
            tp.importance.TaylorImportance(),
            example_inputs=torch.randn(1, 1, 8, 8),
            ratio=0.5,
        )


def test_scores_are_of_the_channels_of_the_group() -> None:
    net, x = networks.shapes_net(), torch.randn(1, 3, 32, 32)
    graph = tp.DependencyGraph().build_dependency(net, example_inputs=x)
    group = graph.get_pruning_group(net[4], tp.prune_conv_out_channels, idxs=[3, 0, 30])
    site = {site.name: site for site in sites(net, x)}["4"]
    expected = filters_of(net, site).abs().sum((1, 2, 3))[[3, 0, 30]]
    for importance in (FunctionImportance("l1"), FunctionImportance("l1", example_inputs=x)):
        torch.testing.assert_close(importance(group), expected)
