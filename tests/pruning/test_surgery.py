"""Pruned networks equal masked networks, and what was given is left alone."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from masking import awake, kept_sets, masked
from torch import Tensor, nn
from zoo import ZOO

import evoprune
from evoprune import networks
from evoprune.errors import NetworkError, SiteError
from evoprune.networks.layers import selection_of
from evoprune.pruning.cost import cost
from evoprune.pruning.sites import sites
from evoprune.pruning.surgery import Surgeon


@cache
def surgeon_of(name: str, selection: bool) -> Surgeon:
    factory, shape = ZOO[name]
    torch.manual_seed(0)
    example = torch.randn(shape, dtype=torch.float64)
    return Surgeon(awake(factory(), example), example, selection=selection)


@pytest.mark.parametrize("selection", [False, True], ids=["coupled", "selection"])
@pytest.mark.parametrize("name", ZOO)
@settings(max_examples=6)
@given(data=st.data())
def test_pruned_equals_masked(name: str, selection: bool, data: st.DataObject) -> None:
    surgeon = surgeon_of(name, selection)
    kept = data.draw(kept_sets(surgeon.sites))
    pruned = surgeon.cut(kept)
    x = torch.randn(surgeon.example_inputs.shape, dtype=torch.float64)
    expected = masked(surgeon.model, surgeon.sites, kept, x)
    with torch.no_grad():
        got = pruned(x)
    assert float((got - expected).abs().max()) <= 1e-9 * float(expected.abs().max())
    counts = {site: len(channels) for site, channels in kept.items()}
    assert (cost(pruned, x).macs, cost(pruned, x).parameters) == surgeon.costs.totals(counts)
    assert sum(parameter.numel() for parameter in pruned.parameters()) == surgeon.costs.totals(counts)[1]


def test_flattened_features_are_chosen_among_what_the_maps_keep() -> None:
    x = torch.randn(2, 1, 28, 28, dtype=torch.float64)
    surgeon = Surgeon(awake(networks.LeNet5(), x), x, flatten_features=["fc1"])
    maps = [0, 3, 4, 7, 49]
    features = [16 * m + pixel for m in maps for pixel in range(0, 16, 3)]
    kept = {"conv1": [1, 2], "conv2": maps, "fc1.in": features, "fc1": [5, 6, 7]}
    pruned = surgeon.cut(kept)
    torch.testing.assert_close(pruned(x), masked(surgeon.model, surgeon.sites, kept, x), rtol=1e-9, atol=1e-9)
    assert pruned.fc1.weight.shape == (3, len(features))
    with pytest.raises(SiteError, match=r"'fc1.in' cannot keep channel 16: .* channel 1 of site 'conv2'"):
        surgeon.cut({"conv2": maps, "fc1.in": [16]})


def test_a_pruned_network_can_be_cut_again() -> None:
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    surgeon = Surgeon(awake(networks.preact_resnet(20, bottleneck=False), x), x, selection=True)
    once = surgeon.cut({site.name: range(0, site.channels, 2) for site in surgeon.sites})
    assert [site.name for site in sites(once, x, selection=True)] == [site.name for site in surgeon.sites]
    again = Surgeon(once, x, selection=True)
    twice = again.cut({site.name: range(0, site.channels, 2) for site in again.sites})
    at_once = surgeon.cut({site.name: range(0, site.channels, 4) for site in surgeon.sites})
    torch.testing.assert_close(twice(x), at_once(x), rtol=1e-9, atol=1e-9)


def test_a_stream_can_be_cut_under_its_selections() -> None:
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    chosen = Surgeon(awake(networks.resnet20(), x), x, selection=True)
    once = chosen.cut({"layer1.1.conv1.in": [0, 1, 5, 6, 9]})
    coupled = Surgeon(once, x)
    kept = {"conv1": [0, 1, 2, 5, 15], "layer1.1.conv1.in": [0, 1, 2]}
    pruned = coupled.cut(kept)
    whole = {site.name: range(site.channels) for site in coupled.sites}
    expected = masked(once, coupled.sites, whole | kept, x)
    torch.testing.assert_close(pruned(x), expected, rtol=1e-9, atol=1e-9)
    assert selection_of(pruned.layer1[1].conv1).chosen == (0, 1, 3)
    with pytest.raises(
        SiteError, match="channel 4: it is taken from channel 9 of site 'conv1', which is removed"
    ):
        coupled.cut({"conv1": [0, 1, 2], "layer1.1.conv1.in": [0, 4]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_device_mode_and_gradients_stay(dtype: torch.dtype) -> None:
    net = networks.shapes_net().to(dtype).train()
    net[0].weight.requires_grad_(False)
    x = torch.randn(1, 3, 32, 32, dtype=dtype)
    pruned = Surgeon(net, x).cut({"0": [3, 5], "8": [0, 1, 47]})
    assert {p.dtype for p in pruned.parameters()} == {dtype}
    assert all(module.training for module in pruned.modules())
    assert not pruned[0].weight.requires_grad and pruned[4].weight.requires_grad
    assert pruned[0].weight.shape == (2, 3, 3, 3) and pruned[1].num_features == 2
    assert torch.equal(pruned[0].weight, net[0].weight[[3, 5]])
    assert torch.equal(pruned[1].running_var, net[1].running_var[[3, 5]])


def test_shared_weights_stay_shared() -> None:
    surgeon = surgeon_of("shared", False)
    pruned = surgeon.cut({"one": [0, 4]})
    assert pruned.one.weight is pruned.two.weight
    assert pruned.alias is pruned.norm


class Failing(nn.Module):
    """Runs when it is traced, and no longer once it is smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4 * 36, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.conv(x)).view(-1, 4 * 36))


