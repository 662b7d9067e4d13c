"""Sums over images that lose nothing: what one site keeps during the pass.

Every image gives its mean and its squared deviations from it; images are merged into classes, and
classes into totals, in float64 by the pairwise formula of Chan et al. All its terms are positive, so
nothing cancels, whatever the split into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from evoprune.expression.tree import Expr
from evoprune.scoring.execute import evaluate_rows
from evoprune.scoring.plan import F, Need
from evoprune.scoring.planner import simplified
from evoprune.scoring.steps import compile

DOUBLE = torch.float64

FAR = 4.0
"""Maps whose mean is more deviations from zero than this are measured from near their mean."""

CHUNK = 2**19
"""Entries of maps that are worked on at once: few enough for a cache, enough to be worth the calls."""

LOST = 64.0
"""How many times less than its mean square a map may vary before digits are lost."""

CLOSE = 1e-9
"""How small the variance of a column beside its squared mean is when it may be all rounding."""

SHORT = 32
"""Columns up to which rows are short."""

FEW = 128
"""Images whose sum single precision holds: beyond, what rounding adds to equal values mounts up."""

PENDING = 2**15
"""Images times channels that may wait to be merged into their classes, for each need of each site."""


@dataclass(frozen=True)
class Groups:
    """A batch's images by their row in the accumulators: the same at every site.

    rows: of each image, `[image]`. present: the rows that there are, `[group]`; place: which of them is an
    image's, `[image]`; count: how many images each has, `[group]`.
    """

    rows: Tensor
    present: Tensor
    place: Tensor
    count: Tensor

    @staticmethod
    def of(rows: Tensor) -> Groups:
        """The images in these rows, `[image]`."""
        present, place = torch.unique(rows, return_inverse=True)
        return Groups(rows, present, place, torch.bincount(place).to(DOUBLE))

    @cached_property
    def together(self) -> Groups:
        """All images as one group in the first row."""
        present, place = torch.zeros_like(self.present[:1]), torch.zeros_like(self.place)
        return Groups(self.rows, present, place, self.count.sum()[None])


@dataclass(frozen=True)
class Batch:
    """One site's maps of a batch, `[image, channel, pixel]`, and its images by row in the accumulators."""

    maps: Tensor
    groups: Groups


@dataclass(frozen=True)
class Moments:
    """Of each image's map: its mean, and the squared deviations from it, `[image, channel]`."""

    mean: Tensor
    squares: Tensor | None
    width: int


