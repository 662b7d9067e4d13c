"""What each tensor operation does to the channels that run through it.

`follow_operation` looks the operation up by name and gives the trail of its result. An operation that
is not in the tables, or that works across the channel axis, mixes the channels: they are then complained
about, by the operation's name, and cannot be removed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evoprune.pruning.channels import FOREIGN, Labels, Trail


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Operations on the last so many axes, which treat all axes before them alike.
SPATIAL = {
    "max_pool1d": 1, "max_pool2d": 2, "max_pool3d": 3,
    "max_pool1d_with_indices": 1, "max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3,
    "avg_pool1d": 1, "avg_pool2d": 2, "avg_pool3d": 3,
    "adaptive_avg_pool1d": 1, "adaptive_avg_pool2d": 2, "adaptive_avg_pool3d": 3,
    "adaptive_max_pool1d": 1, "adaptive_max_pool2d": 2, "adaptive_max_pool3d": 3,
    "fractional_max_pool2d": 2, "fractional_max_pool3d": 3, "max_unpool2d": 2, "max_unpool3d": 3,
    "upsample_nearest1d": 1, "upsample_nearest2d": 2, "upsample_nearest3d": 3,
    "_upsample_nearest_exact1d": 1, "_upsample_nearest_exact2d": 2, "_upsample_nearest_exact3d": 3,
    "upsample_linear1d": 1, "upsample_bilinear2d": 2, "upsample_trilinear3d": 3, "upsample_bicubic2d": 2,
    "_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 2,
    "grid_sampler": 2, "grid_sampler_2d": 2, "grid_sampler_3d": 3,
    "reflection_pad1d": 1, "reflection_pad2d": 2, "reflection_pad3d": 3,
    "replication_pad1d": 1, "replication_pad2d": 2, "replication_pad3d": 3,
}  # fmt: skip

# Operations along given axes, harmless where the channel axis is not one of them.
ALONG = _names(
    "mean sum nansum prod amax amin max min std var std_mean var_mean norm linalg_vector_norm logsumexp "
    "argmax argmin any all softmax log_softmax _softmax _log_softmax cumsum cumprod flip roll sort argsort "
    "topk median slice narrow select index_select split split_with_sizes unsafe_split chunk unsafe_chunk "
    "tensor_split unbind glu repeat_interleave"
)
RESHAPES = _names(
    "view reshape flatten unflatten unsqueeze squeeze view_as reshape_as _unsafe_view _reshape_alias "
    "unsqueeze_ squeeze_"
)
# The result has the channels of the first operand.
SAME = _names(
    "clone contiguous to _to_copy type_as detach alias lift_fresh dropout dropout_ feature_dropout "
    "feature_dropout_ alpha_dropout feature_alpha_dropout native_dropout zeros_like ones_like full_like "
    "empty_like rand_like randn_like resolve_conj resolve_neg float double half fill_ zero_"
)
# New tensors that have nothing but the type and the device of the operand.
FRESH = _names("new_zeros new_ones new_full new_empty new_empty_strided new_tensor")
# Entry by entry, though PyTorch does not tag them so.
POINTWISE = _names(
    "relu6 selu celu elu elu_ leaky_relu leaky_relu_ hardswish hardswish_ hardsigmoid hardsigmoid_ silu "
    "silu_ mish mish_ hardtanh hardtanh_ softplus log_sigmoid threshold threshold_ softshrink hardshrink "
    "rrelu rrelu_with_noise square multiply multiply_ divide divide_ subtract subtract_ true_divide "
    "negative clip clip_ rsub where absolute float_power copy_"
)
SUMS = _names("add add_ sub sub_ subtract subtract_ rsub")
GATES = _names("mul mul_ multiply multiply_ div div_ divide divide_ true_divide")
# What a layer does with its own weights, by whatever class.
APPLIES = _names(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution linear "
    "addmm matmul t batch_norm native_batch_norm instance_norm prelu _prelu_kernel"
)
# They return no tensor, yet what they return depends on the channels.
READS_VALUES = _names("item _local_scalar_dense is_nonzero equal")


@dataclass(frozen=True, slots=True)
class Call:
    """One operation as it happened: its named arguments, its result, and where."""

    name: str
    pointwise: bool
    arguments: dict[str, Any]
    result: Any
    where: str
    labels: Labels
    trail_of: Callable[[Tensor], Trail | None]

    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments, those in lists included."""
        return [tensor for value in self.arguments.values() for tensor in tensors_in(value)]

    def mixes(self, why: str = "") -> Trail:
        """Complain about every channel that goes into the operation."""
        trails = [trail for tensor in self.tensors() if (trail := self.trail_of(tensor)) is not None]
        labels = frozenset[int]().union(*(trail.labels for trail in trails))
        self.labels.complain(labels, f"{self.where}{why and ', which ' + why} mixes or loses them")
        return Trail.lost(labels)


