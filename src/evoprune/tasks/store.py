"""A task's own files, each there whole or not at all, and weights from elsewhere; without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evoprune.errors import RunError, SavedFileError
from evoprune.files import write


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a kill, or another process writing it too, never leaves half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """The object in a JSON file that names its `format` as `kind`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SavedFileError(f"{path} cannot be read: {error}; remove it to have it made anew") from None
    if not isinstance(value, dict) or value.get("format") != kind:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise SavedFileError(f"{path} is not a file of the kind {kind!r}, but {found!r}")
    return value


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    from safetensors.torch import save

    # safetensors takes dense tensors that share no memory.
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_bytes(path, save(own, dict(header)))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header of a safetensors file whose header names its `format` as `kind`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise SavedFileError(f"{path} cannot be read: {error}; remove it to have it made anew") from None
    if header.get("format") != kind:
        raise SavedFileError(f"{path} is not a file of the kind {kind!r}, but {header.get('format')!r}")
    return tensors, header


def read_weights(path: Path) -> dict[str, Tensor]:
    """A network's weights from a file: safetensors, or a PyTorch file that holds nothing but tensors.

    Finds them under `state_dict` or `model`, and takes the prefix `module.` of data-parallel training off.
    """
    if not path.is_file():
        raise SavedFileError(f"there is no file of weights {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, pickle, zip and safetensors each raise their own
        raise SavedFileError(
            f"{path} cannot be read as weights (safetensors, or a PyTorch file of tensors only): "
            # What follows would be torch's advice to load it as code.
            f"{str(error).splitlines()[0].partition('. ')[0]:.200}"
        ) from None
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content:
        raise SavedFileError(f"{path} holds no weights, but {type(content).__name__}")
    weights = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if all(name.startswith(("module.", "network.", "optimizer.")) for name in weights):
        # Data-parallel training puts `module.` in front; our own checkpoints `network.`.
        weights = {
            name.split(".", 1)[1]: value
            for name, value in weights.items()
            if not name.startswith("optimizer.")
        }
    return weights
