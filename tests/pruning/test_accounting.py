"""The paper's published costs come out, without training: FLOPs are multiply-accumulates.

Shapes are all that is needed, so the networks live on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from evoprune import networks
from evoprune.pruning.cost import CostModel, cost_model
from evoprune.pruning.select import Rule, site_counts
from evoprune.pruning.sites import Structure, find_sites

# Fully connected layers are cut in LeNet-5 and the CIFAR VGG only.
FC = ["classifier.0", "classifier.3"]
CIFAR, IMAGENET = (1, 3, 32, 32), (1, 3, 224, 224)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "LeNet-5": (networks.LeNet5, (1, 1, 28, 28), {"flatten_features": ["fc1"]}),
    "VGG-16": (networks.vgg16, CIFAR, {}),
    "VGG-19": (networks.vgg19, CIFAR, {}),
    "ResNet-38": (lambda: networks.preact_resnet(38, 100), CIFAR, {"selection": True}),
    "ResNet-56": (lambda: networks.preact_resnet(56, 100), CIFAR, {"selection": True}),
    "ResNet-110": (lambda: networks.preact_resnet(110, 100), CIFAR, {"selection": True}),
    "ResNet-164, 100 classes": (lambda: networks.preact_resnet(164, 100), CIFAR, {"selection": True}),
    "ResNet-164, 10 classes": (lambda: networks.preact_resnet(164), CIFAR, {"selection": True}),
    "VGG-16, ImageNet": (networks.vgg16_imagenet, IMAGENET, {"ignore": FC}),
    "ResNet-18": (networks.resnet18, IMAGENET, {"selection": True}),
    "MobileNetV2": (networks.mobilenet_v2, IMAGENET, {"selection": True}),
}


@cache
def known(name: str) -> tuple[Structure, CostModel]:
    factory, shape, options = NETWORKS[name]
    with torch.device("meta"):
        net, example = factory(), torch.empty(shape)
    structure = find_sites(net, example, **options)
    return structure, cost_model(net, structure)


def removed(name: str, rule: Rule) -> tuple[float, float, dict[str, int]]:
    """Multiply-accumulates and parameters removed, in per cent, and the kept numbers of channels."""
    structure, costs = known(name)
    full = costs.totals({})
    counts = site_counts(structure.sites, rule, lambda c: 1 - costs.totals(c)[0] / full[0])
    left = costs.totals(counts)
    return 100 * (1 - left[0] / full[0]), 100 * (1 - left[1] / full[1]), counts


def test_lenet_to_the_digit() -> None:
    rule = Rule(per_site={"conv1": 0.75, "conv2": 0.76, "fc1.in": 1 / 6, "fc1": 0.92})
    flops, params, counts = removed("LeNet-5", rule)
    assert list(counts.values()) == [5, 12, 160, 40]
    assert (round(flops, 1), round(params, 1)) == (92.4, 98.0)


def test_vgg_16_keeps_the_published_channels() -> None:
    """40 % uniformly, kept numbers rounded up to even ones."""
    flops, params, counts = removed("VGG-16", Rule(0.4, round_to=2))
    assert list(counts.values()) == [40, 40, 78, 78, 154, 154, 154, *[308] * 7]
    assert flops == pytest.approx(63.0, abs=0.1) and params == pytest.approx(63.7, abs=0.1)


@pytest.mark.parametrize(
    ("name", "ratio", "flops", "within", "params"),
    [("ResNet-38", 0.4, 54.7, 0.3, 52.4), ("ResNet-18", 0.3, 36.4, 0.5, None)],
)
def test_uniform_ratios(name: str, ratio: float, flops: float, within: float, params: float | None) -> None:
    got = removed(name, Rule(ratio))
    assert got[0] == pytest.approx(flops, abs=within)
    assert params is None or got[1] == pytest.approx(params, abs=within)


@pytest.mark.parametrize(
    ("name", "flops", "params"),
    [
        ("ResNet-56", 56.2, 54.9),
        ("ResNet-110", 56.2, 55.8),
        ("ResNet-164, 100 classes", 63.2, 61.8),
        ("ResNet-164, 10 classes", 63.2, 63.0),
        # One ratio for all layers cannot give the published parameters of these.
        ("ResNet-18", 16.8, None),
        ("ResNet-18", 36.7, None),
        ("ResNet-18", 41.0, None),
        ("VGG-19", 61.0, None),
        ("VGG-16, ImageNet", 59.0, None),
        ("VGG-16, ImageNet", 66.9, None),
        ("MobileNetV2", 26.9, None),
        ("MobileNetV2", 53.4, None),
    ],
)
def test_targets(name: str, flops: float, params: float | None) -> None:
    got = removed(name, Rule(target=flops / 100))
    assert got[0] == pytest.approx(flops, abs=0.5)
    assert params is None or got[1] == pytest.approx(params, abs=2.0)


@pytest.mark.parametrize(
    ("name", "macs", "parameters"),
    [
        ("LeNet-5", 2_293_000, 431_080),
        ("VGG-16", 313_463_808, 14_987_722),
        ("VGG-19", 398_182_400, 20_081_188),
        ("VGG-16, ImageNet", 15_470_264_320, 138_357_544),
        ("ResNet-18", 1_814_073_344, 11_689_512),
        ("MobileNetV2", 300_774_272, 3_504_872),
    ],
)
def test_unpruned(name: str, macs: int, parameters: int) -> None:
    assert known(name)[1].totals({}) == (macs, parameters)
