"""Networks from `module:factory`, and weights put into them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evoprune import config
from evoprune.errors import ConfigError, SavedFileError


def build(network: str, options: Mapping[str, Any]) -> nn.Module:
    """Call a `module:factory` with its options."""
    module_name, _, name = network.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"network {network!r}: there is no module {error.name!r}; it must be importable, "
            "installed or below the folder you are in"
        ) from None
    except Exception as error:
        raise ConfigError(f"network {network!r}: importing {module_name} failed: {error!r}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        made = [
            other for other, value in vars(module).items() if callable(value) and not other.startswith("_")
        ]
        raise ConfigError(config.unknown_key(name, made, where=module_name, what="factory"))
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # what is written in C may have none
        signature = inspect.signature(lambda **options: None)
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"network {network!r} cannot be called with the options {dict(options)}: {error}; "
            f"it takes {signature}"
        ) from None
    try:
        made = factory(**options)
    except Exception as error:  # whatever the factory's own code raises
        raise ConfigError(f"network {network!r} failed when it was built: {error!r}") from error
    if not isinstance(made, nn.Module):
        raise ConfigError(f"network {network!r} gave {type(made).__name__}, expected a torch.nn.Module")
    return made


def with_weights(network: nn.Module, weights: Mapping[str, torch.Tensor], path: Path) -> nn.Module:
    own = network.state_dict()
    # Counts of batches are no weights, and older files have none.
    missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    unknown = [name for name in weights if name not in own]
    shapes = [
        f"{name} {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    problems = {"lacks": missing, "has besides": unknown, "has in other shapes": shapes}
    told = [
        f"it {what} {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
        for what, names in problems.items()
        if names
    ]
    if told:
        raise SavedFileError(f"{path} does not fit the network {type(network).__name__}: {'; '.join(told)}")
    network.load_state_dict(
        {name: value.to(own[name].dtype) for name, value in weights.items()}, strict=False
    )
    return network
