"""Torch-Pruning in both directions: our functions inside its pruners, its importances on our surgery."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch_pruning as tp
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from evoprune.errors import EvopruneError, NetworkError, ScoringError, SiteError
from evoprune.networks.layers import ChannelSelect, put_select, selection_of
from evoprune.pruning.calling import detached_copy, left_by_calls
from evoprune.pruning.inputs import example_of
from evoprune.pruning.sites import Rows, Site, find_sites


class ChannelSelectPruner(tp.pruner.function.BasePruningFunc):  # type: ignore[misc]
    """Tells a dependency graph how to cut a `ChannelSelect`: its two sides are independent."""

    TARGET_MODULES = ChannelSelect

    def prune_out_channels(self, layer: ChannelSelect, idxs: Sequence[int]) -> ChannelSelect:
        gone = set(idxs)
        layer.choose([i for at, i in enumerate(layer.chosen) if at not in gone], layer.in_channels)
        return layer

    def prune_in_channels(self, layer: ChannelSelect, idxs: Sequence[int]) -> ChannelSelect:
        gone = set(idxs)
        left = [i for i in range(layer.in_channels) if i not in gone]
        places = {old: new for new, old in enumerate(left)}
        # What reads a removed channel reads zeros.
        layer.choose([places.get(i, -1) for i in layer.chosen], len(left))
        return layer

    def get_out_channels(self, layer: ChannelSelect) -> int:
        return layer.out_channels

    def get_in_channels(self, layer: ChannelSelect) -> int:
        return layer.in_channels


def customized_pruners() -> dict[type[nn.Module], Any]:
    """What `customized_pruners=` of Torch-Pruning needs for networks with a `ChannelSelect`."""
    return {ChannelSelect: ChannelSelectPruner()}


class FunctionImportance(tp.importance.Importance):  # type: ignore[misc]
    """A function of ours as an importance inside Torch-Pruning's pruners.

    `function` is a name in the library, a text or an `Expr`. Functions of feature maps need `data`, and
    then see exactly what `evoprune.score` sees; so do the others where `example_inputs` is given. Without
    either, W and B are those of the group that Torch-Pruning gives: of its root and the last batch-norm
    behind it.
    """

    def __init__(
        self,
        function: Any,
        data: Any = None,
        *,
        example_inputs: Any = None,
        device: str | torch.device | None = None,
        seed: int = 0,
    ) -> None:
        from evoprune.expression.library import resolve

        self.function = resolve(function)
        self.data = data
        self.device = device
        self.seed = seed
        self.example_inputs = (
            example_of(data) if example_inputs is None and data is not None else example_inputs
        )
        self._scored: tuple[list[tuple[nn.Parameter, int]], dict[str, dict[int, float]]] | None = None

    def __call__(self, group: Any) -> Tensor:
        """The scores of the group's channels, `[channel]`."""
        device = next(group._DG.model.parameters()).device
        if self.example_inputs is None:
            scores = self._from_group(group)
        else:
            dependency, channels = group[0]
            scores = self._from_sites(group._DG.model, dependency.target.module, list(channels))
        return torch.as_tensor(scores, dtype=torch.float32, device=device)

    def __deepcopy__(self, memo: Any) -> FunctionImportance:
        return copy.copy(self)  # the data are shared, and nothing is changed in place

    def _from_group(self, group: Any) -> Any:
        from evoprune.scoring.arrays import score_arrays

        module, channels = _producer(group)
        weight = getattr(module, "weight", None)
        if weight is None:
            raise ScoringError(
                f"{type(module).__name__} has no filters to score; pass example_inputs= or data="
            )
        if getattr(module, "transposed", False):
            inputs = weight.shape[0] // module.groups
            weight = weight.reshape(-1, inputs, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)
        norms = [d.target.module for d, _ in group if isinstance(d.target.module, _BatchNorm)]
        batch_norm = torch.tensor([[1.0, 0.0, 0.0, 1.0]]).repeat(len(weight), 1)
        if norms and _is_complete(norms[-1]) and norms[-1].num_features == len(weight):
            columns = (norms[-1].weight, norms[-1].bias, norms[-1].running_mean, norms[-1].running_var)
            batch_norm = torch.stack([c for c in columns if c is not None], dim=1)
        filters = weight.detach().flatten(1)
        scores = score_arrays(
            self.function,
            filters=filters.cpu().numpy(),
            batch_norm=batch_norm.detach().cpu().numpy(),
            seed=self.seed,
        )
        return scores[channels]

    def _from_sites(self, model: nn.Module, module: nn.Module, channels: list[int]) -> list[float]:
        by_layer = self._scores(model)
        name = next(name for name, other in model.named_modules() if other is module)
        rows = by_layer.get(name, {})
        missing = [channel for channel in channels if channel not in rows]
        if missing:
            raise SiteError(
                f"channels {missing[:10]} of layer {name!r} belong to no site that can be scored; "
                f"the layers that do are {', '.join(by_layer)}. Pass it as one of ignored_layers="
            )
        return [rows[channel] for channel in channels]

    def _scores(self, model: nn.Module) -> dict[str, dict[int, float]]:
        """The scores by layer and output channel; once for as long as the network stays the same."""
        state = [(parameter, parameter._version) for parameter in model.parameters()]
        if self._scored is not None:
            same = len(state) == len(self._scored[0]) and all(
                one is other and version == before
                for (one, version), (other, before) in zip(state, self._scored[0], strict=True)
            )
            if same:
                return self._scored[1]
        from evoprune.scoring.score import score

        found = find_sites(model, self.example_inputs, lenient=True).sites
        scores = score(model, [self.function], self.data, sites=found, device=self.device, seed=self.seed)
        by_layer: dict[str, dict[int, float]] = {}
        for site in found:
            values = torch.as_tensor(scores[self.function.name][site.name]).tolist()
            rows_of = [*site.producers, *site.carried]
            if site.selects is not None:
                # Torch-Pruning knows the choice as a layer of its own, in front of the one that reads it.
                rows_of = [Rows(f"{site.selects}.select", tuple(range(site.channels)))]
            for rows in rows_of:
                copies = len(rows.rows) // site.channels
                for at, row in enumerate(rows.rows):
                    by_layer.setdefault(rows.module, {})[row] = values[at // copies]
        self._scored = state, by_layer
        return by_layer


def _producer(group: Any) -> tuple[nn.Module, list[int]]:
    """The first layer of a group that makes its channels and is not depthwise, and at which rows."""
    for dependency, channels in group:
        module = dependency.target.module
        makes = group._DG.is_out_channel_pruning_fn(dependency.handler)
        depthwise = isinstance(module, _ConvNd) and 1 < module.groups == module.in_channels
        if makes and isinstance(module, (_ConvNd, nn.Linear)) and not depthwise:
            return module, list(channels)
    return group[0][0].target.module, list(group[0][1])


def _is_complete(norm: _BatchNorm) -> bool:
    return norm.affine and norm.track_running_stats


def importance_scores(
    importance: Any, model: nn.Module, example_inputs: Any, sites: Sequence[Site]
) -> Mapping[str, Any]:
    """What an importance of Torch-Pruning gives for each site's channels.

    Its graph is built on a copy, where all parameters require gradients (it follows nothing else) and
    have the gradients of the original's. What the importance has gathered about the original's parameters
    and layers (Hessians, masks) is copied along, so that it is about the copy's.
    """
    try:
        network, importance = detached_copy((model, importance), left_by_calls(model))
    except NetworkError:
        network = detached_copy(model)  # an importance that cannot be copied
    for mine, theirs in zip(network.parameters(), model.parameters(), strict=True):
        mine.requires_grad_(True)
        mine.grad = None if theirs.grad is None else theirs.grad.clone()
    for site in sites:
        layer = network.get_submodule(site.selects) if site.selects else None
        if layer is not None and selection_of(layer) is None:
            put_select(layer, range(site.channels), site.channels)
    graph = tp.DependencyGraph().build_dependency(
        network, example_inputs=example_inputs, customized_pruners=customized_pruners(), verbose=False
    )
    scores = {}
    for site in sites:
        module, rows = _root(network, site)
        pruner = graph.get_pruner_of_module(module)
        group = graph.get_pruning_group(module, pruner.prune_out_channels, list(rows))
        same = _same_coupling(graph, group, site)
        values = _importance_of(importance, group, site) if same else None
        if values is None or len(values) != site.channels:
            why = "gives no scores for" if same else "cannot score"
            graph_is_wrong = (
                "" if same else (": Torch-Pruning's graph does not couple its channels as the network does")
            )
            raise SiteError(
                f"{type(importance).__name__} {why} site {site.name!r}{graph_is_wrong}; leave the site whole "
                f"with ignore=[{site.name!r}], or prune with a function"
            )
        scores[site.name] = np.asarray(values.detach().cpu(), dtype=np.float64)
    return scores


def _importance_of(importance: Any, group: Any, site: Site) -> Tensor | None:
    try:
        scores: Tensor | None = importance(group)
    except EvopruneError:
        raise
    except Exception as error:
        raise ScoringError(
            f"{type(importance).__name__} failed at site {site.name!r}: {type(error).__name__}: {error}; "
            "importances by gradients need a backward pass through the network first"
        ) from error
    return scores


def _root(network: nn.Module, site: Site) -> tuple[nn.Module, tuple[int, ...]]:
    if site.selects is not None:
        select = selection_of(network.get_submodule(site.selects))
        assert select is not None
        return select, tuple(range(site.channels))
    rows = site.producers[0]
    return network.get_submodule(rows.module), rows.rows


def _same_coupling(graph: Any, group: Any, site: Site) -> bool:
    """Whether the group cuts the layers that the site is made and read by, at the same channels."""
    outs = {rows.module: set(rows.rows) for rows in site.producers}
    ins: dict[str, set[int]] = {}
    for reader in site.readers:
        if site.selects is None:
            ins.setdefault(reader.module, set()).update(reader.positions)
        else:
            ins[reader.module] = set(range(site.channels))
    found_outs: dict[str, set[int]] = {}
    found_ins: dict[str, set[int]] = {}
    names = {module: name for name, module in graph.model.named_modules()}
    for dependency, channels in group:
        module = dependency.target.module
        if not isinstance(module, (_ConvNd, nn.Linear)) or module not in names:
            continue
        if isinstance(module, _ConvNd) and module.groups == module.out_channels > 1:
            continue
        found = found_outs if graph.is_out_channel_pruning_fn(dependency.handler) else found_ins
        found.setdefault(names[module], set()).update(channels)
    layers = {
        name: v for name, v in outs.items() if not isinstance(graph.model.get_submodule(name), ChannelSelect)
    }
    readers = {
        name: v for name, v in ins.items() if not isinstance(graph.model.get_submodule(name), ChannelSelect)
    }
    return found_outs == layers and found_ins == readers
