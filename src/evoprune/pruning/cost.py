"""What a network costs: multiply-accumulates, parameters, and measured time.

A multiply-accumulate is one weight applied once: kernel × c_in / groups × c_out × output pixels of a
convolution, in × out of a fully connected layer. Biases, norms and activations are not counted (what
papers call FLOPs is mostly this number, in the paper implemented here too).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from evoprune.pruning.calling import call_network, detached_copy, untouched_randomness
from evoprune.pruning.channels import Ids
from evoprune.pruning.follow import Trace, follow
from evoprune.pruning.inputs import usable_device
from evoprune.pruning.sites import Site, Structure


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer: multiply-accumulates for one image, and its own parameters."""

    name: str
    macs: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Cost:
    """A network's cost for one image; `latency` is in seconds per call, where it was measured."""

    layers: tuple[LayerCost, ...]
    latency: float | None = None

    @property
    def macs(self) -> int:
        return sum(layer.macs for layer in self.layers)

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)


def cost(model: nn.Module, example_inputs: Any, *, latency: bool = False) -> Cost:
    """Count a network's multiply-accumulates and parameters per layer; optionally measure its time."""
    counted = CostModel(model, follow(model, example_inputs), (), {}).cost({})
    if not latency:
        return counted
    return Cost(counted.layers, measure_latency(model, example_inputs))


def measure_latency(
    model: nn.Module, inputs: Any, *, device: str | torch.device | None = None, repeats: int = 20
) -> float:
    """The median time of one forward pass in eval mode, in seconds, after three to warm up.

    On the inputs' device, or another one; the network itself is not moved and its mode not changed.
    """
    network = detached_copy(model).eval()
    if device is not None:
        network.to(usable_device(device))
        inputs = tree_map_only(Tensor, lambda tensor: tensor.to(device), inputs)
    devices = {parameter.device for parameter in network.parameters()}
    times = []
    with untouched_randomness(inputs), torch.inference_mode():
        for _ in range(repeats + 3):
            start = time.perf_counter()
            call_network(network, inputs)
            for used in devices:
                if used.type == "cuda":
                    torch.cuda.synchronize(used)
            times.append(time.perf_counter() - start)
    return median(times[3:])


class CostModel:
    """The cost as a function of how many channels each site keeps, without cutting anything."""

    def __init__(
        self, model: nn.Module, trace: Trace, sites: tuple[Site, ...], classes: Mapping[str, Ids]
    ) -> None:
        self._layers = [trace.layers[name] for name in trace.layers]
        self._sites = sites
        at = {layer.name: row for row, layer in enumerate(self._layers)}
        shape = (len(self._layers), len(sites))
        # [layer, site]: how many of a layer's input and output channels one channel of a site is.
        self._ins, self._outs = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for column, site in enumerate(sites):
            for rows in (*site.producers, *site.carried):
                self._outs[at[rows.module], column] = len(rows.rows) // site.channels
            for reader in site.readers:
                layer = trace.layers[reader.module]
                if layer.stream_ids is None or site.selects == layer.name:
                    self._ins[at[layer.name], column] = len(reader.positions) // site.channels
        self._in = np.array([len(layer.in_ids) for layer in self._layers], dtype=np.int64)
        self._out = np.array([len(layer.out_ids) for layer in self._layers], dtype=np.int64)
        self._full = np.array([site.channels for site in sites], dtype=np.int64)
        self._weights = np.array([_weights_per_pair(layer) for layer in self._layers], dtype=np.int64)
        self._pixels = np.array([layer.pixels for layer in self._layers], dtype=np.int64)
        # [layer, site]: the pixels of one of the site's channels, where the layer works on each apart.
        self._apart = np.zeros(shape, dtype=np.int64)
        for at_row, layer in enumerate(self._layers):
            for ids, pixels in layer.apart:
                self._pixels[at_row] += pixels * len(ids)
                for column, site in enumerate(sites):
                    copies = int(np.isin(ids, classes[site.name]).sum()) // site.channels
                    self._apart[at_row, column] += pixels * copies
        # What all other parameters have in common: one per output channel, or no channel axis at all.
        self._per_out = np.zeros(len(self._layers), dtype=np.int64)
        self._fixed = np.zeros(len(self._layers), dtype=np.int64)
        self._others: list[LayerCost] = []
        counted: set[int] = set()
        weighted = np.zeros(len(self._layers), dtype=bool)
        for name, module in model.named_modules():
            own = [p for p in module.parameters(recurse=False) if id(p) not in counted]
            counted.update(id(p) for p in own)
            row = at.get(name)
            if row is None:
                if own:
                    self._others.append(LayerCost(name, 0, sum(p.numel() for p in own)))
                continue
            layer = self._layers[row]
            for parameter in own:
                if parameter is module._parameters.get("weight") and not layer.carries:
                    weighted[row] = True
                elif len(layer.out_ids) and parameter.numel() % len(layer.out_ids) == 0:
                    self._per_out[row] += parameter.numel() // len(layer.out_ids)
                else:
                    self._fixed[row] += parameter.numel()
        self._weighted = weighted

    def totals(self, counts: Mapping[str, int]) -> tuple[int, int]:
        """Multiply-accumulates and parameters where each site keeps that many channels (else all)."""
        macs, parameters = self._arrays(counts)
        return int(macs.sum()), int(parameters.sum()) + sum(other.parameters for other in self._others)

    def cost(self, counts: Mapping[str, int]) -> Cost:
        """The same, layer by layer."""
        macs, parameters = self._arrays(counts)
        layers = [
            LayerCost(layer.name, int(m), int(p))
            for layer, m, p in zip(self._layers, macs, parameters, strict=True)
            if m or p
        ]
        return Cost((*layers, *self._others))

    def _arrays(self, counts: Mapping[str, int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        kept = [counts.get(site.name, site.channels) for site in self._sites]
        removed = self._full - np.array(kept, dtype=np.int64)
        ins, outs = self._in - self._ins @ removed, self._out - self._outs @ removed
        groups = np.array([max(layer.groups, 1) for layer in self._layers], dtype=np.int64)
        depthwise = np.array([layer.kind == "depthwise" for layer in self._layers])
        weights = self._weights * outs * np.where(depthwise, 1, ins // groups)
        pixels = self._pixels - self._apart @ removed
        return weights * pixels, weights * self._weighted + self._per_out * outs + self._fixed


def cost_model(model: nn.Module, structure: Structure) -> CostModel:
    """The cost model of a network whose sites were found."""
    return CostModel(model, structure.trace, structure.sites, structure.classes)


def _weights_per_pair(layer: Any) -> int:
    return layer.kernel if layer.produces or layer.kind == "depthwise" else 0
