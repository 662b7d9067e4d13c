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

from evoprune.pruning.follow import Layer, call_network
from evoprune.pruning.sites import Structure

LEVEL = 2.0


def enliven(network: nn.Module, structure: Structure, inputs: Any, generator: torch.Generator) -> None:
    """Give the network (in eval mode), in place, lively weights for these inputs."""
    handles = []
    set_already: set[int] = set()
    for layer in structure.trace.layers.values():
        module = network.get_submodule(layer.name)
        handles.append(
            module.register_forward_hook(_setting(layer, set_already, generator), with_kwargs=True)
        )
    try:
        with torch.no_grad():
            call_network(network, inputs)
    finally:
        for handle in handles:
            handle.remove()


def _setting(layer: Layer, done: set[int], generator: torch.Generator) -> Any:
    """A hook that sets a layer's weights at its first call, and calls it again."""

    def hook(module: Any, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
        if layer.kind == "select" or id(module) in done:
            return None
        done.add(id(module))
        if layer.kind in ("batch_norm", "instance_norm"):
            _set_norm(module, (args[0] if args else next(iter(kwargs.values()))), generator)
        elif layer.kind == "prelu":
            module.weight.copy_(_uniform(module.weight, 0.1, 0.4, generator))
        elif not _set_weights(module, layer, generator):
            return None
        again: Tensor = module.forward(*args, **kwargs)
        if layer.produces or layer.kind == "depthwise":
            _center(module, layer, again)
            again = module.forward(*args, **kwargs)
        return again

    return hook


def _set_weights(module: Any, layer: Layer, generator: torch.Generator) -> bool:
    if "weight" not in module._parameters:
        return False  # computed from something else
    fan_in = max(1, module.weight[0].numel())
    module.weight.copy_(_normal(module.weight, generator) / fan_in**0.5)
    if module.bias is not None:
        module.bias.zero_()
    return True


def _center(module: Any, layer: Layer, output: Tensor) -> None:
    """Bring the outputs to size one, and where there is a bias, to around `LEVEL`."""
    if "weight" not in module._parameters:
        return
    size = output.square().mean().sqrt().clamp(min=1e-3)
    module.weight.div_(size)
    if module.bias is not None:
        axis = output.ndim - 1 if layer.kind == "linear" else output.ndim - 1 - len(module.kernel_size)
        module.bias.copy_(LEVEL - output.movedim(axis, 0).flatten(1).mean(dim=1) / size)


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
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def _uniform(like: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    return (low + (high - low) * torch.rand(like.shape, generator=generator, dtype=torch.float64)).to(like)