def state(net: nn.Module) -> dict[str, Any]:
    return {
        "tensors": {name: tensor.clone() for name, tensor in net.state_dict().items()},
        "identities": [id(parameter) for parameter in net.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        "needed": [parameter.requires_grad for parameter in net.parameters()],
        "modes": [module.training for module in net.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()],
        "classes": [type(module) for module in net.modules()],
        "sizes": [repr(module) for module in net.modules()],
        "random": torch.get_rng_state(),
    }


@pytest.mark.parametrize("name", [*ZOO, "failing"])
@pytest.mark.parametrize("selection", [False, True])
def test_the_original_is_left_as_it_was_whatever_happens(name: str, selection: bool) -> None:
    factory, shape = (Failing, (1, 3, 8, 8)) if name == "failing" else ZOO[name]
    net, x = factory(), torch.randn(shape)
    net.train()
    next(net.children()).eval()
    next(net.parameters()).requires_grad_(False)
    last = list(net.parameters())[-1]
    last.grad = torch.ones_like(last)
    net.register_forward_hook(lambda *_: None)
    before = copy.deepcopy(state(net)) | {"identities": state(net)["identities"]}
    surgeon = Surgeon(net, x, selection=selection)
    try:
        surgeon.cut({site.name: range(site.blocks) if site.blocks > 1 else [0] for site in surgeon.sites})
    except NetworkError:
        assert name in ("failing", "grouped")
    after = state(net)
    for key, value in before.items():
        if key == "tensors":
            assert all(torch.equal(value[name], after[key][name]) for name in value)
        elif key == "gradients":
            assert [None if g is None else g.tolist() for g in value] == [
                None if g is None else g.tolist() for g in after[key]
            ]
        elif key == "random":
            assert torch.equal(value, after[key])
        else:
            assert value == after[key], key


def test_weights_that_a_layer_clips_while_it_runs_are_clipped_in_copies_only() -> None:
    class Clipping(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            self.weight.data.clamp_(-0.1, 0.1)
            return super().forward(x)

    net, x = nn.Sequential(nn.Conv2d(3, 4, 1), Clipping(4, 6, 1), nn.Conv2d(6, 2, 1)), torch.randn(2, 3, 4, 4)
    before = copy.deepcopy(net.state_dict())
    pruned = Surgeon(net, x).cut({"0": [1, 3]})
    cost(net, x, latency=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert torch.equal(pruned[1].weight, net[1].weight[:, [1, 3]])


def test_what_is_cut_in_inference_mode_can_be_trained() -> None:
    net, x = networks.digits_net(), torch.randn(4, 1, 8, 8)
    with torch.inference_mode():
        pruned = evoprune.prune(net, "l1", example_inputs=x, ratio=0.5).network
    pruned.train()(x).sum().backward()
    assert all(parameter.grad is not None for parameter in pruned.parameters())


def test_a_view_with_a_written_out_size_is_caught() -> None:
    surgeon = Surgeon(Failing(), torch.randn(2, 3, 8, 8))
    with pytest.raises(NetworkError, match="cut at site 'conv' is wrong: the pruned network"):
        surgeon.cut({"conv": [0, 2]})


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (
            {"conv9": [0]},
            r"no site 'conv9' to keep channels of \(did you mean 'conv\d'\?\); the sites are conv1, ",
        ),
        ({"conv1": []}, "'conv1' are at least one of 0…19, each once, got"),
        ({"conv1": [0, 20]}, "0…19"),
        ({"conv1": [-1]}, "0…19"),
        ({"conv1": [1, 1]}, "each once"),
    ],
)
def test_kept_channels_that_do_not_fit_are_refused(kept: dict[str, list[int]], message: str) -> None:
    surgeon = Surgeon(networks.LeNet5(), torch.randn(1, 1, 28, 28))
    with pytest.raises(SiteError, match=message):
        surgeon.cut(kept)


def test_uneven_groups_are_refused() -> None:
    with pytest.raises(SiteError, match="each of its 3 runs of 4 channels must keep equally many"):
        surgeon_of("grouped", False).cut({"grouped": [0, 1, 4, 8]})


def test_a_network_of_shapes_alone_is_not_cut() -> None:
    with torch.device("meta"):
        net, x = networks.LeNet5(), torch.empty(1, 1, 28, 28)
    for cut in (Surgeon(net, x).cut, lambda kept: evoprune.prune(net, "l1", example_inputs=x, ratio=0.5)):
        with pytest.raises(NetworkError, match="the network is on the meta device"):
            cut({"conv1": [0]})


def test_a_network_that_cannot_be_copied_is_refused() -> None:
    net = networks.LeNet5()
    net.conv1.names = (name for name in ())
    with pytest.raises(NetworkError, match="cannot be copied"):
        Surgeon(net, torch.randn(1, 1, 28, 28))
