"""A second, plainer way to compute what a cut must give, and random channels to keep."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from evoprune.networks import ChannelSelect
from evoprune.networks.layers import selection_of
from evoprune.pruning.sites import Site


def awake(net: nn.Module, example: Tensor) -> nn.Module:
    """In float64 and eval mode, with batch-norms that have seen data and weights without zeros."""
    net = net.double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            spread = 1.0 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(spread * noise + (0.5 if parameter.ndim == 1 else 0.0))
        net.train()
        for _ in range(3):
            batch = [max(4, example.shape[0]), *example.shape[1:]]
            net(torch.randn(batch, generator=generator, dtype=torch.float64))
    return net.eval()


def masked(net: nn.Module, sites: Sequence[Site], kept: Mapping[str, Sequence[int]], x: Tensor) -> Tensor:
    """The network's output, the weights that read removed channels being zero."""
    net = copy.deepcopy(net)
    for site in sites:
        gone = sorted(set(range(site.channels)) - set(kept[site.name]))
        for reader in site.readers:
            layer = net.get_submodule(reader.module)
            copies = len(reader.positions) // site.channels
            places = [reader.positions[channel * copies + at] for channel in gone for at in range(copies)]
            if not places:
                continue
            if isinstance(layer, ChannelSelect) or selection_of(layer) is not None:
                layer.register_forward_pre_hook(
                    lambda _, args, places=places: args[0].index_fill(1, torch.tensor(places), 0.0)
                )
                continue
            weight, groups = layer.weight.data, getattr(layer, "groups", 1)
            if getattr(layer, "transposed", False):
                weight[places] = 0
                continue
            width = weight.shape[1]
            rows = weight.shape[0] // groups
            for place in places:
                group = place // width
                weight[group * rows : (group + 1) * rows, place - group * width] = 0
    with torch.no_grad():
        return net(x)


@st.composite
def kept_sets(draw: st.DrawFn, sites: Sequence[Site]) -> dict[str, list[int]]:
    """Channels to keep at each site: any, as long as grouped convolutions stay even."""
    seed = draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    kept: dict[str, list[int]] = {}
    for site in sites:
        run = site.channels // site.blocks
        lone = draw(st.integers(0, 9)) == 0  # now and then a single channel
        share = 0.0 if lone else draw(st.floats(0.0, 1.0))
        each = max(1, round(share * run))
        chosen = []
        for block in range(site.blocks):
            free = list(range(block * run, (block + 1) * run))
            order = torch.randperm(run, generator=generator)[:each].tolist()
            chosen += [free[at] for at in order]
        if site.parents:
            left = [
                c for c in chosen if site.parents[c] is None or site.parents[c][1] in kept[site.parents[c][0]]
            ]
            fallback = [
                c
                for c in range(site.channels)
                if site.parents[c] is None or site.parents[c][1] in kept[site.parents[c][0]]
            ]
            chosen = left or fallback[:1]
        kept[site.name] = sorted(chosen)
    return kept
