"""Sums over images that lose nothing: what one site keeps during the pass.

Means and sums of squared deviations are merged batch by batch, and class by class, in float64 by the
pairwise formula of Chan et al.: every term is positive, so nothing cancels, whatever the split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from evoprune.expression.tree import Expr
from evoprune.scoring.execute import evaluate_rows
from evoprune.scoring.plan import F, Need

DOUBLE = torch.float64

# Deviations from a point near the mean are exact; plain float32 values far from zero are not.
FAR = 4.0

CHUNK = 2**22
"""Entries that are converted to float64 at once."""


@dataclass(frozen=True)
class Batch:
    """One site's maps of a batch, `[image, channel, pixel]`, and the images' classes.

    rows: the classes present, as rows of the accumulators `[present]`; inside: which image is of which
    of them, `[present, image]` in float64, ones and zeros.
    """

    maps: Tensor
    rows: Tensor
    inside: Tensor

    @property
    def counts(self) -> Tensor:
        """Images of each class present, `[present]`."""
        return self.inside.sum(1)


@dataclass
class Accumulator:
    """What is kept for one need: tensors with a row per class, or a single row for all images.

    count: images, `[row]`. fields: `[row, channel]`, or `[row, channel, pixel]`, by name.
    """

    need: Need
    count: Tensor
    fields: dict[str, Tensor]
    width: int
    """Columns of the source, so that a mean over all entries is over count · width."""
    shift: Tensor | None = None

    def at(self, channels: slice) -> Accumulator:
        """Some channels of it."""
        fields = {name: value[:, channels] for name, value in self.fields.items()}
        return Accumulator(self.need, self.count, fields, self.width, self.shift)


def start(need: Need, batch: Tensor) -> Accumulator:
    """An empty accumulator with one row, for a source's values `[image, channel, column]`."""
    _, channels, width = batch.shape
    device = batch.device
    wide = need.kind in ("pixel moments", "pixel products")
    shape = (1, channels, width) if wide else (1, channels)
    if need.kind in ("products", "pixel products"):
        fields = {"product": torch.ones(shape, dtype=DOUBLE, device=device)}
    elif need.kind == "scatter":
        fields = {
            "sum": torch.zeros((1, channels, width), dtype=DOUBLE, device=device),
            "scatter": torch.zeros((1, channels, width, width), dtype=DOUBLE, device=device),
        }
    else:
        fields = {"mean": torch.zeros(shape, dtype=DOUBLE, device=device)}
        if need.squares:
            fields["squares"] = torch.zeros(shape, dtype=DOUBLE, device=device)
    count = torch.zeros(1, dtype=DOUBLE, device=device)
    return Accumulator(need, count, fields, width, _shift(batch) if need.kind == "scatter" or wide else None)


def source_values(source: Expr, batch: Tensor, map_size: tuple[int, int], known: dict[str, Tensor]) -> Tensor:
    """A source's values `[image, channel, column]` from maps of the same layout."""
    if source == F:
        return batch
    values = evaluate_rows(source, batch.transpose(0, 1), map_size, known)
    values = values if values.ndim == 3 else values.unsqueeze(-1)
    return values.transpose(0, 1)


def add(into: Accumulator, values: Tensor, batch: Batch) -> None:
    """Add a batch of a source's values `[image, channel, column]`."""
    need = into.need
    rows = batch.rows if need.by_class else batch.rows.new_zeros(1)
    inside = batch.inside if need.by_class else batch.inside.new_ones((1, batch.inside.shape[1]))
    count = inside.sum(1)
    match need.kind:
        case "moments":
            new = _moments(values, inside, count, need.squares)
        case "pixel moments":
            new = _pixel_moments(values, inside, count, need.squares, into.shift)
        case "products" | "pixel products":
            new = _products(values, inside, need.kind == "products")
        case _:
            _scatter(into, values)
            into.count += count
            return
    have = {name: value[rows] for name, value in into.fields.items()}
    if need.kind in ("products", "pixel products"):
        total = {"product": have["product"] * new["product"]}
    else:
        total = merge(into.count[rows], have, count, new, _weight(into))
    for name, value in total.items():
        into.fields[name][rows] = value
    into.count[rows] += count


def _weight(accumulator: Accumulator) -> float:
    """Entries per image behind each mean."""
    return 1.0 if accumulator.need.kind == "pixel moments" else float(accumulator.width)


def _moments(values: Tensor, inside: Tensor, count: Tensor, squares: bool) -> dict[str, Tensor]:
    """Mean, and squared deviations from it, over all entries of each class: `[class, channel]`."""
    width = values.shape[-1]
    means = values.sum(-1, dtype=DOUBLE) / width  # of each image's map
    mean = inside @ means / count[:, None]
    if not squares:
        return {"mean": mean}
    # Within the maps in their own precision around each map's mean, between the maps in float64.
    spread = width * (means - inside.T @ mean).square()
    if width > 1:
        deviations = values - means.to(values.dtype).unsqueeze(-1)
        spread = spread + torch.linalg.vector_norm(deviations, dim=-1).to(DOUBLE).square()
    return {"mean": mean, "squares": inside @ spread}


