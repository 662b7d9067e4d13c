"""A network and the channels to keep make a new, smaller network, and every cut is verified.

A `Surgeon` holds what repeated cuts of one network share: its sites, the cost model, and the networks that
the verification compares with. `cut` never touches the network it was given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evoprune.errors import NetworkError, SiteError
from evoprune.networks.layers import ZERO, ChannelSelect, put_select, selection_of
from evoprune.pruning.calling import detached_copy
from evoprune.pruning.channels import Ids
from evoprune.pruning.cost import CostModel, cost_model
from evoprune.pruning.follow import Layer
from evoprune.pruning.sites import Site, Structure, find_sites, hint, names_in
from evoprune.pruning.verify import Verifier


class Surgeon:
    """Cuts one network, as often as wanted, and verifies each cut."""

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any,
        *,
        selection: bool = False,
        ignore: Collection[str] = (),
        flatten_features: Collection[str] = (),
    ) -> None:
        self.model = model
        self.example_inputs = example_inputs
        self.selection = selection
        self.ignore = names_in("ignore", "sites", ignore)
        self.flatten_features = names_in("flatten_features", "fully connected layers", flatten_features)
        self.structure = find_sites(
            model,
            example_inputs,
            selection=selection,
            ignore=self.ignore,
            flatten_features=self.flatten_features,
        )
        self.costs: CostModel = cost_model(model, self.structure)
        self._verifier: Verifier | None = None

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.structure.sites

    def cut(self, kept: Mapping[str, Iterable[int]]) -> nn.Module:
        """A new network that keeps these channels of each site (all, where a site is not named).

        Raises `SurgeryError` where the result is not the original with the other channels zeroed.
        """
        checked = checked_kept(self.sites, kept)
        need_weights(self.model)
        if self._verifier is None:
            self._verifier = Verifier(self.model, self.structure, cut)
        pruned = cut(self.model, self.structure, checked)
        self._verifier.check(pruned, checked)
        return pruned


def need_weights(model: nn.Module) -> None:
    """Refuse a network that is all shapes."""
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise NetworkError(
            "the network is on the meta device: without weights its sites and costs can be found, "
            "but nothing can be scored, cut or checked"
        )


def checked_kept(sites: Iterable[Site], kept: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    """The kept channels of every site, ascending; refused where they do not fit the sites."""
    sites = tuple(sites)
    names = [site.name for site in sites]
    for name in kept:
        if name not in names:
            raise SiteError(f"there is no site {name!r} to keep channels of{hint(str(name), names)}")
    checked: dict[str, tuple[int, ...]] = {}
    there: dict[str, set[int]] = {}
    for site in sites:
        given = [int(channel) for channel in kept.get(site.name, range(site.channels))]
        channels = tuple(sorted(set(given)))
        if (
            len(channels) != len(given)
            or not channels
            or not 0 <= channels[0] <= channels[-1] < site.channels
        ):
            raise SiteError(
                f"the kept channels of site {site.name!r} are at least one of 0…{site.channels - 1}, "
                f"each once, got {given}"
            )
        run = site.channels // site.blocks
        if len(set(np.bincount(np.array(channels) // run, minlength=site.blocks).tolist())) > 1:
            raise SiteError(
                f"site {site.name!r} belongs to a grouped convolution: each of its {site.blocks} runs of "
                f"{run} channels must keep equally many, got {list(channels)}"
            )
        for channel in channels:
            parent = site.parents[channel] if site.parents else None
            if parent is not None and parent[1] not in there.get(parent[0], {parent[1]}):
                raise SiteError(
                    f"site {site.name!r} cannot keep channel {channel}: it is taken from channel {parent[1]} "
                    f"of site {parent[0]!r}, which is removed"
                )
        checked[site.name], there[site.name] = channels, set(channels)
    return checked


@torch.inference_mode(False)
def cut(model: nn.Module, structure: Structure, kept: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """The network without the channels that are not kept; not verified.

    It can be trained, wherever it was cut.
    """
    layers = structure.trace.layers
    ids = [ids for layer in layers.values() for ids in (layer.in_ids, layer.out_ids)]
    ids += [layer.stream_ids for layer in layers.values() if layer.stream_ids is not None]
    size = 1 + max((int(some.max(initial=0)) for some in ids), default=0)
    alive = np.ones(size, dtype=bool)
    for site in structure.sites:
        removed = np.ones(site.channels, dtype=bool)
        removed[list(kept[site.name])] = False
        alive[structure.classes[site.name][removed]] = False
    # The copy gets the cut tensors in place of the old ones, by identity, so that shared ones stay shared.
    tensors: dict[int, Tensor] = {}
    for layer in layers.values():
        tensors |= _cut_tensors(model.get_submodule(layer.name), layer, alive, tensors)
    pruned = detached_copy(model, tensors)
    for layer in layers.values():
        _fit_layer(pruned.get_submodule(layer.name), layer, alive)
    return pruned


def _cut_tensors(module: Any, layer: Layer, alive: Any, done: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The tensors of a layer that get smaller: id of the old → the new."""
    ins, outs = np.flatnonzero(alive[layer.in_ids]), np.flatnonzero(alive[layer.out_ids])
    whole = len(ins) == len(layer.in_ids) and len(outs) == len(layer.out_ids)
    if layer.kind == "select" or whole or not len(layer.out_ids):
        return {}
    cut_ones: dict[int, Tensor] = {}
    for name, parameter in module.named_parameters(recurse=False):
        if id(parameter) not in done:
            values = sliced(parameter.detach(), name, layer, ins, outs)
            cut_ones[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
    for name in ("running_mean", "running_var"):
        if getattr(module, name, None) is not None:
            cut_ones[id(getattr(module, name))] = taken(getattr(module, name), 0, outs)
    return cut_ones


def _fit_layer(module: Any, layer: Layer, alive: Any) -> None:
    """Make a copied layer's sizes and selections those of its tensors."""
    ins, outs = np.flatnonzero(alive[layer.in_ids]), np.flatnonzero(alive[layer.out_ids])
    if layer.kind == "select":
        _choose_again(module, layer.index, layer.in_ids, outs, alive)
        return
    if layer.stream_ids is not None:
        _choose_again(module, layer.index, layer.stream_ids, ins, alive)
    if len(layer.out_ids):
        _set_sizes(module, layer, len(ins), len(outs))


def _choose_again(module: nn.Module, index: Ids | None, stream: Ids, outs: Ids, alive: Any) -> None:
    """Point a selection at the places where what it chooses is now."""
    assert index is not None
    places = np.where(alive[stream], np.cumsum(alive[stream]) - 1, ZERO)
    width = int(alive[stream].sum())
    chosen = np.where(index[outs] == ZERO, ZERO, places[index[outs]]).tolist()
    if isinstance(module, ChannelSelect):
        module.choose(chosen, width)
    elif chosen != list(range(width)) or selection_of(module) is not None:
        put_select(module, chosen, width)


def sliced(tensor: Tensor, name: str, layer: Layer, ins: Ids, outs: Ids) -> Tensor:
    """A layer's parameter at these input and output channels."""
    if layer.carries:
        # A transposed depthwise weight has its input channels first; they are the same in number.
        return taken(tensor, 0, ins if layer.transposed and name == "weight" else outs)
    if name == "bias":
        return taken(tensor, 0, outs)
    first, second = (ins, outs) if layer.transposed else (outs, ins)
    if layer.groups == 1:
        return taken(taken(tensor, 0, first), 1, second)
    rows, columns = (len(ids) // layer.groups for ids in _sides(layer))
    blocks = []
    for group in range(layer.groups):
        # The second axis counts within the group.
        row, column = first[first // rows == group], second[second // columns == group]
        blocks.append(taken(taken(tensor, 0, row), 1, column - group * columns))
    return torch.cat(blocks)


def _sides(layer: Layer) -> tuple[Ids, Ids]:
    """The labels along the first axis of the weight, and along the second, over all groups."""
    return (layer.in_ids, layer.out_ids) if layer.transposed else (layer.out_ids, layer.in_ids)


def taken(tensor: Tensor, axis: int, index: Ids) -> Tensor:
    """A copy of the tensor at these places of an axis."""
    return tensor.detach().index_select(axis, torch.as_tensor(index, device=tensor.device))


def _set_sizes(module: Any, layer: Layer, ins: int, outs: int) -> None:
    if layer.kind in ("conv", "depthwise"):
        module.in_channels, module.out_channels = ins, outs
        if layer.kind == "depthwise":
            module.groups = ins
    elif layer.kind == "linear":
        module.in_features, module.out_features = ins, outs
    elif layer.kind == "prelu":
        module.num_parameters = outs
    else:
        module.num_features = outs