def changes(call: Call, weight: Tensor, *, inside: bool) -> bool:
    """Whether the operation is one on a layer's weight that a cut of that weight may not survive.

    Inside its layer a weight is applied; there and elsewhere it may be looked at, or scaled as a whole.
    """
    alone = all(other is weight or not other.ndim for other in call.tensors())
    if call.name in FRESH or (call.pointwise and alone) or (inside and call.name in APPLIES):
        return False
    return not (call.name in SAME or call.name in READS_VALUES)


def tensors_in(value: Any) -> Iterable[Tensor]:
    """Every tensor in nested tuples, lists and mappings (or objects that hold them as attributes)."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def follow_operation(call: Call) -> list[tuple[Tensor, Trail]]:
    """The trails of the operation's results; none where no channel goes in."""
    trails = [trail for tensor in call.tensors() if (trail := call.trail_of(tensor)) is not None]
    results = list(tensors_in(call.result))
    if call.name in READS_VALUES and trails:
        call.labels.looks.append(call.where)
    if call.name in FRESH or not trails or not (results or call.name in READS_VALUES):
        return []
    if call.name in ("cat", "concat", "concatenate", "stack"):
        trail = _cat(call)
    elif call.pointwise or call.name in POINTWISE:
        trail = _pointwise(call)
    else:
        source = call.tensors()[0]
        first = call.trail_of(source)
        if first is None:
            trail = call.mixes()
        elif first.dim is None:
            trail = first  # mixed before, and complained about
        else:
            trail = _one_operand(call, source, first)
    return [(result, _fitting(trail, result, call)) for result in results]


def _fitting(trail: Trail, result: Tensor, call: Call) -> Trail:
    """The trail, if the result can have it: the tables above are trusted only as far as shapes agree."""
    if trail.dim is None:
        return trail
    if trail.dim >= result.ndim or result.shape[trail.dim] != len(trail.ids):
        return call.mixes()
    return trail


def _one_operand(call: Call, source: Tensor, trail: Trail) -> Trail:
    dim = trail.dim
    assert dim is not None
    name, arguments = call.name, call.arguments
    only_for_its_shape = name in SAME or name in ("expand_as", "view_as", "reshape_as")
    if not only_for_its_shape and any(call.trail_of(other) is not None for other in call.tensors()[1:]):
        return call.mixes()
    if name in SAME:
        return trail
    if name in SPATIAL:
        return trail if dim < source.ndim - SPATIAL[name] else call.mixes()
    if name in RESHAPES:
        return reshaped(trail, tuple(source.shape), tuple(call.result.shape)) or call.mixes(
            "cuts the channel axis apart or folds it into another, as a channel shuffle does,"
        )
    if name in ALONG:
        return _along(call, source, trail, dim)
    if name in ("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t"):
        return replace(trail, dim=_moved(call, source, dim))
    if name in ("expand", "expand_as", "broadcast_to", "repeat", "tile"):
        return replace(trail, dim=dim + call.result.ndim - source.ndim)
    if name in ("pad", "constant_pad_nd"):
        return _padded(call, source, trail, dim)
    if name == "native_layer_norm" or name == "layer_norm":
        return trail if dim < source.ndim - len(arguments["normalized_shape"]) else call.mixes()
    return call.mixes()


