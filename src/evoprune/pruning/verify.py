"""Trust no cut that was not checked.

Two things are compared. Every tensor of the pruned network must equal the original's at the reported kept
channels: which, is worked out here from the sites alone, not from the labels that the cut went by. And
the pruned network must compute what the original computes with the removed channels zeroed at every
reader: once as it is, and once with lively random weights in both, for which no channel is without effect,
so that a wrong one shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from evoprune.errors import NetworkError, SurgeryError
from evoprune.networks.layers import ZERO, ChannelSelect, selection_of
from evoprune.pruning.calling import call_network, copied, detached_copy, outputs_of, untouched_randomness
from evoprune.pruning.channels import Ids
from evoprune.pruning.follow import Layer
from evoprune.pruning.lively import enliven
from evoprune.pruning.sites import Site, Structure

Kept: TypeAlias = Mapping[str, tuple[int, ...]]
Cut: TypeAlias = Callable[[nn.Module, Structure, Kept], nn.Module]

SEED = 20220709
SMALL = 2**25
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


class Verifier:
    """Checks cuts of one network against it."""

    def __init__(self, model: nn.Module, structure: Structure, cut: Cut) -> None:
        self._model = model
        self._structure = structure
        self._cut = cut
        self._dtype = _working_dtype(model)
        self._inputs = _usable_inputs(_prepared(model, self._dtype), structure.trace.inputs, self._dtype)
        self._original = self._reference(self._dtype)
        self._parameters = [id(parameter) for parameter in model.parameters()]
        # In double precision channels of little effect show as well; for large networks that is too dear.
        small = sum(parameter.numel() for parameter in model.parameters()) <= SMALL
        try:
            self._lively = self._lively_reference(torch.float64 if small else self._dtype)
        except NetworkError:
            # Networks that make tensors of single precision on their way run in nothing else.
            self._lively = self._lively_reference(self._dtype)

    def check(self, pruned: nn.Module, kept: Kept) -> None:
        """Raise `SurgeryError` unless the pruned network is the original without the other channels."""
        self._check_tensors(pruned, kept)
        problem = self._problem(pruned, kept)
        if problem is not None:
            if self._is_random():
                raise NetworkError(
                    "the network gives other outputs each time it is called, in eval mode as well (a dropout "
                    "that is always on?): no cut of it can be checked"
                )
            raise SurgeryError(f"{self._guilty(kept)}: the pruned network {problem}")

    def _reference(self, dtype: torch.dtype) -> _Reference:
        inputs = _floating(self._inputs, lambda tensor: tensor.to(dtype))
        return _Reference(_prepared(self._model, dtype), self._structure.sites, inputs, dtype)

    def _lively_reference(self, dtype: torch.dtype) -> _Reference:
        reference = self._reference(dtype)
        with untouched_randomness(reference.inputs):
            try:
                generator = torch.Generator().manual_seed(SEED)
                enliven(reference.network, self._structure, reference.inputs, generator)
            except Exception as error:
                raise _failed("random weights", dtype, error) from error
        return reference

    def _is_random(self) -> bool:
        whole = {site.name: tuple(range(site.channels)) for site in self._structure.sites}
        with untouched_randomness(self._inputs):
            torch.manual_seed(SEED)
            before = self._original(whole)
            torch.manual_seed(SEED + 1)
            return any(not torch.equal(a, b) for a, b in zip(before, self._original(whole), strict=True))

    def _problem(self, pruned: nn.Module, kept: Kept) -> str | None:
        self._follow_training()
        problem = self._original.difference(_prepared(pruned, self._dtype), kept)
        if problem is not None and self._dtype != torch.float64:
            # Deep networks can blow rounding up; in double precision there is no such excuse.
            with suppress(NetworkError):  # it may run in single precision only
                problem = self._reference(torch.float64).difference(_prepared(pruned, torch.float64), kept)
        return problem or self._lively_problem(kept) or self._training_problem(pruned)

    def _training_problem(self, pruned: nn.Module) -> str | None:
        """Heads that only training calls are at least seen to fit."""
        if not any(layer.only_training for layer in self._structure.trace.layers.values()):
            return None
        inputs = self._original.inputs
        shapes = []
        for network in (self._model, pruned):
            try:
                with untouched_randomness(inputs), torch.inference_mode():
                    output = call_network(_prepared(network, self._dtype).train(), copied(inputs))
            except Exception as error:
                return f"does not run in train mode ({type(error).__name__}: {error})"
            shapes.append([list(tensor.shape) for tensor in outputs_of(output)])
        return None if shapes[0] == shapes[1] else f"gives {shapes[1]} in train mode, not {shapes[0]}"

    def _follow_training(self) -> None:
        """The network may have been trained since the last cut, or been given other parameters."""
        if [id(parameter) for parameter in self._model.parameters()] != self._parameters:
            self._original = self._reference(self._dtype)
            self._parameters = [id(parameter) for parameter in self._model.parameters()]
        _copy_values(self._model, self._original.network)

    def _lively_problem(self, kept: Kept) -> str | None:
        problem = self._against(self._lively, kept)
        if problem is not None and self._lively.dtype != torch.float64:
            with suppress(NetworkError):
                problem = self._against(self._lively_reference(torch.float64), kept)
        return problem

    def _against(self, lively: _Reference, kept: Kept) -> str | None:
        """What is wrong with the lively network's own cut, made in the same way."""
        return lively.difference(self._cut(lively.network, self._structure, kept), kept)

    def _guilty(self, kept: Kept) -> str:
        """The sites whose cut alone shows the mismatch."""
        whole = {site.name: tuple(range(site.channels)) for site in self._structure.sites}
        guilty = []
        for site in self._structure.sites:
            alone = {**whole, site.name: kept[site.name]}
            if site.parents or len(kept[site.name]) == site.channels:
                continue
            try:
                problem = self._lively_problem(alone)
            except Exception as error:
                problem = str(error)
            if problem is not None:
                guilty.append(site.name)
        named = guilty or [name for name, channels in kept.items() if channels != whole[name]]
        return f"the cut at {'site' if len(named) == 1 else 'sites'} {', '.join(map(repr, named))} is wrong"

    def _check_tensors(self, pruned: nn.Module, kept: Kept) -> None:
        """Every tensor of the pruned network, against the original's at the kept channels."""
        places = _Places(self._structure, kept)
        theirs = dict(pruned.named_modules())
        for name, module in self._model.named_modules():
            layer = self._structure.trace.layers.get(name)
            for key, tensor in [
                *module.named_parameters(recurse=False),
                *module.named_buffers(recurse=False),
            ]:
                if isinstance(module, ChannelSelect):
                    continue  # what it chooses is compared below
                expected = places.expected(layer, key, tensor.detach()) if layer is not None else tensor
                got = getattr(theirs.get(name), key, None)
                same = isinstance(got, Tensor) and got.shape == expected.shape and got.dtype == expected.dtype
                if not same or not _identical(got, expected):
                    raise SurgeryError(
                        f"the cut at {places.around(layer)} is wrong: {name + '.' + key!r} is not "
                        "the original's tensor at the kept channels"
                    )
            if layer is not None and layer.index is not None:
                choice, right = _chosen(theirs[name]), places.choice(layer)
                if choice is None:  # no selection in front: the layer reads all there is
                    choice = tuple(range(places.stream_width(layer)))
                if choice != right:
                    raise SurgeryError(
                        f"the cut at {places.around(layer)} is wrong: "
                        f"{name!r} chooses channels {choice}, not {right}"
                    )


