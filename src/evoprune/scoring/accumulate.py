"""Sums over images that lose nothing: what one site keeps during the pass.

Every image gives its mean and its squared deviations from it; images are merged into classes, and
classes into totals, in float64 by the pairwise formula of Chan et al. All its terms are positive, so
nothing cancels, whatever the split into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from evoprune.expression.tree import Expr
from evoprune.scoring.execute import evaluate_rows
from evoprune.scoring.plan import F, Need
from evoprune.scoring.steps import compile

DOUBLE = torch.float64

FAR = 4.0
"""Maps whose mean is more deviations from zero than this are measured from near their mean."""

CHUNK = 2**18
"""Entries of maps that are worked on at once, so that they stay in a core's cache."""

PENDING = 2**18
"""Images times channels that may wait to be merged into their classes."""


@dataclass(frozen=True)
class Batch:
    """One site's maps of a batch, `[image, channel, pixel]`, and each image's row in the accumulators."""

    maps: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Moments:
    """Of each image's map: its mean, and the squared deviations from it, `[image, channel]`."""

    mean: Tensor
    squares: Tensor | None


@dataclass
class Accumulator:
    """What is kept for one need: tensors with a row per class, or a single row for all images.

    count: images, `[row]`. fields: `[row, channel]` or `[row, channel, pixel]`, by name: `mean` and
    `squares` (squared deviations from it), `sum` (of what is left after `shift`), `product`, `scatter`.
    width: columns of the source, so that a mean over all entries is over count · width.
    shift: what sums are measured from, `[channel, 1]`. pending: images not merged yet.
    """

    need: Need
    count: Tensor
    fields: dict[str, Tensor]
    width: int
    shift: Tensor | None = None
    pending: list[tuple[Tensor, Moments]] = field(default_factory=list)

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
        if sum(len(each) for each, _ in self.pending) * moments.mean.shape[1] > PENDING:
            self.settle()
        return _is_finite(moments.mean)

    def settle(self) -> None:
        """Merge the images that wait."""
        if not self.pending:
            return
        rows = torch.cat([rows for rows, _ in self.pending])
        moments = _joined([moments for _, moments in self.pending])
        self.pending.clear()
        present, place = torch.unique(rows, return_inverse=True)
        if not self.need.by_class:
            present, place = torch.zeros_like(present[:1]), torch.zeros_like(place)
        self.grow(int(present.max()) + 1)
        count = torch.bincount(place).to(DOUBLE)

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros((len(present), values.shape[1])).index_add_(0, place, values)

        new = {"mean": summed(moments.mean) / count[:, None]}
        if moments.squares is not None:
            between = self.weight * (moments.mean - new["mean"][place]).square()
            new["squares"] = summed(moments.squares + between)
        self.merge(present, count, new)