def _along(call: Call, source: Tensor, trail: Trail, dim: int) -> Trail:
    """Reductions, slices and the like: fine along other axes than the channels'."""
    arguments = call.arguments
    given = arguments.get("dim", arguments.get("dims"))
    if given is None or given == [] or given == ():
        return call.mixes()
    axes = {int(axis) % source.ndim for axis in (given if isinstance(given, (list, tuple)) else [given])}
    if dim in axes:
        whole = call.name == "slice" and call.result.shape == source.shape and arguments["step"] == 1
        return trail if whole else call.mixes()
    result = next(iter(tensors_in(call.result)))
    if result.ndim < source.ndim:
        dim -= sum(axis < dim for axis in axes)
    return replace(trail, dim=dim)


def _moved(call: Call, source: Tensor, dim: int) -> int:
    """Where the axis `dim` is after the axes were permuted."""
    marked = torch.empty([1 if axis != dim else 2 for axis in range(source.ndim)], device="meta")
    arguments = {name: value for name, value in call.arguments.items() if not isinstance(value, Tensor)}
    moved = getattr(torch, call.name)(marked, *arguments.values())
    return int(list(moved.shape).index(2))


def _padded(call: Call, source: Tensor, trail: Trail, dim: int) -> Trail:
    pads = call.arguments["pad"]
    at = 2 * (source.ndim - 1 - dim)
    before, after = (int(pads[at]), int(pads[at + 1])) if at < len(pads) else (0, 0)
    if before == after == 0:
        return trail
    if before < 0 or after < 0 or call.arguments.get("mode", "constant") != "constant":
        return call.mixes()
    return Trail.foreign(dim, before).joined([trail, Trail.foreign(dim, after)])


def _cat(call: Call) -> Trail:
    tensors = call.tensors()
    trails = [call.trail_of(tensor) for tensor in tensors]
    known = [trail for trail in trails if trail is not None and trail.dim is not None]
    if not known or any(trail is not None and trail.dim is None for trail in trails):
        return call.mixes()
    stacked = call.name == "stack"  # along a new axis
    dim, axis = known[0].dim, int(call.arguments["dim"]) % (tensors[0].ndim + stacked)
    assert dim is not None
    if any(trail.dim != dim for trail in known):
        return call.mixes()
    if axis == dim and not stacked:
        parts = [
            trail if trail is not None else Trail.foreign(dim, tensor.shape[dim])
            for trail, tensor in zip(trails, tensors, strict=True)
        ]
        # Each part keeps the sizes of its own flatten; only where they agree do they mean something.
        return replace(
            parts[0].joined(parts[1:]), sizes=parts[0].sizes if len({p.sizes for p in parts}) == 1 else ()
        )
    first = known[0]
    for other in known[1:]:
        call.labels.unite(first.ids, other.ids)
        first = first.written_over(other)
    if len(known) < len(trails):
        call.labels.keep(first.labels)
    return replace(first, dim=dim + (stacked and axis <= dim))


