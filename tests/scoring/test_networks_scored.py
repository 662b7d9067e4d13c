"""On every network of the project, what is streamed is what arrays give, site by site."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_score import maps
from torch import nn

import evoprune
from evoprune import networks
from evoprune.pruning.sites import batch_norm_of, filters_of

FUNCTIONS = [
    "xi_star",
    "xi_1",
    "sym_div",
    "t_test",
    "xi_imagenet",
    "mean_g(var_s(sq(F+)))",
    "fpgm",
    "bn_scale",
    "mmd",
]

# network → (how it is made, input shape, options of evoprune.sites)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, object]]] = {
    "lenet5": (networks.LeNet5, (1, 28, 28), {}),
    "lenet5 with its flatten": (networks.LeNet5, (1, 28, 28), {"flatten_features": ["fc1"]}),
    "digits": (networks.digits_net, (1, 8, 8), {}),
    "shapes": (networks.shapes_net, (3, 32, 32), {}),
    "resnet20": (networks.resnet20, (3, 32, 32), {}),
    "resnet20, selection": (networks.resnet20, (3, 32, 32), {"selection": True}),
    "preact 20": (lambda: networks.preact_resnet(20), (3, 32, 32), {"selection": True}),
    "preact 38, bottlenecks": (lambda: networks.preact_resnet(38), (3, 32, 32), {"selection": True}),
    "vgg16": (networks.vgg16, (3, 32, 32), {}),
    "vgg19": (networks.vgg19, (3, 32, 32), {}),
    "resnet56": (networks.resnet56, (3, 32, 32), {}),
    "resnet18": (networks.resnet18, (3, 64, 64), {}),
    "mobilenet_v2": (networks.mobilenet_v2, (3, 64, 64), {"selection": True}),
}


SLOW = ("vgg16", "vgg19", "resnet56", "resnet18")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy if name in SLOW else ()) for name in NETWORKS]
)
def test_streamed_is_what_arrays_give(name: str) -> None:
    make, shape, options = NETWORKS[name]
    torch.manual_seed(0)
    model = make().double().eval()
    inputs = torch.randn(6, *shape, dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0, 2, 2])
    sites = evoprune.sites(model, inputs[:1], **options)
    scores = evoprune.score(model, FUNCTIONS, (inputs, labels), sites=sites, batch_size=4)
    for site in (sites[0], sites[len(sites) // 2], sites[-1]):
        found = maps(model, site, inputs)
        for function in FUNCTIONS:
            if function == "fpgm" and filters_of(model, site).shape[0] != site.channels:
                continue
            want = evoprune.score_arrays(
                function, found, labels, filters_of(model, site), batch_norm_of(model, site), dtype="float64"
            )
            got = scores[function][site.name]
            np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-12, err_msg=f"{site.name} {function}")
