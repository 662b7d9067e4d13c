"""New batch-norm statistics for a cut network, from images and without training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from evoprune.errors import NetworkError
from evoprune.pruning.calling import call_network
from evoprune.pruning.inputs import batches_of


def recalibrate(network: nn.Module, data: Any) -> None:
    """Replace, in place, all running means and variances by the averages over one pass of the data.

    Everything but the batch-norms stays in eval mode (dropout is off); every module's mode and the
    momenta are as before afterwards.
    """
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    modes = {module: module.training for module in network.modules()}
    momenta = [norm.momentum for norm in norms]
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    network.eval()
    seen = 0
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over the batches
            norm.train()
        with torch.no_grad():
            for inputs in batches_of(data):
                _try(network, inputs.to(device) if hasattr(inputs, "to") else inputs)
                seen += 1
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    if not seen:
        raise NetworkError("batch-norm statistics cannot be recalibrated on data without a batch")


def _try(network: nn.Module, inputs: Any) -> None:
    try:
        call_network(network, inputs)
    except Exception as error:
        what = f"of shape {list(inputs.shape)}" if hasattr(inputs, "shape") else f"{inputs!r:.60}"
        raise NetworkError(
            f"the network failed on the images to recalibrate with, {what}: {type(error).__name__}: {error}"
        ) from error