class _Places:
    """Where the kept channels are in each layer's tensors, read off the sites."""

    def __init__(self, structure: Structure, kept: Kept) -> None:
        self._layers = structure.trace.layers
        self._ins = {name: np.ones(len(layer.in_ids), dtype=bool) for name, layer in self._layers.items()}
        self._outs = {name: np.ones(len(layer.out_ids), dtype=bool) for name, layer in self._layers.items()}
        self._streams = {
            name: np.ones(len(layer.stream_ids), dtype=bool)
            for name, layer in self._layers.items()
            if layer.stream_ids is not None
        }
        self._sites: dict[str, list[str]] = {name: [] for name in self._layers}
        for site in structure.sites:
            gone = np.ones(site.channels, dtype=bool)
            gone[list(kept[site.name])] = False
            for rows in (*site.producers, *site.carried):
                self._outs[rows.module][_at(rows.rows, gone)] = False
                if self._layers[rows.module].kind == "depthwise":
                    # Its input channels go with the first of the output channels that each makes.
                    copies = len(self._outs[rows.module]) // len(self._ins[rows.module])
                    self._ins[rows.module] = self._outs[rows.module][::copies].copy()
            for reader in site.readers:
                if site.selects == reader.module:
                    self._ins[reader.module][gone] = False
                elif reader.module in self._streams:
                    self._streams[reader.module][_at(reader.positions, gone)] = False
                else:
                    self._ins[reader.module][_at(reader.positions, gone)] = False
            for name in {r.module for r in (*site.producers, *site.carried)} | {
                r.module for r in site.readers
            }:
                self._sites[name].append(site.name)

    def around(self, layer: Layer | None) -> str:
        names = self._sites[layer.name] if layer is not None else []
        return f"site {' or '.join(map(repr, names))}" if names else "no site in particular"

    def expected(self, layer: Layer, key: str, tensor: Tensor) -> Tensor:
        """The original's tensor at the kept channels."""
        ins, outs = np.flatnonzero(self._ins[layer.name]), np.flatnonzero(self._outs[layer.name])
        if not len(layer.out_ids) or not tensor.ndim:
            return tensor
        if layer.carries or key == "bias":
            return tensor[torch.as_tensor(ins if layer.transposed and key == "weight" else outs)]
        if layer.groups == 1:
            rows, columns = (ins, outs) if layer.transposed else (outs, ins)
            return tensor[torch.as_tensor(rows)][:, torch.as_tensor(columns)]
        grouped = tensor.reshape(layer.groups, -1, *tensor.shape[1:])
        rows, columns = (ins, outs) if layer.transposed else (outs, ins)
        first, second = grouped.shape[1], grouped.shape[2]
        parts = [
            grouped[g][torch.as_tensor(rows[rows // first == g] - g * first)][
                :, torch.as_tensor(columns[columns // second == g] - g * second)
            ]
            for g in range(layer.groups)
        ]
        return torch.cat(parts)

    def stream_width(self, layer: Layer) -> int:
        """How many channels are left of those that a selection chooses from."""
        stream = self._ins if layer.kind == "select" else self._streams
        return int(stream[layer.name].sum())

    def choice(self, layer: Layer) -> tuple[int, ...]:
        """What a selection chooses, counted among the kept channels of what it chooses from."""
        assert layer.index is not None
        own = self._outs if layer.kind == "select" else self._ins
        stream = self._ins if layer.kind == "select" else self._streams
        there = stream[layer.name]
        places = np.where(there, np.cumsum(there) - 1, ZERO)
        index = layer.index[own[layer.name]]
        return tuple(np.where(index == ZERO, ZERO, places[index]).tolist())


def _at(rows: tuple[int, ...], channels: Any) -> Ids:
    """The rows of these channels, of rows `[channel · copies]`."""
    by_channel = np.array(rows, dtype=np.int64).reshape(len(channels), -1)
    return np.asarray(by_channel[channels].reshape(-1), dtype=np.int64)


def _chosen(module: nn.Module) -> tuple[int, ...] | None:
    select = module if isinstance(module, ChannelSelect) else selection_of(module)
    return select.chosen if select is not None else None


class _Reference:
    """A network in eval mode whose readers can be made to see zeros at the removed channels."""

    def __init__(self, network: nn.Module, sites: tuple[Site, ...], inputs: Any, dtype: torch.dtype) -> None:
        self.network = network
        self.inputs = inputs
        self.dtype = dtype
        self._sites = sites

    def __call__(self, kept: Kept) -> list[Tensor]:
        """The outputs on the noise inputs."""
        removed: dict[str, tuple[int, list[Ids]]] = {}
        for site in self._sites:
            gone = np.ones(site.channels, dtype=bool)
            gone[list(kept[site.name])] = False
            for reader in site.readers:
                places = removed.setdefault(reader.module, (reader.axis, []))[1]
                places.append(_at(reader.positions, gone))
        masked = {name: (axis, np.concatenate(places)) for name, (axis, places) in removed.items()}
        with untouched_randomness(self.inputs), torch.inference_mode(), self._masking(masked):
            try:
                return list(outputs_of(call_network(self.network, copied(self.inputs))))
            except Exception as error:
                raise _failed("channels zeroed", self.dtype, error) from error

    def difference(self, pruned: nn.Module, kept: Kept) -> str | None:
        """What sets the pruned network apart from this one with the other channels zeroed, if anything."""
        expected = self(kept)
        try:
            with untouched_randomness(self.inputs), torch.inference_mode():
                got = list(outputs_of(call_network(pruned, copied(self.inputs))))
        except Exception as error:
            return f"does not run ({type(error).__name__}: {error})"
        if len(got) != len(expected):
            return f"gives {len(got)} outputs, not {len(expected)}"
        for one, other in zip(got, expected, strict=True):
            if one.shape != other.shape:
                return f"gives an output of shape {list(one.shape)}, not {list(other.shape)}"
            size = float(other.abs().max()) if other.numel() else 0.0
            apart = torch.where(one == other, 0, one - other)  # infinities may be equal, too
            off = float(apart.abs().max()) / (size or 1.0) if other.numel() else 0.0
            if not off <= TOLERANCE[self.dtype]:
                return (
                    f"is off by {off:.1e} of its output from the original with the removed channels zeroed "
                    f"(allowed: {TOLERANCE[self.dtype]:.0e})"
                )
        return None

    @contextmanager
    def _masking(self, removed: Mapping[str, tuple[int, Ids]]) -> Iterator[None]:
        def masking(axis: int, places: Ids) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                index = torch.as_tensor(places)

                def zeroed(tensor: Tensor) -> Tensor:
                    return tensor.index_fill(axis, index.to(tensor.device), 0)

                if args:
                    return (zeroed(args[0]), *args[1:]), kwargs
                first, value = next(iter(kwargs.items()))
                return args, {**kwargs, first: zeroed(value)}

            return hook

        handles = [
            self.network.get_submodule(name).register_forward_pre_hook(
                masking(axis, places), with_kwargs=True
            )
            for name, (axis, places) in removed.items()
            if len(places)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _copy_values(source: nn.Module, target: nn.Module) -> None:
    with torch.no_grad():
        for name, tensor in [*target.named_parameters(), *target.named_buffers()]:
            module, _, key = name.rpartition(".")
            current = getattr(source.get_submodule(module), key)
            if current is not tensor:
                tensor.copy_(current)


def _working_dtype(model: nn.Module) -> torch.dtype:
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return torch.float64 if dtypes == {torch.float64} else torch.float32


def _prepared(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in eval mode, in the dtype to compare in."""
    return detached_copy(model).eval().to(dtype)


def _usable_inputs(network: nn.Module, example_inputs: Any, dtype: torch.dtype) -> Any:
    """Seeded noise like the inputs; the inputs themselves where the network does not take that."""
    generator = torch.Generator().manual_seed(SEED)
    noise = _floating(
        example_inputs,
        lambda tensor: torch.randn(tensor.shape, generator=generator, dtype=dtype).to(tensor.device),
    )
    reason: Exception | None = None
    for inputs in (noise, _floating(example_inputs, lambda tensor: tensor.to(dtype))):
        try:
            with untouched_randomness(inputs), torch.inference_mode():
                outputs = list(outputs_of(call_network(network, copied(inputs))))
        except Exception as error:
            reason = reason or error
            continue
        if not any(output.isnan().any() for output in outputs):
            return inputs
    if reason:
        raise _failed("noise", dtype, reason)
    raise NetworkError("the network gives not-a-numbers on the example inputs: no cut of it can be checked")


def _floating(inputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The inputs with their floating-point tensors changed."""
    return tree_map_only(Tensor, lambda t: change(t) if t.is_floating_point() else t, inputs)


def _failed(on: str, dtype: torch.dtype, error: Exception) -> NetworkError:
    return NetworkError(
        f"the network runs on the example inputs, but a cut of it cannot be checked: with {on} in "
        f"{str(dtype).removeprefix('torch.')} it failed with {type(error).__name__}: {error}"
    )


def _identical(one: Any, other: Tensor) -> bool:
    """Equal entry by entry, not-a-numbers included."""
    return bool(torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))
