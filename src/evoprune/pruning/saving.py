"""Pruned networks on disk: safetensors for the weights, JSON for everything else, no pickle.

A folder holds `weights.safetensors` and `pruned.json`. The record carries the weights' checksum and its
own, so that what is damaged or was altered is refused and not half loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from evoprune.errors import EvopruneError, SavedFileError
from evoprune.files import write
from evoprune.networks.layers import ChannelSelect
from evoprune.pruning.cost import Cost, LayerCost
from evoprune.pruning.sites import find_sites
from evoprune.pruning.surgery import checked_kept, cut

if TYPE_CHECKING:
    from evoprune.pruning.prune import Pruned

FORMAT = "evoprune pruned network 1"
RECORD, WEIGHTS = "pruned.json", "weights.safetensors"


def save_pruned(pruned: Pruned, directory: str | Path) -> Path:
    """Write the pruned network into a folder, made if needed; returns the folder."""
    folder = Path(directory)
    # safetensors takes tensors that share no memory.
    weights = {name: t.detach().cpu().contiguous().clone() for name, t in pruned.network.state_dict().items()}
    content = save(weights)
    record = {
        "format": FORMAT,
        "network": f"{type(pruned.original).__module__}:{type(pruned.original).__qualname__}",
        "original": _shapes_digest(pruned.original),
        "example_inputs": _described(pruned.example_inputs),
        "sites": [
            {
                "name": site.name,
                "channels": site.channels,
                "root": site.root,
                "readers": list(dict.fromkeys(reader.module for reader in site.readers)),
                "kept": list(pruned.kept[site.name]),
                "scores": _numbers(pruned.scores[site.name]),
            }
            for site in pruned.sites
        ],
        "made": dict(pruned.made),
        "cost": {"before": _cost(pruned.before), "after": _cost(pruned.after)},
        "training": pruned.network.training,
        "frozen": [name for name, p in pruned.network.named_parameters() if not p.requires_grad],
        "weights": {"file": WEIGHTS, "sha256": hashlib.sha256(content).hexdigest()},
    }
    record["checksum"] = _checksum(record)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / WEIGHTS, content)
    # Last, so that a record never speaks of weights that are not there.
    write(folder / RECORD, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())
    return folder


def load_pruned(factory_or_model: Callable[[], nn.Module] | nn.Module, directory: str | Path) -> nn.Module:
    """Rebuild a saved network from the original's factory (or from the original; it is not touched).

    The weights of what the factory gives do not matter, its architecture does.
    """
    folder = Path(directory)
    record, weights = _read(folder)
    model = factory_or_model
    if not isinstance(model, nn.Module) and callable(model):
        try:
            model = model()
        except Exception as error:
            raise SavedFileError(
                f"the factory of the network that was pruned failed: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(model, nn.Module):
        raise SavedFileError(
            "the network that was pruned is needed, or a factory that gives it when it is called, "
            f"got {type(model).__name__}"
        )
    try:
        network = _rebuilt(model, record, folder)
        _fill(network, weights, folder)
        frozen = set(record["frozen"])
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name not in frozen)
        return network.train(record["training"])
    except EvopruneError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SavedFileError(
            f"{folder / RECORD} is not a record of ours, though its checksum fits: "
            f"{type(error).__name__}: {error}"
        ) from error


def _rebuilt(model: nn.Module, record: Mapping[str, Any], folder: Path) -> nn.Module:
    """The network with the layers of the saved one; its weights are still those of the model."""
    if _shapes_digest(model) != record["original"]:
        raise SavedFileError(
            f"{folder} was pruned from another network than this {type(model).__name__}: "
            f"from {record['network']}, of other layers, sizes or selections"
        )
    made = record["made"]
    try:
        structure = find_sites(
            model,
            _example(record["example_inputs"], model),
            selection=made.get("selection", False),
            ignore=made.get("ignore", ()),
            flatten_features=made.get("flatten_features", ()),
        )
        saved = {site["name"]: site["kept"] for site in record["sites"]}
        if structure.names != list(saved):
            raise SavedFileError(
                f"{folder} knows the sites {', '.join(saved)}, the network has {', '.join(structure.names)}"
            )
        return cut(model, structure, checked_kept(structure.sites, saved))
    except EvopruneError as error:
        raise SavedFileError(f"{folder} cannot be rebuilt from {type(model).__name__}: {error}") from error


def read_record(directory: str | Path) -> dict[str, Any]:
    """What is known about a saved network, without building it; its checksums are verified."""
    return _read(Path(directory))[0]


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except OSError as error:
        raise SavedFileError(f"{folder} holds no pruned network: {error}") from error
    except ValueError as error:
        raise SavedFileError(f"{folder / RECORD} is damaged: it is not JSON ({error})") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        found = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise SavedFileError(f"{folder / RECORD} is not of the format {FORMAT!r}, but {found!r}")
    if record.get("checksum") != _checksum(record):
        raise SavedFileError(f"{folder / RECORD} was altered or damaged: its checksum does not fit")
    try:
        content = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        raise SavedFileError(f"{folder} lacks the weights: {error}") from error
    if hashlib.sha256(content).hexdigest() != record["weights"]["sha256"]:
        raise SavedFileError(
            f"{folder / WEIGHTS} was altered or damaged ({len(content)} bytes): "
            f"its checksum is not the one in {RECORD}"
        )
    try:
        return record, load(content)
    except SafetensorError as error:
        raise SavedFileError(f"{folder / WEIGHTS} is not a safetensors file: {error}") from error


def _fill(network: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    dtypes = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        network.to(dtypes.pop())
    state = network.state_dict()
    for name in sorted(state.keys() | weights.keys()):
        mine, theirs = state.get(name), weights.get(name)
        if mine is None or theirs is None or (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            raise SavedFileError(
                f"{folder / WEIGHTS} does not fit the network at {name!r}: "
                f"expected {_said(mine)}, the file has {_said(theirs)}"
            )
    network.load_state_dict(weights)


def _said(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def _shapes_digest(model: nn.Module) -> str:
    """A digest of the network's shapes, and of what its selections choose: that is not in its state."""
    shapes = [(name, list(tensor.shape)) for name, tensor in model.state_dict().items()]
    chosen = [
        (name, module.in_channels, list(module.chosen))
        for name, module in model.named_modules()
        if isinstance(module, ChannelSelect)
    ]
    return hashlib.sha256(json.dumps([shapes, chosen]).encode()).hexdigest()


