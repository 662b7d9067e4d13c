"""Multiply-accumulates, parameters, time."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from zoo import ZOO

import evoprune
from evoprune import networks
from evoprune.pruning.cost import measure_latency


@pytest.mark.parametrize("name", ZOO)
def test_counts_agree_with_pytorchs_own(name: str) -> None:
    factory, shape = ZOO[name]
    net, x = factory().eval(), torch.randn(shape)
    counted = evoprune.cost(net, x)
    with FlopCounterMode(display=False) as counter:
        net(x)
    assert counted.macs * shape[0] == counter.get_total_flops() // 2
    assert counted.parameters == sum(parameter.numel() for parameter in net.parameters())


def test_layers_are_told_apart() -> None:
    layers = {
        layer.name: layer for layer in evoprune.cost(networks.LeNet5(), torch.randn(1, 1, 28, 28)).layers
    }
    assert {name: layer.macs for name, layer in layers.items()} == {
        "conv1": 288_000,
        "conv2": 1_600_000,
        "fc1": 400_000,
        "fc2": 5_000,
    }
    assert layers["conv1"].parameters == 20 * 25 + 20


def test_parameters_outside_known_layers_are_counted() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.LSTM(5, 3))
    net.forward = lambda x: net[1](net[0](x))  # type: ignore[method-assign]
    counted = evoprune.cost(net, torch.randn(1, 3, 2, 2))
    assert counted.parameters == sum(parameter.numel() for parameter in net.parameters())


def test_latency_is_measured_and_leaves_the_network_alone() -> None:
    net, x = networks.shapes_net().train(), torch.randn(1, 3, 32, 32)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert 0 < measure_latency(net, x, repeats=3) < 5
    assert evoprune.cost(net, x, latency=True).latency > 0
    assert net.training and all(torch.equal(before[name], t) for name, t in net.state_dict().items())
