"""Networks called on inputs, and left as they are."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only

from evoprune.errors import NetworkError
from evoprune.pruning.operations import tensors_in

Copied = TypeVar("Copied")


def check_network(model: nn.Module) -> None:
    """Refuse what no channel can be followed through."""
    if not isinstance(model, nn.Module):
        raise NetworkError(f"the network is to be an nn.Module, got {model!r:.80}")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise NetworkError(f"{name!r} has no size yet: call the network once before it is followed")
    for name, module in model.named_modules():
        maker = "torch.jit" if isinstance(module, torch.jit.ScriptModule) else ""
        if type(module).__module__.startswith("torch._dynamo"):
            maker = "torch.compile"
        if maker:
            raise NetworkError(
                f"{name or 'the network'!r} is a {type(module).__name__}, which cannot be followed; "
                f"give it as it was before {maker}"
            )


def left_by_calls(model: nn.Module) -> dict[int, Tensor]:
    """By id, the tensors that calls have left in the network (features, weights computed from others).

    In copies these stand for them: what they were computed from cannot be copied.
    """
    return {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }


def detached_copy(model: Copied, given: Mapping[int, Any] | None = None) -> Copied:
    """A copy that shares nothing with the network; `given` says what stands for objects, by their id."""
    left = left_by_calls(model) if isinstance(model, nn.Module) else {}
    try:
        return copy.deepcopy(model, {**left, **(given or {})})
    except Exception as error:
        raise NetworkError(
            f"the network is copied before it is cut, and cannot be copied: {type(error).__name__}: {error}"
        ) from error


def few_images(inputs: Any, most: int = 4) -> Any:
    """The inputs with at most so many images: what is traced and checked needs no more."""
    tensors = list(tensors_in(inputs))
    images = {tensor.shape[0] for tensor in tensors if tensor.ndim}
    if len(images) != 1 or min(images) <= most or not all(tensor.ndim for tensor in tensors):
        return inputs  # few enough already, or no telling which axis the images are
    return tree_map_only(Tensor, lambda tensor: tensor[:most], inputs)


def call_network(model: nn.Module, inputs: Any) -> Any:
    """The network's output on a tensor, a tuple of positional or a mapping of keyword inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def copied(inputs: Any) -> Any:
    """The inputs as new tensors, for networks that work in place."""
    return tree_map_only(Tensor, torch.clone, inputs)


@contextmanager
def untouched_randomness(inputs: Any) -> Iterator[None]:
    """Leave the global random state as it was."""
    devices = {t.device.index or 0 for t in tensors_in(inputs) if t.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        yield


def described(inputs: Any) -> str:
    return ", ".join(str(list(tensor.shape)) for tensor in tensors_in(inputs)) or "no tensors"


def outputs_of(value: Any, seen: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Every tensor that a network gives, in nested collections and in the attributes of objects."""
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in seen or isinstance(value, (str, bytes, type, nn.Module)):
        return
    if isinstance(value, Mapping):
        inside: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = value
    else:
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        inside = [*getattr(value, "__dict__", {}).values(), *(getattr(value, n, None) for n in slots)]
    for item in inside:
        yield from outputs_of(item, seen | {id(value)})