def _checksum(record: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in record.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _numbers(values: Tensor) -> list[float | None]:
    """Scores as JSON knows them; None where a channel was gone before it could be scored."""
    return [None if value != value else value for value in values.tolist()]


def _cost(cost: Cost) -> dict[str, Any]:
    layers = [[layer.name, layer.macs, layer.parameters] for layer in cost.layers]
    return {"macs": cost.macs, "parameters": cost.parameters, "latency": cost.latency, "layers": layers}


def read_cost(saved: Mapping[str, Any]) -> Cost:
    """A cost from its form in the record."""
    return Cost(tuple(LayerCost(*layer) for layer in saved["layers"]), saved["latency"])


def _described(inputs: Any) -> Any:
    """Inputs in a form for JSON: of tensors, their shape and type."""
    if isinstance(inputs, Tensor):
        return {"tensor": list(inputs.shape), "dtype": str(inputs.dtype).removeprefix("torch.")}
    if isinstance(inputs, Mapping):
        return {"items": {str(name): _described(value) for name, value in inputs.items()}}
    if isinstance(inputs, (tuple, list)):
        return {"sequence": [_described(value) for value in inputs]}
    if inputs is None or isinstance(inputs, (bool, int, float, str)):
        return {"value": inputs}
    raise SavedFileError(f"an example input of type {type(inputs).__name__} cannot be described in a file")


def _example(described: Any, model: nn.Module) -> Any:
    """Inputs as they were described, on the network's device and of its floating-point type."""
    if "items" in described:
        return {name: _example(value, model) for name, value in described["items"].items()}
    if "sequence" in described:
        return tuple(_example(value, model) for value in described["sequence"])
    if "tensor" not in described:
        return described["value"]
    dtype, device = getattr(torch, described["dtype"]), torch.device("cpu")
    floating = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if dtype.is_floating_point and len(floating) == 1:
        dtype = floating.pop()
    return torch.zeros(
        described["tensor"], dtype=dtype, device=next((p.device for p in model.parameters()), device)
    )
