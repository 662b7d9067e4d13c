"""Weights for which every channel matters.

A freshly made or trained network may have channels without effect (a batch-norm scale of zero, units that
never fire), and a cut that takes the wrong one would go unseen. Here every layer gets seeded random
weights and is then shifted and scaled to what it sees, so that what comes out is mostly positive, of
moderate size, and different at every channel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evoprune.pruning.calling import call_network, copied
from evoprune.pruning.follow import Layer
from evoprune.pruning.sites import Structure

LEVEL = 2.0


def enliven(network: nn.Module, structure: Structure, inputs: Any, generator: torch.Generator) -> None:
    """Give the network (in eval mode), in place, lively weights for these inputs, in one forward pass."""
    handles = []
    for layer in structure.trace.layers.values():
        module = network.get_submodule(layer.name)
        setting = _Setting(layer, generator)
        handles.append(module.register_forward_pre_hook(setting.before, with_kwargs=True))
        handles.append(module.register_forward_hook(setting.after))
    try:
        with torch.no_grad():
            call_network(network, copied(inputs))
    finally:
        for handle in handles:
            handle.remove()


class _Setting:
    """Sets a layer's weights right before its first call, and brings them to size right after it."""

    def __init__(self, layer: Layer, generator: torch.Generator) -> None:
        self._layer = layer
        self._generator = generator
        self._calls = 0

    def before(self, module: Any, args: Any, kwargs: Any) -> None:
        self._calls += 1
        if self._calls > 1 or "weight" not in module._parameters:
            return  # later calls see the same weights; computed weights are what they are
        if self._layer.kind in ("batch_norm", "instance_norm"):
            _set_norm(module, args[0] if args else next(iter(kwargs.values())), self._generator)
        elif self._layer.kind == "prelu":
            module.weight.copy_(_uniform(module.weight, 0.1, 0.4, self._generator))
        elif self._layer.kind != "select":
            fan_in = max(1, module.weight[0].numel())
            module.weight.copy_(_normal(module.weight, self._generator) / fan_in**0.5)
            if module.bias is not None:
                module.bias.zero_()

    def after(self, module: Any, args: Any, output: Tensor) -> Tensor | None:
        weighted = self._layer.produces or self._layer.kind == "depthwise"
        if self._calls > 1 or not weighted or "weight" not in module._parameters:
            return None
        # To size one, and where there is a bias, to around `LEVEL`.
        size = output.square().mean().sqrt().clamp(min=1e-3)
        module.weight.div_(size)
        if module.bias is None:
            return output / size
        axis = output.ndim - 1 if self._layer.kind == "linear" else output.ndim - 1 - len(module.kernel_size)
        module.bias.copy_(LEVEL - output.movedim(axis, 0).flatten(1).mean(dim=1) / size)
        shape = [-1 if at == axis else 1 for at in range(output.ndim)]
        shifted: Tensor = output / size + module.bias.view(shape)
        return shifted


def _set_norm(module: Any, seen: Tensor, generator: torch.Generator) -> None:
    flat = seen.movedim(1, 0).flatten(1) if seen.ndim > 1 else seen[:, None]
    if module.running_mean is not None:
        module.running_mean.copy_(flat.mean(dim=1))
        # Not the variance alone: what masked channels take away is of the size of the mean.
        size = flat.var(dim=1, unbiased=False) + flat.square().mean()
        module.running_var.copy_(size.clamp(min=1e-3) * _uniform(size, 0.7, 1.4, generator))
    if module.weight is not None:
        module.weight.copy_(_uniform(module.weight, 0.5, 1.5, generator))
        module.bias.copy_(_uniform(module.bias, LEVEL - 0.5, LEVEL + 0.5, generator))


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def _uniform(like: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    uniform = torch.rand(like.shape, generator=generator, dtype=like.dtype)
    return (low + (high - low) * uniform).to(like.device)
