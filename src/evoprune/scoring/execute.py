"""The kernels: steps to torch, batched over classes and channels.

A value is a float64 tensor `[class, channel, …]`: a scalar `[class, channel]`, a vector with one
axis more, a matrix with two. The first two axes are 1 where a value is the same for all classes or
channels, and broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERATORS, TINY
from evoprune.scoring import steps
from evoprune.scoring.steps import CHANNEL, CLASS, LAYER, Kernel, Program, Step, compile

BUDGET = 2**23
"""Entries (64 MiB) that the largest value of a chunk of channels and classes may have."""

MANY = 2**16
"""Entries from which a faster way is worth the calls that it takes more."""


class Leaves(Protocol):
    """Where an executor finds the values of leaves."""

    @property
    def map_size(self) -> tuple[int, int]:
        """Height and width of the site's feature maps."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The lengths of the axes, by symbol; for `N+` and `N-` the longest."""

    def value(self, step: Step, channels: slice, classes: Sequence[int]) -> Tensor:
        """The value `[class or 1, channel or 1, …]` for some channels and classes."""

    def class_groups(self) -> list[Sequence[int]]:
        """The classes in groups whose values have equal shapes."""


def evaluate(program: Program, leaves: Leaves, channels: int) -> Tensor:
    """Scores `[function, channel]`: each root evaluated per class and averaged over the classes."""
    largest, sizes = [1, 1, 1], leaves.sizes
    for step in program.steps:
        largest[step.scope] = max(largest[step.scope], _entries(program, step, sizes))
    width = max(1, min(channels, BUDGET // max(largest[CHANNEL:])))
    of_layer: dict[int, Tensor] = {}
    _run(program, LAYER, of_layer, leaves, slice(0, channels), [])
    parts = []
    for start in range(0, channels, width):
        chunk = slice(start, min(start + width, channels))
        size = chunk.stop - chunk.start
        of_channels = dict(of_layer)
        _run(program, CHANNEL, of_channels, leaves, chunk, [])
        sums = {
            i: torch.zeros(size, dtype=torch.float64) for i in set(program.roots) if _per_class(program, i)
        }
        count = 0
        many = max(1, BUDGET // (largest[CLASS] * size))
        for group in leaves.class_groups() if sums else []:
            for first in range(0, len(group), many):
                classes = group[first : first + many]
                of_classes = dict(of_channels)
                _run(program, CLASS, of_classes, leaves, chunk, classes)
                count += len(classes)
                for i in sums:
                    sums[i] += of_classes[i].expand(len(classes), size).sum(0).cpu()
        rows = [
            sums[i] / count if i in sums else of_channels[i].expand(1, size)[0].to("cpu", torch.float64)
            for i in program.roots
        ]
        parts.append(torch.stack(rows))
    return torch.cat(parts, dim=1)


def _entries(program: Program, step: Step, sizes: Mapping[str, int]) -> int:
    """Of the largest tensor of a step; `geo` takes the distances between all rows on its way."""
    entries = step.shape.entries.size(sizes)
    if step.name == "geo" and step.leaf is None and (axes := program.steps[step.args[0]].shape.axes):
        entries = max(entries, axes[0].size(sizes) ** 2)
    return entries


def _per_class(program: Program, step: int) -> bool:
    return program.steps[step].scope == CLASS


def evaluate_rows(
    program: Program, maps: Tensor, map_size: tuple[int, int], known: Mapping[str, Tensor]
) -> Tensor:
    """A value with a row per image, `[channel, image, …]`, in float64, or as the maps are where that will do.

    maps: `[channel, image, pixel]`; known: operands that are not maps, `[1, channel or 1, …]`.
    """
    maps = maps if _keeps_digits(program) else maps.double()
    values: dict[int, Tensor] = {}
    last = program.last_reads
    for i, step in enumerate(program.steps):
        if step.leaf is None:
            given = [(values[arg], program.steps[arg]) for arg in step.args]
            values[i] = KERNELS[step.name](_Call(step, given, map_size))
            for arg in step.args:
                if last[arg] == i:
                    values.pop(arg, None)
        else:
            values[i] = maps[None] if step.leaf == "F" else known[str(step.leaf)].to(maps.dtype)
    return values[program.roots[0]][0]


def _keeps_digits(program: Program) -> bool:
    """Whether float32 maps may go through as they are: one rounding of an entry is no more than its own.

    After a second one, or a sum or product of many (`tr` adds in float64), differences may be all rounding.
    """
    names = [s.name for s in program.steps if s.leaf is None]
    rounding = [name for name in names if name not in ("abs", "sqrt", "tran", "slice", "tr")]
    return not rounding or (len(rounding) == 1 and OPERATORS[rounding[0]].group == "elementwise")


def _run(
    program: Program,
    scope: int,
    values: dict[int, Tensor],
    leaves: Leaves,
    channels: slice,
    classes: Sequence[int],
) -> None:
    """Compute the steps of one scope into `values`, and drop what no later step reads."""
    last = program.last_reads
    kept = {arg for step in program.steps if step.scope > scope for arg in step.args} | set(program.roots)
    for i, step in enumerate(program.steps):
        if step.scope != scope:
            continue
        if step.leaf is not None:
            values[i] = leaves.value(step, channels, classes)
            continue
        kernel = KERNELS[step.name]
        given = [(values[arg], program.steps[arg]) for arg in step.args]
        values[i] = kernel(_Call(step, given, leaves.map_size))
        for arg in step.args:
            if last[arg] == i and program.steps[arg].scope == scope and arg not in kept:
                values.pop(arg, None)


@dataclass(frozen=True)
class _Call:
    """A step with the values it reads."""

    step: Step
    given: list[tuple[Tensor, Step]]
    map_size: tuple[int, int]

    @property
    def x(self) -> Tensor:
        return self.given[0][0]

    @property
    def y(self) -> Tensor:
        return self.given[1][0]


# Elementwise


def _pad(x: Tensor, sizes: Sequence[int], fill: float) -> Tensor:
    """`x` with its last axes lengthened at their ends."""
    if list(x.shape[-len(sizes) :]) == list(sizes):
        return x
    amounts = [n for have, want in zip(x.shape[::-1], sizes[::-1], strict=False) for n in (0, want - have)]
    return torch.nn.functional.pad(x, amounts, value=fill)


def _aligned(x: Tensor, y: Tensor, fill: float) -> tuple[Tensor, Tensor]:
    """Two values that broadcast: a scalar against everything, a vector along a matrix's columns."""
    if x.ndim == 2 or y.ndim == 2:
        while x.ndim < y.ndim:
            x = x.unsqueeze(-1)
        while y.ndim < x.ndim:
            y = y.unsqueeze(-1)
        return x, y
    columns = max(x.shape[-1], y.shape[-1])
    if x.ndim != y.ndim:
        x, y = (_pad(each, [columns], fill) for each in (x, y))
        return (_laid(x.unsqueeze(-2), y), y) if x.ndim < y.ndim else (x, _laid(y.unsqueeze(-2), x))
    sizes = [columns] if x.ndim == 3 else [max(x.shape[-2], y.shape[-2]), columns]
    return _pad(x, sizes, fill), _pad(y, sizes, fill)


def _laid(row: Tensor, matrix: Tensor) -> Tensor:
    """A row for each channel, with channels last in memory where the matrices have them so."""
    if matrix.stride(1) == 1 < matrix.stride(-1):
        return row.transpose(1, -1).contiguous().transpose(1, -1)
    return row


def _add(call: _Call) -> Tensor:
    x, y = _aligned(call.x, call.y, 0.0)
    return x + y


def _sub(call: _Call) -> Tensor:
    x, y = _aligned(call.x, call.y, 0.0)
    return x - y


def _mul(call: _Call) -> Tensor:
    x, y = _aligned(call.x, call.y, 1.0)
    return x * y


def _div(call: _Call) -> Tensor:
    return quotient(*_aligned(call.x, call.y, 1.0))


def quotient(x: Tensor, y: Tensor) -> Tensor:
    """x / y, and 0 where y is below 1e-12 in size."""
    if max(x.numel(), y.numel()) >= MANY:
        # What is finite gives 0 over infinity, which takes a tenth of the time of a mask.
        ratio = x / _without_tiny(y)
        if torch.isfinite(ratio.sum()):
            return ratio
    return (x / y).masked_fill_(y.abs() < TINY, 0.0)


def _without_tiny(y: Tensor) -> Tensor:
    """Infinity instead of what is below 1e-12 in size."""
    if y.numel() < MANY:
        return y.clone().masked_fill_(y.abs() < TINY, torch.inf)  # laid out in memory as it was
    below = np.nextafter(np.dtype(str(y.dtype).removeprefix("torch.")).type(TINY), 0)
    return torch.nn.functional.threshold(y.abs(), float(below), torch.inf).copysign_(y)


def root(x: Tensor, unsigned: bool = False) -> Tensor:
    """Square root of the absolute value; unsigned: no entry is below zero."""
    size = x if unsigned else x.abs()
    if x.device.type != "cpu" or x.requires_grad:
        return size.sqrt()
    # On a CPU torch's own takes ten times as long over zeros; NumPy's is fast, on one thread.
    if torch.get_num_threads() > 1 and x.numel() >= MANY:
        return size.rsqrt().reciprocal_()
    return torch.from_numpy(np.asarray(np.sqrt(size.numpy())))


def _ridge(call: _Call) -> Tensor:
    if call.given[0][1].shape.is_square:
        return call.x + call.step.rho * _eye(call.x)
    return call.x + call.step.rho


def _eye(x: Tensor) -> Tensor:
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


# Matrix


def _tr(call: _Call) -> Tensor:
    x, shape = call.x, call.given[0][1].shape
    if shape.maps:
        return trace(x, call.map_size)
    if x.ndim == 4:
        return x.diagonal(dim1=-2, dim2=-1).sum(-1)
    return x[..., 0] if x.ndim == 3 else x


def trace(maps: Tensor, map_size: tuple[int, int]) -> Tensor:
    """The sum along the diagonal of each map, `[…, pixel]`."""
    diagonal = maps.reshape(*maps.shape[:-1], *map_size).diagonal(dim1=-2, dim2=-1)
    return diagonal.sum(-1, dtype=torch.float64)


def _matmul(call: _Call) -> Tensor:
    x, y = call.x, call.y
    if x.ndim == 2 or y.ndim == 2:
        x, y = _aligned(x, y, 1.0)
        return x * y
    left, right = x.ndim == 3, y.ndim == 3
    x = x.unsqueeze(-2) if left else x
    y = y.unsqueeze(-1) if right else y
    inner = min(x.shape[-1], y.shape[-2])
    result = x[..., :inner] @ y[..., :inner, :]
    result = result.squeeze(-1) if right else result
    return result.squeeze(-1 if right else -2) if left else result


def _inv(call: _Call) -> Tensor:
    x = call.x
    if x.ndim < 4:
        return quotient(torch.ones_like(x), x)
    side = min(x.shape[-2:])
    block = x[..., :side, :side] + call.step.rho * _eye(x[..., :side, :side])
    inverse, failed = torch.linalg.inv_ex(block)
    return torch.where((failed != 0)[..., None, None], torch.nan, inverse)


def _dot(call: _Call) -> Tensor:
    x, y = _flat(call.x), _flat(call.y)
    n = min(x.shape[-1], y.shape[-1])
    return (x[..., :n] * y[..., :n]).sum(-1)


def _outprod(call: _Call) -> Tensor:
    return _flat(call.x).unsqueeze(-1) * _flat(call.y).unsqueeze(-2)


def _flat(x: Tensor) -> Tensor:
    """All entries, row by row: `[class, channel, entry]`."""
    return x.flatten(2) if x.ndim > 2 else x.unsqueeze(-1)


# Statistics


def _over_all(statistic: Callable[[Tensor], Tensor]) -> Callable[[_Call], Tensor]:
    return lambda call: statistic(_flat(call.x))


def _over_rows(statistic: Callable[[Tensor], Tensor]) -> Callable[[_Call], Tensor]:
    """A matrix's rows, a vector's entries; a scalar is one row of one entry."""
    return lambda call: statistic(call.x.transpose(-1, -2) if call.x.ndim == 4 else _flat(call.x))


def _variance(x: Tensor) -> Tensor:
    """Of the last axis, around its mean; of equal entries exactly 0, not what rounding leaves of the mean."""
    spread = (x - x.mean(-1, keepdim=True)).square().mean(-1)
    return spread.masked_fill_(x.amax(-1) == x.amin(-1), 0.0)


def _statistic(name: str, function: Callable[[Tensor], Tensor]) -> dict[str, Callable[[_Call], Tensor]]:
    return {f"{name}_g": _over_all(function), f"{name}_s": _over_rows(function)}


def _count_g(call: _Call) -> Tensor:
    return call.x.new_full((1, 1), float(np.prod(call.x.shape[2:])))


def _count_s(call: _Call) -> Tensor:
    return call.x.new_full((1, 1), float(call.x.shape[2] if call.x.ndim > 2 else 1))


# Special


def _rows(x: Tensor) -> Tensor:
    """`[class, channel, row, column]`: a vector is rows of one entry, a scalar is one row."""
    return x if x.ndim == 4 else _flat(x).unsqueeze(-1)


def _distances(x: Tensor, y: Tensor) -> Tensor:
    # The default takes ‖x‖² + ‖y‖² − 2x·y for many rows, which cancels.
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """exp(−‖a−b‖²/2) between rows `[…, row, column]`.

    Distances come from a matrix product where that costs no digits: an absolute error of ‖a‖² · 1e-16 in
    the exponent.
    """
    middle = y.mean(-2, keepdim=True)
    a, b = x - middle, y - middle
    of_a, of_b = a.square().sum(-1, keepdim=True), b.square().sum(-1, keepdim=True)
    if not float(of_a.amax()) + float(of_b.amax()) < NEAR:
        return torch.exp(-_distances(x, y).square() / 2)
    squared = (a @ b.transpose(-1, -2)).mul_(-2).add_(of_a).add_(of_b.transpose(-1, -2))
    return squared.clamp_(min=0).mul_(-0.5).exp_()


NEAR = 1e5
"""Squared lengths of rows up to which a matrix product gives their distances to 1e-10."""


def _rbf(call: _Call) -> Tensor:
    x, y = _rows(call.x), _rows(call.y)
    columns = max(x.shape[-1], y.shape[-1])
    return gaussian(_pad(x, [columns], 0.0), _pad(y, [columns], 0.0))


def _least(total: Tensor) -> Tensor:
    """Where the least summed distance is, along the last axis.

    Sums that are equal on paper differ by rounding; the first of them is meant.
    """
    near = total <= total.amin(-1, keepdim=True) * (1 + 1e-10)
    return near.to(torch.int8).argmax(-1)


def _medoid(rows: Tensor) -> Tensor:
    """Which row has the least summed distance to the others, `[…]`, of rows `[…, row, column]`.

    Distances by a matrix product are fast and nearly right: those sums choose the few rows that come into
    question, and exact ones decide between them.
    """
    count, columns = rows.shape[-2:]
    if count * columns < FEW:
        return _least(_distances(rows, rows).sum(-1))
    around = rows - rows.mean(-2, keepdim=True)
    lengths = around.square().sum(-1)
    squared = (around @ around.transpose(-1, -2)).mul_(-2).add_(lengths.unsqueeze(-1))
    sums = squared.add_(lengths.unsqueeze(-2)).clamp_(min=0).sqrt_().sum(-1)
    # The rounding of a product of rows, at its worst in every distance.
    rounding = (16 * columns * torch.finfo(rows.dtype).eps * lengths.amax(-1, keepdim=True)).sqrt()
    likely = sums <= sums.amin(-1, keepdim=True) + 2 * count * rounding
    number = likely.sum(-1)
    many = (number == 0) | (number > count // 4)
    most = int(number.masked_fill(many, 1).amax())
    first = likely.logical_not().to(torch.int8).argsort(dim=-1, stable=True)[..., :most]
    some = rows.gather(-2, first.unsqueeze(-1).expand(*first.shape, columns))
    best = _least(_distances(some, rows).sum(-1))
    best = first.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    if bool(many.any()):
        best[many] = _least(_distances(rows[many], rows[many]).sum(-1))
    return best


FEW = 2**12
"""Entries up to which rows are compared with one another at once."""


def _geo(call: _Call) -> Tensor:
    rows = _rows(call.x)
    best = _medoid(rows)
    row = rows.gather(-2, best[..., None, None].expand(*best.shape, 1, rows.shape[-1])).squeeze(-2)
    return row if call.x.ndim == 4 else row.squeeze(-1)


def _slice(call: _Call) -> Tensor:
    return call.x[:, :, 0] if call.x.ndim > 2 else call.x


KERNELS: dict[str, Callable[[_Call], Tensor]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "abs": lambda call: call.x.abs(),
    "sq": lambda call: call.x.square(),
    "sqrt": lambda call: root(call.x),
    "ridge": _ridge,
    "tr": _tr,
    "matmul": _matmul,
    "inv": _inv,
    "dot": _dot,
    "outprod": _outprod,
    "tran": lambda call: call.x.transpose(-1, -2) if call.x.ndim == 4 else call.x,
    **_statistic("sum", lambda x: x.sum(-1)),
    **_statistic("prod", lambda x: x.prod(-1)),
    **_statistic("mean", lambda x: x.mean(-1)),
    **_statistic("std", lambda x: _variance(x).sqrt()),
    **_statistic("var", _variance),
    "count_g": _count_g,
    "count_s": _count_s,
    "rbf": _rbf,
    "geo": _geo,
    "slice": _slice,
}


@dataclass(frozen=True)
class ArrayLeaves:
    """Operands from arrays in memory: maps `[channel, image, pixel]`, filters `[filter, weight]`,
    own filters `[channel, weight]`, batch-norm `[channel, 4]`, the images of each class, and of the rest.
    """

    map_size: tuple[int, int]
    maps: Tensor | None
    filters: Tensor | None
    own: Tensor | None
    batch_norm: Tensor | None
    inside: tuple[Tensor, ...]
    outside: tuple[Tensor, ...]
    _kernels: dict[tuple[int, int, str], Tensor] = field(default_factory=dict)

    def value(self, step: Step, channels: slice, classes: Sequence[int]) -> Tensor:
        match step.leaf:
            case Kernel(first, second, ""):
                return self._kernel(first, second, channels, classes)
            case Kernel(first, second, over):
                value = self._kernel_sum(first, second, channels, classes)
                if over == "mean_g":
                    value = value / (self._images(first, classes) * self._images(second, classes))
                return value
            case "F":
                return _given(self.maps)[None, channels].to(torch.float64)
            case "F+":
                return self._rows(channels, [self.inside[k] for k in classes])
            case "F-":
                return self._rows(channels, [self.outside[k] for k in classes])
            case steps.OUTER_MEDOID:
                return self._outer_medoid(channels, classes)
            case "W":
                return _given(self.filters)[None, None].to(torch.float64)
            case "W_I":
                return _given(self.own)[None, channels].to(torch.float64)
            case _:
                return _given(self.batch_norm)[None, channels].to(torch.float64)

    @property
    def sizes(self) -> Mapping[str, int]:
        images, pixels = (1, 1) if self.maps is None else self.maps.shape[1:]
        filters, weights = (1, 1) if self.filters is None else self.filters.shape
        return {"N": images, "N+": images, "N-": images, "P": pixels, "filters": filters, "weights": weights}

    def class_groups(self) -> list[Sequence[int]]:
        """Classes with equally many images: their `F+` stack without padding."""
        by_size: dict[int, list[int]] = {}
        for k, images in enumerate(self.inside):
            by_size.setdefault(len(images), []).append(k)
        return list(by_size.values())

    def _kernel(self, first: str, second: str, channels: slice, classes: Sequence[int]) -> Tensor:
        """Of each class: the kernel between images of it, of others, or of all."""
        key = (channels.start, channels.stop, "rbf")
        if key not in self._kernels:
            self._kernels.clear()
            maps = _given(self.maps)[channels].to(torch.float64)
            self._kernels[key] = gaussian(maps, maps)
        kernel = self._kernels[key]
        if first == second == "F":
            return kernel[None]
        every = torch.arange(kernel.shape[-1], device=kernel.device)

        def images(operand: str, k: int) -> Tensor:
            return every if operand == "F" else self.inside[k] if operand == "F+" else self.outside[k]

        return torch.stack([kernel[:, images(first, k)][:, :, images(second, k)] for k in classes])

    def _kernel_sum(self, first: str, second: str, channels: slice, classes: Sequence[int]) -> Tensor:
        """Of each class: the blocks between images of it, of others, or of all."""
        key = (channels.start, channels.stop, "sum_g")
        if key not in self._kernels:
            self._kernels[key] = self._blocks(channels)
        blocks = self._kernels[key]
        if first == second == "F":
            return blocks.sum((-2, -1))[None]
        own = torch.eye(blocks.shape[-1], dtype=blocks.dtype, device=blocks.device)[list(classes)]
        of = {"F": torch.ones_like(own), "F+": own, "F-": 1 - own}
        return torch.einsum("ki,cij,kj->kc", of[first], blocks, of[second])

    def _images(self, operand: str, classes: Sequence[int]) -> Tensor:
        """How many images an operand has, `[class or 1, 1]`."""
        if operand == "F":
            return torch.tensor([[float(_given(self.maps).shape[1])]], dtype=torch.float64)
        groups = self.inside if operand == "F+" else self.outside
        return torch.tensor([[float(len(groups[k]))] for k in classes], dtype=torch.float64)

    def _outer_medoid(self, channels: slice, classes: Sequence[int]) -> Tensor:
        """Of the images of other classes, the one nearest to all of them: `[class, channel, pixel]`."""
        key = (channels.start, channels.stop, steps.OUTER_MEDOID)
        if key not in self._kernels:
            self._kernels[key] = self._summed_distances(channels)
        sums = self._kernels[key]
        total = sums.sum(1)
        maps = _given(self.maps)[channels]
        number = torch.arange(len(maps), device=maps.device)
        rows = []
        for k in classes:
            outside = self.outside[k]
            rows.append(maps[number, outside[_least((total - sums[:, k])[:, outside])]])
        return torch.stack(rows).to(torch.float64)

    def _memberships(self) -> Tensor:
        """Which images each class has, `[class, image]`; one class of all where there are none."""
        images = _given(self.maps).shape[1]
        groups = self.inside or (torch.arange(images),)
        inside = torch.zeros((len(groups), images), dtype=torch.float64)
        for row, of_class in zip(inside, groups, strict=True):
            row[of_class] = 1.0
        return inside

    def _summed_distances(self, channels: slice) -> Tensor:
        """From each image to all of each class, `[channel, class, image]`."""
        inside = self._memberships()
        sums = []
        for channel in _given(self.maps)[channels]:  # one at a time: there are images² distances
            rows = channel.to(torch.float64)
            sums.append(inside @ _distances(rows, rows))
        return torch.stack(sums)

    def _blocks(self, channels: slice) -> Tensor:
        """Sums of the Gaussian kernel between the images of each two classes, `[channel, class, class]`."""
        maps = _given(self.maps)[channels]
        inside = self._memberships()
        blocks = []
        for channel in maps:  # one at a time: a kernel matrix has images² entries
            rows = channel.to(torch.float64)
            blocks.append(inside @ gaussian(rows, rows) @ inside.T)
        return torch.stack(blocks)

    def _rows(self, channels: slice, images: list[Tensor]) -> Tensor:
        maps = _given(self.maps)[channels]
        return torch.stack([maps[:, each].to(torch.float64) for each in images])


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # what an expression reads is checked before it is evaluated
    return tensor


def array_leaves(
    maps: Tensor | None,
    map_size: tuple[int, int],
    classes: Tensor | None,
    filters: Tensor | None,
    own: Tensor | None,
    batch_norm: Tensor | None,
) -> ArrayLeaves:
    """Leaves from maps `[channel, image, pixel]`, classes `[image]` and the layer's parameters."""
    inside: tuple[Tensor, ...] = ()
    outside: tuple[Tensor, ...] = ()
    if classes is not None:
        present = torch.unique(classes)
        inside = tuple((classes == k).nonzero()[:, 0] for k in present)
        outside = tuple((classes != k).nonzero()[:, 0] for k in present)
    return ArrayLeaves(map_size, maps, filters, own, batch_norm, inside, outside)


def score(
    expr: Expr,
    maps: NDArray[np.float64] | None,
    map_size: tuple[int, int],
    classes: NDArray[np.int64] | None,
    filters: NDArray[np.float64] | None,
    batch_norm: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Scores `[channel]` from maps `[image, channel, pixel]`, filters `[channel, weight]`,
    batch_norm `[channel, 4]` and classes `[image]`."""
    tensors = [None if a is None else torch.from_numpy(a) for a in (maps, classes, filters, batch_norm)]
    of_maps, of_classes, of_filters, of_norm = tensors
    channels = next(len(a) for a in (None if maps is None else maps[0], filters, batch_norm) if a is not None)
    leaves = array_leaves(
        None if of_maps is None else of_maps.transpose(0, 1),
        map_size,
        of_classes,
        of_filters,
        of_filters,
        of_norm,
    )
    return evaluate(compile([expr]), leaves, channels)[0].numpy()