@dataclass
class Accumulator:
    """What is kept for one need: tensors with a row per class, or a single row for all images.

    count: images, `[row]`. fields: `[row, channel]` or `[row, channel, pixel]`, by name: `mean` and
    `squares` (squared deviations from it), `sum` (of what is left after `shift`), `product`, `scatter`.
    width: columns of the source, so that a mean over all entries is over count · width.
    shift: what sums are measured from, `[channel, 1]`. pending: images not merged yet; waiting: how many.
    """

    need: Need
    count: Tensor
    fields: dict[str, Tensor]
    width: int
    shift: Tensor | None = None
    pending: list[tuple[Tensor, Moments]] = field(default_factory=list)
    waiting: int = 0

    @property
    def weight(self) -> float:
        """Entries of an image behind each mean."""
        return 1.0 if self.need.kind == "pixel moments" else float(self.width)

    def at(self, channels: slice) -> Accumulator:
        """Some channels of it."""
        fields = {name: value[:, channels] for name, value in self.fields.items()}
        shift = None if self.shift is None else self.shift[channels]
        return Accumulator(self.need, self.count, fields, self.width, shift)

    def mean(self) -> Tensor:
        """The means, `[row, channel]` or `[row, channel, pixel]`."""
        if "mean" in self.fields:
            return self.fields["mean"]
        mean = self.fields["sum"] / _like(self.count, self.fields["sum"])
        return mean if self.shift is None else mean + self.shift

    def grow(self, rows: int) -> None:
        """Make room for classes seen for the first time; doubled, so that it is made seldom."""
        have = len(self.count)
        if have >= rows:
            return
        more = max(rows, 2 * have) - have
        self.count = torch.cat([self.count, self.count.new_zeros(more)])
        for name, value in self.fields.items():
            empty = value.new_full((more, *value.shape[1:]), 1.0 if name == "product" else 0.0)
            self.fields[name] = torch.cat([value, empty])

    def merge(self, rows: Tensor, count: Tensor, new: Mapping[str, Tensor]) -> None:
        """Take in more images of some rows, `[row]`, each once."""
        if "product" in new:
            self.fields["product"][rows] *= new["product"]
        elif "sum" in new:
            self.fields["sum"].index_add_(0, rows, new["sum"])
        else:
            have = {name: value[rows] for name, value in self.fields.items()}
            for name, value in merged_moments(self.count[rows], have, count, new, self.weight).items():
                self.fields[name][rows] = value
        self.count[rows] += count

    def wait(self, rows: Tensor, moments: Moments) -> bool:
        """Take images that are merged when enough have come; False where one is not finite."""
        self.pending.append((rows, moments))
        self.waiting += len(rows)
        if self.waiting * moments.mean.shape[1] > PENDING:
            self.settle()
        return _is_finite(moments.mean)

    def settle(self) -> None:
        """Merge the images that wait."""
        if not self.pending:
            return
        rows = torch.cat([rows for rows, _ in self.pending])
        moments = _joined([moments for _, moments in self.pending])
        self.pending.clear()
        self.waiting = 0
        groups = Groups.of(rows) if self.need.by_class else Groups.of(torch.zeros_like(rows))
        place = groups.place
        self.grow(int(groups.present.max()) + 1)

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros((len(groups.count), values.shape[1])).index_add_(0, place, values)

        near = moments.mean[_first(place, len(groups.count))]
        new = {"mean": near + summed(moments.mean - near[place]) / groups.count[:, None]}
        if moments.squares is not None:
            between = self.weight * (moments.mean - new["mean"][place]).square()
            new["squares"] = summed(moments.squares + between)
        self.merge(groups.present, groups.count, new)