def _pointwise(call: Call) -> Trail:
    """Entry by entry, with broadcasting: channels that meet can only be removed together."""
    result = next(iter(tensors_in(call.result)))
    tensors = call.tensors()
    operands = [(tensor, trail) for tensor in tensors if (trail := call.trail_of(tensor)) is not None]
    known = [(tensor, trail) for tensor, trail in operands if trail.dim is not None]
    lost = frozenset[int]().union(*(trail.labels for _, trail in operands if trail.dim is None))
    if not known:
        return Trail.lost(lost)

    def aligned(tensor: Tensor, trail: Trail) -> int:
        assert trail.dim is not None
        return trail.dim + result.ndim - tensor.ndim

    dims = {aligned(*pair) for pair in known if pair[1].labels} or {aligned(*pair) for pair in known}
    if len(dims) > 1:
        return call.mixes()
    dim = dims.pop()
    size = result.shape[dim]

    def axis_of(tensor: Tensor) -> int:
        return dim - (result.ndim - tensor.ndim)

    def spans(tensor: Tensor) -> bool:
        return axis_of(tensor) >= 0 and tensor.shape[axis_of(tensor)] == size

    # Which axis of the network's inputs are the channels shows where they meet some.
    known = [
        (t, trail if aligned(t, trail) == dim else Trail.foreign(axis_of(t), t.shape[axis_of(t)]))
        for t, trail in known
        if aligned(t, trail) == dim or axis_of(t) >= 0
    ]

    for tensor, trail in known:
        if not spans(tensor):  # one channel, spread over all the others: nothing is left without it
            call.labels.keep(trail.labels)
    met = [(tensor, trail) for tensor, trail in known if spans(tensor)]
    if not met:
        return Trail.lost(frozenset[int]().union(*(trail.labels for _, trail in known)) | lost)
    if size > 1:
        for tensor in tensors:
            trail = call.trail_of(tensor)
            # One value spread over all channels, as in an assignment, is none of their own.
            own = spans(tensor) and tensor.stride(axis_of(tensor)) != 0
            if own and (trail is None or trail.dim is None):
                call.mixes(f"brings in a tensor of {size} channels that no layer made,")
                break
    first = met[0][1]
    for _, trail in met[1:]:
        if call.name in SUMS and not np.array_equal(first.ids, trail.ids):
            call.labels.summed.update(first.ids.tolist(), trail.ids.tolist())
        call.labels.unite(first.ids, trail.ids)
    call.labels.summed.discard(FOREIGN)
    if call.name in GATES:
        # A gate (squeeze-and-excite) scales a map; the map is what is written.
        _, main = max(met, key=lambda pair: pair[0].numel())
    else:
        main = first
        for _, trail in met[1:]:
            main = main.written_over(trail)
    mixed = lost.union(*(trail.mixed for _, trail in known))
    return replace(main, dim=dim, mixed=mixed)


def reshaped(trail: Trail, old: Sequence[int], new: Sequence[int]) -> Trail | None:
    """The trail after a view of shape `old` as `new`; None where the channel axis does not survive it."""
    assert trail.dim is not None
    size, lead, rest = old[trail.dim], prod(old[: trail.dim]), prod(old[trail.dim + 1 :])
    for axis, count in enumerate(new):  # the axis as it was
        if axis == 0 and trail.dim > 0 and size == 1:
            continue  # that is one image, and not one channel
        if count == size and prod(new[:axis]) == lead and prod(new[axis + 1 :]) == rest:
            return replace(trail, dim=axis)
    for axis, count in enumerate(new):  # folded together with axes around it, but never with the images
        before, after = prod(new[:axis]), prod(new[axis + 1 :])
        if lead % max(before, 1) or rest % max(after, 1) or (axis == 0 and trail.dim > 0):
            continue
        outer, inner = lead // max(before, 1), rest // max(after, 1)
        if outer * size * inner == count and count > size:
            positions = np.tile(np.repeat(np.arange(size), inner), outer)
            return replace(trail.at(positions), dim=axis, sizes=_folded(old, trail.dim, outer, inner))
    for axis, count in enumerate(new):  # unfolded again
        after = prod(new[axis + 1 :])
        if prod(new[:axis]) != lead or not count or count >= size or size % count or after % max(rest, 1):
            continue
        run = size // count
        runs = trail.ids.reshape(count, run)
        if run == after // max(rest, 1) and (runs == runs[:, :1]).all():
            return replace(trail.at(np.arange(count) * run), dim=axis, sizes=())
    return None


def _folded(shape: Sequence[int], dim: int, outer: int, inner: int) -> tuple[int, ...]:
    """The sizes of the axes around `dim` whose product is `outer` and `inner`."""
    before, after = dim, dim + 1
    while prod(shape[before:dim]) < outer:
        before -= 1
    while prod(shape[dim + 1 : after]) < inner:
        after += 1
    return tuple(shape[before:dim]) + tuple(shape[dim + 1 : after])