def _pixel_moments(
    values: Tensor, inside: Tensor, count: Tensor, squares: bool, shift: Tensor | None
) -> dict[str, Tensor]:
    """The same for each column: `[class, channel, pixel]`."""
    if squares:
        parts = [values if len(inside) == 1 else values[row.bool()] for row in inside]
        means = [part.mean(0, dtype=DOUBLE) for part in parts]
        spreads = [
            torch.linalg.vector_norm(part - mean.to(part.dtype), dim=0).to(DOUBLE).square()
            for part, mean in zip(parts, means, strict=True)
        ]
        return {"mean": torch.stack(means), "squares": torch.stack(spreads)}
    if len(inside) == 1:
        return {"mean": (values.sum(0, dtype=DOUBLE) / count)[None]}
    if shift is not None:
        values = values - shift
    flat = values.reshape(values.shape[0], -1)
    sums = (inside.to(flat.dtype) @ flat).to(DOUBLE).view(len(inside), *values.shape[1:])
    mean = sums / count[:, None, None]
    return {"mean": mean if shift is None else mean + shift.to(DOUBLE)}


def _products(values: Tensor, inside: Tensor, whole: bool) -> dict[str, Tensor]:
    values = values.to(DOUBLE)
    values = values.prod(-1) if whole else values
    return {"product": torch.stack([values[row.bool()].prod(0) for row in inside])}


def _scatter(into: Accumulator, values: Tensor) -> None:
    """Outer products of each image's map with itself, in float64, around a point near the mean."""
    step = max(1, CHUNK // values[:, 0].numel())
    for first in range(0, values.shape[1], step):
        channels = slice(first, first + step)
        part = values[:, channels]
        if into.shift is not None:
            part = part - into.shift[channels]
        part = part.to(DOUBLE).permute(1, 2, 0)
        into.fields["sum"][0, channels] += part.sum(-1)
        into.fields["scatter"][0, channels] += part @ part.transpose(1, 2)


def _shift(values: Tensor) -> Tensor | None:
    """A point to measure from, `[channel, 1]`: the first batch's means where values lie far from zero."""
    means = values.mean((0, 2), dtype=DOUBLE)
    spread = torch.linalg.vector_norm(values - means.to(values.dtype)[:, None], dim=(0, 2)).to(DOUBLE)
    spread = spread / (values.shape[0] * values.shape[2]) ** 0.5
    if not bool((means.abs() > FAR * spread).any()):
        return None
    return means.to(values.dtype)[:, None]


def merge(
    count: Tensor, have: dict[str, Tensor], more: Tensor, new: dict[str, Tensor], weight: float
) -> dict[str, Tensor]:
    """The moments of two sets of images together; an empty set changes nothing."""
    total = count + more
    share = torch.where(total > 0, more / total.clamp(min=1), 0.0)
    share, count = (_like(x, have["mean"]) for x in (share, count))
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
    else:
        weights = _like(count / count.sum(), fields["mean"])
        mean = (weights * fields["mean"]).sum(0, keepdim=True)
        together = {"mean": mean}
        if "squares" in fields:
            between = _weight(accumulator) * _like(count, mean) * (fields["mean"] - mean).square()
            together["squares"] = (fields["squares"] + between).sum(0, keepdim=True)
    return Accumulator(accumulator.need, count.sum()[None], together, accumulator.width)


def others(accumulator: Accumulator) -> Accumulator:
    """For each class, all other classes as one: those before it merged with those after it."""
    weight = _weight(accumulator)
    fields = {"count": accumulator.count, **accumulator.fields}

    def both(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
        count = {"count": a["count"] + b["count"]}
        if "product" in a:
            return count | {"product": a["product"] * b["product"]}
        return count | merge(a["count"], a, b["count"], b, weight)

    nothing = {
        name: torch.ones_like(value[:1]) if name == "product" else torch.zeros_like(value[:1])
        for name, value in fields.items()
    }
    before = _scan(fields, both, nothing)
    after = {
        name: value.flip(0)
        for name, value in _scan({n: v.flip(0) for n, v in fields.items()}, both, nothing).items()
    }
    result = both(before, after)
    return Accumulator(accumulator.need, result.pop("count"), result, accumulator.width)


def _scan(
    fields: dict[str, Tensor],
    both: Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]],
    nothing: dict[str, Tensor],
) -> dict[str, Tensor]:
    """What came before each row, merged, in as many steps as the number of rows has digits."""

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
