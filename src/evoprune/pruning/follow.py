"""Follow every channel of a network through one forward pass.

Torch-Pruning's dependency graph follows layers; it loses single channels where they are padded, sliced or
gated. Here each channel has a label, and each tensor operation is one that is known to hand the channels
on, or is named in the complaint. The pass runs on a copy, in eval mode, on the example inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from evoprune.errors import NetworkError
from evoprune.networks.layers import ChannelSelect, selection_of
from evoprune.pruning.calling import (
    call_network,
    check_network,
    described,
    detached_copy,
    few_images,
    outputs_of,
    untouched_randomness,
)
from evoprune.pruning.channels import Ids, Labels, Trail
from evoprune.pruning.operations import Call, changes, follow_operation, tensors_in


@dataclass(slots=True)
class Layer:
    """A layer whose tensors have channel axes, and the labels along them.

    `in_ids` and `out_ids` are `[channel]`; `stream_ids` are the labels of what a selection in front of the
    layer chooses from, `index` what it chooses. `pixels` is how often the weights are applied per image,
    `kernel` how many weights there are per pair of channels. Where the layer works along another axis than
    the channels', on each of them alike, `apart` has their labels and the pixels of one. `only_training`
    layers are not called in eval mode.
    """

    name: str
    kind: str  # "conv", "depthwise", "linear", "batch_norm", "instance_norm", "prelu" or "select"
    in_ids: Ids
    out_ids: Ids
    groups: int = 1
    transposed: bool = False
    kernel: int = 1
    stream_ids: Ids | None = None
    index: Ids | None = None
    pixels: int = 0
    apart: list[tuple[Ids, int]] = field(default_factory=list)
    calls: int = 0
    only_training: bool = False

    @property
    def produces(self) -> bool:
        return self.kind in ("conv", "linear")

    @property
    def carries(self) -> bool:
        return self.kind in ("depthwise", "batch_norm", "instance_norm", "prelu")


@dataclass(frozen=True, slots=True)
class Read:
    """One reading of channels: by which layer, in which of its calls, and what lay before it."""

    layer: str
    call: int
    order: int
    trail: Trail
    spatial: tuple[int, ...]


@dataclass(slots=True)
class Trace:
    """What one forward pass showed; the label arrays of all parts are resolved to classes."""

    layers: dict[str, Layer] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)  # number of a call → layer
    passed: dict[str, set[int]] = field(default_factory=dict)  # module without channel axes → classes
    inputs: Any = None  # what the network was called on
    kept: frozenset[int] = frozenset()
    summed: frozenset[int] = frozenset()
    complaints: tuple[tuple[frozenset[int], str], ...] = ()


def follow(model: nn.Module, example_inputs: Any, *, selected: Collection[str] = ()) -> Trace:
    """Follow the channels; `selected` layers read through a selection of their own."""
    check_network(model)
    if any(not tensor.numel() for tensor in tensors_in(example_inputs)):
        raise NetworkError(f"the example inputs are empty ({described(example_inputs)})")
    few = few_images(example_inputs)
    try:
        return _followed(model, few, selected)
    except NetworkError:
        if few is example_inputs:
            raise
    return _followed(model, example_inputs, selected)  # the size of the batch may be written in the code


def _followed(model: nn.Module, inputs: Any, selected: Collection[str]) -> Trace:
    # Parameters are copied, too: there are layers that clip their weights while they run.
    network = detached_copy(model).eval()
    follower = _Follower(network, frozenset(selected))
    follower.trace.inputs = inputs
    with untouched_randomness(inputs), torch.inference_mode():
        try:
            follower.run(inputs)
        except NetworkError:
            raise
        except Exception as error:
            raise NetworkError(
                f"the network failed on the example inputs ({described(inputs)}): "
                f"{type(error).__name__}: {error}"
            ) from error
        if follower.uncalled():
            # Heads that only training calls read channels as well.
            network.train()
            follower.only_training = True
            with suppress(Exception):
                follower.run(inputs)
    return follower.finish()


class _Looks(TorchFunctionMode):
    """Sees values leave for NumPy and Python, which is no operation."""

    def __init__(self, follower: _Follower) -> None:
        super().__init__()
        self._follower = follower

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.numpy, Tensor.tolist, Tensor.__array__) and self._follower.trail_of(args[0]):
            self._follower.labels.looks.append(self._follower.where(func.__name__))
        return func(*args, **(kwargs or {}))


class _Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every module call through hooks, and every operation outside known layers by dispatch."""

    def __init__(self, network: nn.Module, selected: frozenset[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.labels = Labels()
        self.trace = Trace()
        self._selected = selected
        self._trails: Any = WeakIdKeyDictionary()
        self._path: list[tuple[str, nn.Module]] = []
        self._inside = 0  # within a layer that is treated as a whole
        self._network = network
        self.only_training = False  # whether the pass is one that shows what only training calls
        self._modules: dict[str, nn.Module] = {}
        # The weights of layers, and what uses them beside the layers' own operations: by id.
        self._weights = {
            id(parameter)
            for module in network.modules()
            if _kind(module) is not None
            for parameter in module.parameters(recurse=False)
            if parameter.ndim > 1
        }
        self._uses: dict[int, str] = {}
        for name, module in network.named_modules():
            module.register_forward_pre_hook(self._entering(name), with_kwargs=True)
            module.register_forward_hook(self._leaving(name), with_kwargs=True)

    def run(self, inputs: Any) -> None:
        """One forward pass; what comes out of it stays whole."""
        inputs = tree_map_only(Tensor, torch.clone, inputs)
        if isinstance(inputs, Mapping):
            inputs = dict(inputs)
        for tensor in tensors_in(inputs):
            if tensor.ndim >= 2 and tensor.is_floating_point():
                self.set_trail(tensor, Trail.foreign(1, tensor.shape[1]))
        with self, _Looks(self):
            output = call_network(self._network, inputs)
        tensors = list(outputs_of(output))
        if not tensors:
            raise NetworkError(
                f"no tensor can be found in the output of the network, a {type(output).__name__}"
            )
        for tensor in tensors:
            if (trail := self.trail_of(tensor)) is not None:
                self.labels.keep(trail.labels)

    def uncalled(self) -> list[str]:
        """The layers that no pass has called so far."""
        return [
            name
            for name, module in self._network.named_modules()
            if _kind(module) is not None and name not in self._modules
        ]

    def set_trail(self, tensor: Tensor, trail: Trail) -> None:
        self._trails[tensor] = trail

    def trail_of(self, tensor: Tensor) -> Trail | None:
        trail: Trail | None = self._trails.get(tensor)
        return trail

    def _entering(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._path.append((name, module))
            self._inside += _kind(module) is not None

        return hook

    def _leaving(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._path.pop()
            kind = _kind(module)
            self._inside -= kind is not None
            if kind is not None and not self._inside:
                source = next(iter([*tensors_in(args), *tensors_in(kwargs)]))
                self._layer(name, kind, module, source, output)

        return hook

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        own = bool(self._inside) and type(self._path[-1][1]).__module__.startswith(("torch.nn", "evoprune"))
        if own:
            return result
        names = [argument.name for argument in func._schema.arguments]
        arguments = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
        arguments |= dict(zip(names, args, strict=False)) | (kwargs or {})
        # In the order of the schema, so that the first tensor is the operand.
        ordered = {n: arguments[n] for n in names if n in arguments}
        name = func.overloadpacket.__name__
        call = Call(
            name=name,
            pointwise=torch.Tag.pointwise in func.tags,
            arguments=ordered,
            result=result,
            where=self.where(name),
            labels=self.labels,
            trail_of=self.trail_of,
        )
        weights = [tensor for tensor in call.tensors() if id(tensor) in self._weights]
        if weights and changes(call, weights[0], inside=bool(self._inside)):
            self._uses |= {id(weight): call.where for weight in weights}
        if self._inside:
            return result
        for tensor, trail in follow_operation(call):
            self.set_trail(tensor, trail)
            if self._path and not any(True for _ in self._path[-1][1].children()):
                self.trace.passed.setdefault(self._path[-1][0], set()).update(trail.ids.tolist())
        return result

    def where(self, operation: str) -> str:
        name, module = self._path[-1] if self._path else ("", nn.Identity())
        if type(module).__module__.startswith("torch.nn"):
            return f"{type(module).__name__} {name!r} (the operation {operation})"
        place = f" {name!r}" if name else ""
        return f"the operation {operation} in {type(module).__name__}{place}"

    def _layer(self, name: str, kind: str, module: Any, source: Tensor, output: Tensor) -> None:
        axis = _channel_axis(kind, module, source)
        trail = self.trail_of(source)
        if trail is None:
            trail = Trail.foreign(axis, source.shape[axis])
        elif trail.dim is None or not trail.labels:
            # Mixed before, and complained about, or nothing but inputs: nobody's channels are read here.
            trail = Trail.foreign(axis, source.shape[axis])
        elif trail.dim != axis:
            layer = self._opened(name, kind, module, Trail.foreign(axis, source.shape[axis]))
            self.labels.keep(layer.out_ids.tolist())
            alike = kind in ("linear", "batch_norm", "instance_norm")
            pixels = 0 if self.only_training else _pixels(kind, module, source, output)
            if alike:
                # On every channel alike: its own tensors have no channel axis here.
                layer.apart.append((trail.ids, pixels // len(trail.ids)))
            else:
                layer.pixels += pixels
                self.labels.complain(
                    trail.labels, f"{type(module).__name__} {name!r} works along another axis"
                )
            self.set_trail(output, trail if alike else Trail.lost(trail.labels))
            return
        layer = self._opened(name, kind, module, trail)
        number = len(self.trace.calls)
        self.trace.calls.append(name)
        if not layer.carries and layer.only_training == self.only_training:
            self.trace.reads.append(Read(name, layer.calls, number, trail, _spatial(source, axis)))
        layer.calls += 1
        if not self.only_training:
            layer.pixels += _pixels(kind, module, source, output)
        self.set_trail(output, self._written(layer, number, trail, axis))

    def _opened(self, name: str, kind: str, module: Any, trail: Trail) -> Layer:
        """The layer at its first call; at later ones, what it reads then is tied to what it read."""
        stream = trail.ids
        layer = self.trace.layers.get(name)
        if layer is not None:
            self.labels.unite(layer.in_ids if layer.stream_ids is None else layer.stream_ids, stream)
            return layer
        select = selection_of(module)
        index: Ids | None = None
        if kind == "select":
            index = np.array(module.chosen, dtype=np.int64)
        elif select is not None:
            index = np.array(select.chosen, dtype=np.int64)
        elif name in self._selected:
            index = np.arange(len(stream))
        if kind == "depthwise":
            layer = Layer(name, kind, stream, np.repeat(stream, module.out_channels // module.groups))
        elif kind in ("conv", "linear"):
            out_ids = self.labels.new(module.out_channels if kind == "conv" else module.out_features)
            layer = Layer(name, kind, stream, out_ids, getattr(module, "groups", 1))
            if index is not None:
                layer.stream_ids, layer.index, layer.in_ids = stream, index, self.labels.new(len(index))
        elif kind == "select":
            layer = Layer(name, kind, stream, self.labels.new(len(module.chosen)), index=index)
        else:
            ids = stream if _per_channel(module) else self.labels.new(0)
            layer = Layer(name, kind, ids, ids)
        layer.only_training = self.only_training
        layer.transposed = bool(getattr(module, "transposed", False))
        layer.kernel = prod(getattr(module, "kernel_size", ()))
        self.trace.layers[name], self._modules[name] = layer, module
        if self.only_training and kind in ("conv", "linear", "select"):
            self.labels.keep(layer.out_ids.tolist())  # no images can be scored there
        if (what := _uncuttable(name, module)) is not None:
            self.labels.complain([*layer.in_ids.tolist(), *layer.out_ids.tolist()], what)
        return layer

    def _written(self, layer: Layer, number: int, trail: Trail, axis: int) -> Trail:
        count = len(layer.out_ids)
        none, rows = np.full(count, -1, dtype=np.int64), np.arange(count, dtype=np.int64)
        if layer.kind == "batch_norm":
            return replace(trail, norm=np.full_like(trail.norm, number), norm_row=np.arange(len(trail.ids)))
        if layer.kind in ("instance_norm", "prelu"):
            return trail
        if layer.kind == "depthwise":
            return trail.at(np.repeat(np.arange(len(trail.ids)), count // len(trail.ids)))
        if layer.kind == "select":
            # Its filters would be ones and zeros: what it hands on was written before it.
            assert layer.index is not None
            padded = trail.joined([Trail.foreign(axis, 1)])
            return replace(padded.at(layer.index), ids=layer.out_ids)
        return Trail(axis, layer.out_ids, np.full(count, number, dtype=np.int64), rows, none, none)

    def finish(self) -> Trace:
        """Tie shared parameters, and resolve all labels to classes."""
        uncalled = self.uncalled()
        if self.labels.looks and uncalled:
            raise NetworkError(
                f"the network looks at values on their way ({self.labels.looks[0]}) and did not call "
                f"{', '.join(map(repr, uncalled))}: one forward pass does not show what is read there"
            )
        self._tie_shared_parameters()
        for layer in self.trace.layers.values():
            for name, parameter in self._modules[layer.name].named_parameters(recurse=False):
                if id(parameter) in self._uses:
                    labels = [label for axis in _axes(layer, name, parameter) for label in axis.tolist()]
                    what = f"{self._uses[id(parameter)]} works with {layer.name + '.' + name!r} itself"
                    self.labels.complain(labels, what)
        classes, trace = self.labels.resolve(), self.trace
        trace.kept = frozenset(classes[label].item() for label in self.labels.kept)
        trace.summed = frozenset(classes[label].item() for label in self.labels.summed)
        trace.complaints = tuple(
            (frozenset(classes[label].item() for label in complaint.labels), complaint.what)
            for complaint in self.labels.complaints
        )
        trace.passed = {name: {classes[i].item() for i in ids} for name, ids in trace.passed.items()}
        for layer in trace.layers.values():
            layer.in_ids, layer.out_ids = classes[layer.in_ids], classes[layer.out_ids]
            if layer.stream_ids is not None:
                layer.stream_ids = classes[layer.stream_ids]
            layer.apart = [(classes[ids], pixels) for ids, pixels in layer.apart]
        trace.reads = [replace(r, trail=replace(r.trail, ids=classes[r.trail.ids])) for r in trace.reads]
        return trace

    def _tie_shared_parameters(self) -> None:
        seen: dict[int, tuple[Layer, tuple[Ids, ...]]] = {}
        for layer in self.trace.layers.values():
            for name, parameter in self._modules[layer.name].named_parameters(recurse=False):
                axes = _axes(layer, name, parameter)
                other = seen.setdefault(id(parameter), (layer, axes))
                if other[0] is layer or not axes:
                    continue
                if [len(a) for a in axes] != [len(a) for a in other[1]] or layer.groups != other[0].groups:
                    both = np.concatenate([*axes, *other[1]]).tolist()
                    self.labels.complain(both, f"{layer.name!r} and {other[0].name!r} share {name!r}")
                    continue
                for mine, its in zip(axes, other[1], strict=True):
                    self.labels.unite(mine, its)


def _axes(layer: Layer, name: str, parameter: Tensor) -> tuple[Ids, ...]:
    """The labels along the channel axes of a layer's parameter."""
    if layer.carries or name == "bias":
        return (layer.out_ids,) if len(layer.out_ids) else ()
    return (layer.in_ids, layer.out_ids) if layer.transposed else (layer.out_ids, layer.in_ids)


def _kind(module: nn.Module) -> str | None:
    """How a module is treated as a whole; None where its operations are followed one by one."""
    if isinstance(module, _ConvNd):
        # Behind a selection even a depthwise layer reads channels of its own choice: it carries none on.
        depthwise = 1 < module.groups == module.in_channels and selection_of(module) is None
        return "depthwise" if depthwise else "conv"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, _BatchNorm):
        return "batch_norm"
    if isinstance(module, _InstanceNorm):
        return "instance_norm"
    if isinstance(module, nn.PReLU):
        return "prelu"
    return "select" if isinstance(module, ChannelSelect) else None


def _per_channel(module: Any) -> bool:
    return not isinstance(module, nn.PReLU) or module.num_parameters > 1


def _channel_axis(kind: str, module: Any, source: Tensor) -> int:
    if kind == "linear":
        return source.ndim - 1
    if kind in ("conv", "depthwise"):
        return source.ndim - 1 - len(module.kernel_size)
    return 1 if source.ndim > 1 else 0


def _spatial(source: Tensor, axis: int) -> tuple[int, ...]:
    """The sizes of the axes that are neither images nor channels."""
    return tuple(size for at, size in enumerate(source.shape) if at not in (0, axis))


def _pixels(kind: str, module: Any, source: Tensor, output: Tensor) -> int:
    """How often the weights are applied per image."""
    if kind not in ("conv", "depthwise", "linear"):
        return 0
    counted = source if isinstance(module, _ConvTransposeNd) else output
    return prod(_spatial(counted, _channel_axis(kind, module, counted)))


def _uncuttable(name: str, module: nn.Module) -> str | None:
    """Why a layer's tensors cannot be cut, if so."""
    layer = f"{type(module).__name__} {name!r}"
    made = is_parametrized(module) or "weight" not in module._parameters
    if made and getattr(module, "weight", None) is not None:
        return f"the weight of {layer} is computed (parametrized or masked)"  # a cut would not last
    if own := [key for key in module._parameters if key not in ("weight", "bias")]:
        return f"{layer} has parameters beside weight and bias, whose channels are unknown: {', '.join(own)}"
    return None