class SiteSums:
    """The accumulators of one site, started by its first batch."""

    def __init__(
        self, needs: Sequence[Need], map_size: tuple[int, int], parameters: Mapping[str, Tensor]
    ) -> None:
        self.by_need: dict[Need, Accumulator] = {}
        self._map_size, self._parameters = map_size, parameters
        self._by_image = _by_source(need for need in needs if need.kind == "moments")
        self._by_batch = _by_source(need for need in needs if need.kind != "moments")
        self._programs = {need.source: compile([need.source]) for need in needs}

    def add(self, batch: Batch) -> bool:
        """Add a batch; False where a sum of it is not finite."""
        images, channels, pixels = batch.maps.shape
        # A chunk of images passes through all sources while it is in a core's cache.
        step = max(1, CHUNK // (channels * pixels)) if batch.maps.device.type == "cpu" else images
        parts: dict[Need, list[Moments]] = {}
        for first in range(0, images, step) if self._by_image else ():
            for source, needs in self._by_image.items():
                values = self._values(source, batch.maps[first : first + step])
                for need in needs:
                    parts.setdefault(need, []).append(_moments(values, need.squares))
                    if need not in self.by_need:
                        self.by_need[need] = _start(need, values)
        finite = True
        for need, moments in parts.items():
            finite &= self.by_need[need].wait(batch.rows, _joined(moments))
        for source, needs in self._by_batch.items():
            values = self._values(source, batch.maps)
            for need in needs:
                if need not in self.by_need:
                    self.by_need[need] = _start(need, values)
                finite &= _add_batch(self.by_need[need], values, batch.rows)
        return finite

    def _values(self, source: Expr, maps: Tensor) -> Tensor:
        """A source's values `[image, channel, column]` from maps of the same layout."""
        if source == F:
            return maps
        program = self._programs[source]
        values = evaluate_rows(program, maps.transpose(0, 1), self._map_size, self._parameters)
        values = values if values.ndim == 3 else values.unsqueeze(-1)
        return values.transpose(0, 1)


def _by_source(needs: Iterable[Need]) -> dict[Expr, list[Need]]:
    groups: dict[Expr, list[Need]] = {}
    for need in needs:
        groups.setdefault(need.source, []).append(need)
    return groups


def _moments(values: Tensor, squares: bool) -> Moments:
    """In the values' own precision around each map's mean, which loses nothing; sums are float64."""
    width = values.shape[-1]
    if width == 1:
        mean = values[..., 0].to(DOUBLE)
        return Moments(mean, torch.zeros_like(mean) if squares else None)
    near = values.mean(-1)
    deviations = values - near.unsqueeze(-1)
    # The mean of what is left corrects the rounding of the mean.
    mean = near.to(DOUBLE) + deviations.sum(-1).to(DOUBLE) / width
    return Moments(
        mean, torch.linalg.vector_norm(deviations, dim=-1).to(DOUBLE).square() if squares else None
    )


def _joined(parts: Sequence[Moments]) -> Moments:
    if len(parts) == 1:
        return parts[0]
    squares = [part.squares for part in parts if part.squares is not None]
    return Moments(torch.cat([part.mean for part in parts]), torch.cat(squares) if squares else None)


def _start(need: Need, values: Tensor) -> Accumulator:
    """An empty accumulator with one row, for a source's values `[image, channel, column]`."""
    _, channels, width = values.shape
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
    """A point to measure from, `[channel, 1]`: the first batch's means where values lie far from zero."""
    means = values.mean((0, 2), dtype=DOUBLE)
    deviations = values - means.to(values.dtype)[:, None]
    spread = deviations.square().mean((0, 2), dtype=DOUBLE).sqrt()
    if not bool((means.abs() > FAR * spread).any()):
        return None
    return means.to(values.dtype)[:, None]


def _add_batch(into: Accumulator, values: Tensor, rows: Tensor) -> bool:
    """Add a batch's values `[image, channel, column]`; False where a sum of them is not finite."""
    present, place = torch.unique(rows, return_inverse=True)
    if not into.need.by_class:
        present, place = torch.zeros_like(present[:1]), torch.zeros_like(place)
    into.grow(int(present.max()) + 1)
    count = torch.bincount(place).to(DOUBLE)
    if "sum" in into.fields:
        if into.shift is not None:
            values = values - into.shift
        sums = values.new_zeros((len(present), *values.shape[1:])).index_add_(0, place, values)
        new = {"sum": sums.to(DOUBLE)}
        if "scatter" in into.fields:
            _add_outer_products(into.fields["scatter"][0], values)
    else:
        parts = [values[place == k] if len(present) > 1 else values for k in range(len(present))]
        statistic = {
            "products": _product_of_all,
            "pixel products": _product_of_columns,
            "pixel moments": _moments_of_columns,
        }[into.need.kind]
        each = [statistic(part) for part in parts]
        new = {name: torch.stack([fields[name] for fields in each]) for name in each[0]}
    into.merge(present, count, new)
    return all(_is_finite(value) for value in new.values())


def _product_of_all(values: Tensor) -> dict[str, Tensor]:
    return {"product": values.to(DOUBLE).prod(-1).prod(0)}


def _product_of_columns(values: Tensor) -> dict[str, Tensor]:
    return {"product": values.to(DOUBLE).prod(0)}


def _moments_of_columns(values: Tensor) -> dict[str, Tensor]:
    mean = values.mean(0, dtype=DOUBLE)
    deviations = values - mean.to(values.dtype)
    return {"mean": mean, "squares": torch.linalg.vector_norm(deviations, dim=0).to(DOUBLE).square()}


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
        together = {"sum": fields["sum"].sum(0, keepdim=True)}
    else:
        weights = _like(count / count.sum(), fields["mean"])
        mean = (weights * fields["mean"]).sum(0, keepdim=True)
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
            return count | {"sum": a["sum"] + b["sum"]}
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
