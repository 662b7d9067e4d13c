"""Running a network over batches, with a look at each site's maps as they pass by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from evoprune.errors import ScoringError
from evoprune.pruning.sites import Site, first_read, maps_of


@contextmanager
def watching(
    model: nn.Module, sites: Sequence[Site], see: Callable[[Site, Tensor], None], autocast: bool = False
) -> Iterator[Callable[[Tensor], None]]:
    """Gives a function that runs the network on a batch and shows each site's maps as they pass by.

    see(site, maps): called in the forward pass with maps `[image, channel, H, W]`. On leaving, hooks are
    gone, and every module is in the mode it was in and has the buffers it had.
    """
    by_module: dict[str, list[Site]] = {}
    for site in sites:
        by_module.setdefault(first_read(site).module, []).append(site)
    calls: dict[str, int] = {}
    modes = {module: module.training for module in model.modules()}
    # Evaluation mode keeps batch-norm from writing to its buffers, but not every module of a user.
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in modes
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    device = device_of(model)
    handles: list[Any] = []
    layout = torch.preserve_format

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = calls[name] = calls.get(name, -1) + 1
        given = args[0] if args else next(iter(kwargs.values()))
        for site in by_module[name]:
            if first_read(site).call == call:
                with torch.autocast(device.type, enabled=False):  # the sums keep their precision
                    see(site, maps_of(site, given.detach()))

    def run(images: Tensor) -> None:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            model(images)

    def forward(images: Tensor) -> None:
        nonlocal layout
        images = images.to(device, non_blocking=True)
        if not handles:
            layout = _layout(run, images)
            for name in by_module:
                module = model.get_submodule(name)
                handles.append(module.register_forward_pre_hook(partial(hook, name), with_kwargs=True))
        calls.clear()
        try:
            run(images.contiguous(memory_format=layout) if layout is not torch.preserve_format else images)
        except (ScoringError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise ScoringError(
                f"the network's forward pass failed on images {list(images.shape)} of {images.dtype}: "
                f"{type(error).__name__}: {error}"
            ) from error

    try:
        model.eval()
        yield forward
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
        with torch.inference_mode():  # in which tensors that were made in it can be written to, too
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


def _layout(run: Callable[[Tensor], None], images: Tensor) -> torch.memory_format:
    """How images had best lie in memory: channels last on a CPU, if the network takes them so.

    Convolutions and pooling are faster then. What calls `view` may refuse: two images are tried.
    """
    if images.device.type != "cpu" or images.ndim != 4:
        return torch.preserve_format
    with torch.random.fork_rng(devices=[]), suppress(Exception):
        run(images[:2].contiguous(memory_format=torch.channels_last))
        return torch.channels_last
    return torch.preserve_format


def device_of(model: nn.Module) -> torch.device:
    """Where the network's parameters are."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