class SiteSums:
    """The accumulators of one site, started by its first batch."""

    def __init__(
        self, needs: Sequence[Need], map_size: tuple[int, int], parameters: Mapping[str, Tensor]
    ) -> None:
        self.by_need: dict[Need, Accumulator] = {}
        self._map_size, self._parameters = map_size, parameters
        self._by_image = [need for need in needs if need.kind == "moments"]
        self._by_batch = [need for need in needs if need.kind != "moments"]
        # Maps behind a ReLU are their own absolute values, which makes sources equal.
        self._plain = {need.source: _without_abs(need.source) for need in needs}
        sources = {*self._plain, *self._plain.values()}
        self._programs = {source: compile([source]) for source in sources}
        self._tells_sign = any(source != plain for source, plain in self._plain.items())

    def add(self, batch: Batch) -> bool:
        """Add a batch; False where a sum of it is not finite."""
        images, channels, pixels = batch.maps.shape
        positive = self._tells_sign and bool(batch.maps.amin() >= 0)
        finite = True
        # A chunk of images passes through all sources while it is in a core's cache.
        step = max(1, CHUNK // (channels * pixels)) if batch.maps.device.type == "cpu" else images
        parts: dict[tuple[Expr, bool], list[_Sums]] = {}
        for first in range(0, images, step) if self._by_image else ():
            chunk = batch.maps[first : first + step]
            values: dict[Expr, Tensor] = {}
            for source, squares in dict.fromkeys(
                (self._source(n, positive), n.squares) for n in self._by_image
            ):
                if source not in values:
                    values[source] = self._values(source, chunk)
                parts.setdefault((source, squares), []).append(_sums(values[source], squares))
        for need in self._by_image:
            source = self._source(need, positive)
            moments = self._moments(source, parts[source, need.squares], batch.maps)
            if need not in self.by_need:
                self.by_need[need] = _start(need, batch.maps, moments.width)
            finite &= self.by_need[need].wait(batch.groups.rows, moments)
        by_source: dict[Expr, list[Need]] = {}
        for need in self._by_batch:
            by_source.setdefault(self._source(need, positive), []).append(need)
        for source, needs in by_source.items():
            whole = self._values(source, batch.maps)
            for need in needs:
                if need not in self.by_need:
                    self.by_need[need] = _start(need, whole, whole.shape[-1])
                finite &= _add_batch(self.by_need[need], whole, batch.groups)
        return finite

    def _moments(self, source: Expr, parts: Sequence[_Sums], maps: Tensor) -> Moments:
        """Moments of each image's map of a source; in float64, from sums in the maps' own precision."""
        width = parts[0].width
        mean = torch.cat([part.total for part in parts]).to(DOUBLE) / width
        if parts[0].squares is None:
            return Moments(mean, None, width)
        lengths = torch.cat([part.squares for part in parts if part.squares is not None]).to(DOUBLE)
        if width == 1:
            return Moments(mean, torch.zeros_like(mean), 1)
        spread = lengths - width * mean.square()
        # The difference lost digits where a map varies little beside its mean; all, where a square overflows.
        far = (spread * LOST < lengths) | lengths.isinf()
        images = far.any(1)
        if bool(images.any()):
            rows = self._values(source, maps[images])[far[images]].to(DOUBLE)
            near = rows[:, :1]
            deviations = rows - near
            middle = deviations.mean(-1, keepdim=True)
            mean[far] = (near + middle)[:, 0]
            spread[far] = _row_squares(deviations - middle)
        return Moments(mean, spread, width)

    def _source(self, need: Need, positive: bool) -> Expr:
        return self._plain[need.source] if positive else need.source

    def _values(self, source: Expr, maps: Tensor) -> Tensor:
        """A source's values `[image, channel, column]` from maps of the same layout."""
        if source == F:
            return maps
        values = evaluate_rows(self._programs[source], maps.transpose(0, 1), self._map_size, self._parameters)
        values = values if values.ndim == 3 else values.unsqueeze(-1)
        return values.transpose(0, 1)


def _without_abs(source: Expr) -> Expr:
    plain = source.replace(Expr("abs", (F,)), F)
    return plain.fold(lambda node, args: simplified(Expr(node.name, args, node.rho)))


@dataclass(frozen=True)
class _Sums:
    """Of each image's map: the sum, and the sum of squares where it is asked for, `[image, channel]`."""

    total: Tensor
    squares: Tensor | None
    width: int


def _sums(values: Tensor, squares: bool) -> _Sums:
    """Sums over the last axis, in the values' own precision where squares will tell what it lost."""
    width = values.shape[-1]
    if width == 1:
        return _Sums(values[..., 0], values[..., 0] if squares else None, 1)
    if not squares:
        return _Sums(values.sum(-1, dtype=DOUBLE), None, width)
    return _Sums(_row_sums(values), _row_squares(values), width)


def _first(place: Tensor, groups: int) -> Tensor:
    """Which image is the first of each group, `[group]`.

    Measured from one of themselves, equal values vary by exactly 0, not by the rounding of their mean: a
    deviation of 1e-9 is a divisor, 0 is none.
    """
    first = place.new_full((groups,), len(place))
    return first.scatter_reduce_(0, place, torch.arange(len(place), device=place.device), "amin")


def _row_sums(values: Tensor) -> Tensor:
    """Sums of the last axis; torch's reductions are slow over short rows, a product with ones is not."""
    if values.shape[-1] > SHORT:
        return values.sum(-1)
    sums: Tensor = values @ values.new_ones(values.shape[-1])
    return sums


def _row_squares(values: Tensor) -> Tensor:
    if values.shape[-1] <= SHORT:
        return _row_sums(values.square())
    lengths: Tensor = torch.linalg.vector_norm(values, dim=-1)
    return lengths.square()


def _joined(parts: Sequence[Moments]) -> Moments:
    if len(parts) == 1:
        return parts[0]
    squares = [part.squares for part in parts if part.squares is not None]
    mean = torch.cat([part.mean for part in parts])
    return Moments(mean, torch.cat(squares) if squares else None, parts[0].width)


def _start(need: Need, values: Tensor, width: int) -> Accumulator:
    """An empty accumulator with one row, for a source with so many columns, by its first values."""
    channels = values.shape[1]
    shape = (
        (1, channels, width) if need.kind in ("pixel moments", "pixel products", "scatter") else (1, channels)
    )
    zeros = torch.zeros(shape, dtype=DOUBLE, device=values.device)
    match need.kind:
        case "products" | "pixel products":
            fields = {"product": torch.ones_like(zeros)}
        case "scatter":
            fields = {"sum": zeros, "scatter": zeros.unsqueeze(-1).repeat(1, 1, 1, width)}
        case "pixel moments" if not need.squares:
            fields = {"sum": zeros}
        case _:
            fields = {"mean": zeros} | ({"squares": zeros.clone()} if need.squares else {})
    shift = _shift(values) if "sum" in fields else None
    return Accumulator(need, torch.zeros(1, dtype=DOUBLE, device=values.device), fields, width, shift)


def _shift(values: Tensor) -> Tensor | None:
    """A point to measure from, `[channel, 1]`: the first images' means where values lie far from zero."""
    values = values[:16]
    means = values.mean((0, 2), dtype=DOUBLE)
    deviations = values - means.to(values.dtype)[:, None]
    spread = deviations.square().mean((0, 2), dtype=DOUBLE).sqrt()
    if not bool((means.abs() > FAR * spread).any()):
        return None
    return means.to(values.dtype)[:, None]


def _add_batch(into: Accumulator, values: Tensor, groups: Groups) -> bool:
    """Add a batch's values `[image, channel, column]`; False where a sum of them is not finite."""
    groups = groups if into.need.by_class else groups.together
    present, place, count = groups.present, groups.place, groups.count
    into.grow(int(present[-1]) + 1)
    if "sum" in into.fields:
        if into.shift is not None:
            values = values - into.shift
        new = {"sum": _summed(values, place, len(present))}
        if "scatter" in into.fields:
            for k, row in enumerate(present.tolist()):
                of_row = values if len(present) == 1 else values[place == k]
                _add_outer_products(into.fields["scatter"][row], of_row)
    elif into.need.kind == "pixel moments":
        new = _moments_of_columns(values, place, count)
    else:
        values = values.prod(-1, dtype=DOUBLE) if into.need.kind == "products" else values
        parts = [values[place == k] for k in range(len(present))] if len(present) > 1 else [values]
        new = {"product": torch.stack([part.prod(0, dtype=DOUBLE) for part in parts])}
    into.merge(present, count, new)
    return all(_is_finite(value) for value in new.values())


def _moments_of_columns(values: Tensor, place: Tensor, count: Tensor) -> dict[str, Tensor]:
    """Mean and squared deviations of each column over the images of each class."""

    groups, images = len(count), _like(count, values)
    near = (_summed(values, place, groups) / images).to(values.dtype)
    deviations = values - (near if groups == 1 else near[place])
    # The mean of what is left corrects the rounding of the mean.
    mean = near.to(DOUBLE) + _summed(deviations, place, groups) / images
    squares = _summed(deviations.square_(), place, groups)
    # What varies hardly at all beside its mean may not vary at all.
    close = ((squares > 0) & (squares < CLOSE * images * mean.square())).any(0)
    if bool(close.any()):
        columns = values[:, close].to(DOUBLE)
        near = columns[_first(place, groups)]
        deviations = columns - near[place]
        middle = _summed(deviations, place, groups) / count[:, None]
        mean[:, close] = near + middle
        squares[:, close] = _summed((deviations - middle[place]).square(), place, groups)
    return {"mean": mean, "squares": squares}


def _summed(values: Tensor, place: Tensor, groups: int) -> Tensor:
    """Sums over the images of each group, `[group, …]`, in float64; float32 holds those of a few images."""
    sums = [
        part.new_zeros((groups, *part.shape[1:])).index_add_(0, where, part).to(DOUBLE)
        for part, where in zip(torch.split(values, FEW), torch.split(place, FEW), strict=True)
    ]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


def _add_outer_products(scatter: Tensor, values: Tensor) -> None:
    """Add each image's map times itself, in float64, to `[channel, pixel, pixel]`."""
    step = max(1, CHUNK // values[:, 0].numel())
    for first in range(0, values.shape[1], step):
        channels = slice(first, first + step)
        part = values[:, channels].to(DOUBLE).permute(1, 2, 0)
        scatter[channels] += part @ part.transpose(1, 2)


def _is_finite(value: Tensor) -> bool:
    """NaN and infinity stay in a sum."""
    return bool(torch.isfinite(value.sum()))


def merged_moments(
    count: Tensor, have: Mapping[str, Tensor], more: Tensor, new: Mapping[str, Tensor], weight: float
) -> dict[str, Tensor]:
    """The moments of two sets of images together; an empty set changes nothing.

    weight: entries of an image behind each mean.
    """
    share = torch.where(more > 0, more / (count + more), 0.0)
    share, count = _like(share, have["mean"]), _like(count, have["mean"])
    step = new["mean"] - have["mean"]
    result = {"mean": have["mean"] + share * step}
    if "squares" in have:
        result["squares"] = have["squares"] + new["squares"] + weight * count * share * step.square()
    return result


def _like(rows: Tensor, value: Tensor) -> Tensor:
    return rows.reshape(-1, *[1] * (value.ndim - 1))


def total(accumulator: Accumulator) -> Accumulator:
    """All classes as one."""
    if len(accumulator.count) == 1:
        return accumulator
    fields, count = accumulator.fields, accumulator.count
    if "product" in fields:
        together = {"product": fields["product"].prod(0, keepdim=True)}
    elif "sum" in fields:
        together = {name: value.sum(0, keepdim=True) for name, value in fields.items()}
    else:
        weights = _like(count / count.sum(), fields["mean"])
        near = fields["mean"][count.argmax()]
        mean = near + (weights * (fields["mean"] - near)).sum(0, keepdim=True)
        together = {"mean": mean}
        if "squares" in fields:
            between = accumulator.weight * _like(count, mean) * (fields["mean"] - mean).square()
            together["squares"] = (fields["squares"] + between).sum(0, keepdim=True)
    return Accumulator(accumulator.need, count.sum()[None], together, accumulator.width, accumulator.shift)


def others(accumulator: Accumulator) -> Accumulator:
    """For each class, all other classes as one: those before it merged with those after it."""
    fields = {"count": accumulator.count, **accumulator.fields}

    def both(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
        count = {"count": a["count"] + b["count"]}
        if "product" in a:
            return count | {"product": a["product"] * b["product"]}
        if "sum" in a:
            return count | {name: a[name] + b[name] for name in ("sum", "scatter") if name in a}
        return count | merged_moments(a["count"], a, b["count"], b, accumulator.weight)

    nothing = {
        name: torch.ones_like(value[:1]) if name == "product" else torch.zeros_like(value[:1])
        for name, value in fields.items()
    }
    before = _scan(fields, both, nothing)
    flipped = _scan({name: value.flip(0) for name, value in fields.items()}, both, nothing)
    result = both(before, {name: value.flip(0) for name, value in flipped.items()})
    count = result.pop("count")
    return Accumulator(accumulator.need, count, result, accumulator.width, accumulator.shift)


def _scan(
    fields: dict[str, Tensor],
    both: Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]],
    nothing: dict[str, Tensor],
) -> dict[str, Tensor]:
    """What came before each row, merged, in as many steps as the number of rows has binary digits."""

    def delayed(state: dict[str, Tensor], by: int) -> dict[str, Tensor]:
        return {
            name: torch.cat([nothing[name].expand(by, *value.shape[1:]), value[:-by]])
            for name, value in state.items()
        }

    rows = len(fields["count"])
    state = delayed(fields, 1)
    by = 1
    while by < rows:
        state = both(delayed(state, by), state)
        by *= 2
    return state
