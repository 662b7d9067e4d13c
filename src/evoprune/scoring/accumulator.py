"""What is kept of a site for one need: moments that merge without losing digits.

Classes are merged into totals, or into all classes but one, in float64 by the pairwise formula of Chan et
al. All its terms are positive, so nothing cancels, whatever the split into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evoprune.scoring.plan import Need

DOUBLE = torch.float64


@dataclass(frozen=True)
class Accumulator:
    """What a pass has gathered for one need: tensors with a row per class, or a single row for all images.

    count: images, `[row]`. fields: `[row, channel]` or `[row, channel, pixel]`, by name: `mean` and
    `squares` (squared deviations from it), `sum` (of what is left after `shift`), `product`, `scatter`.
    width: columns of the source, so that a mean over all entries is over count · width.
    shift: what sums are measured from, `[channel, 1]`.
    """

    need: Need
    count: Tensor
    fields: Mapping[str, Tensor]
    width: int
    shift: Tensor | None = None

    @property
    def weight(self) -> float:
        """Entries of an image behind each mean."""
        return 1.0 if self.need.kind == "pixel moments" else float(self.width)

    def at(self, channels: slice) -> Accumulator:
        """Some channels of it."""
        fields = {name: value[:, channels] for name, value in self.fields.items()}
        shift = None if self.shift is None else self.shift[channels]
        return Accumulator(self.need, self.count, fields, self.width, shift)

    def cpu(self) -> Accumulator:
        """The same on the CPU."""
        fields = {name: value.cpu() for name, value in self.fields.items()}
        shift = None if self.shift is None else self.shift.cpu()
        return Accumulator(self.need, self.count.cpu(), fields, self.width, shift)

    def mean(self) -> Tensor:
        """The means, `[row, channel]` or `[row, channel, pixel]`."""
        if "mean" in self.fields:
            return self.fields["mean"]
        mean = self.fields["sum"] / like(self.count, self.fields["sum"])
        return mean if self.shift is None else mean + self.shift


def merged_moments(
    count: Tensor, have: Mapping[str, Tensor], more: Tensor, new: Mapping[str, Tensor], weight: float
) -> dict[str, Tensor]:
    """The moments of two sets of images together; an empty set changes nothing.

    weight: entries of an image behind each mean.
    """
    share = torch.where(more > 0, more / (count + more), 0.0)
    share, count = like(share, have["mean"]), like(count, have["mean"])
    step = new["mean"] - have["mean"]
    result = {"mean": torch.addcmul(have["mean"], share, step)}
    if "squares" in have:
        squares = have["squares"] + new["squares"]
        result["squares"] = squares.addcmul_(weight * count * share, step.square_())
    return result


def like(rows: Tensor, value: Tensor) -> Tensor:
    """A number per row, `[row]`, to broadcast against a value with more axes."""
    return rows.reshape(-1, *[1] * (value.ndim - 1))


def grown(value: Tensor, rows: int, fill: float = 0.0) -> Tensor:
    """With room for more rows; at least doubled, so that it is seldom made."""
    have = len(value)
    if have >= rows:
        return value
    return torch.cat([value, value.new_full((max(rows, 2 * have) - have, *value.shape[1:]), fill)])


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
        weights = like(count / count.sum(), fields["mean"])
        near = fields["mean"][count.argmax()]
        mean = near + (weights * (fields["mean"] - near)).sum(0, keepdim=True)
        together = {"mean": mean}
        if "squares" in fields:
            between = accumulator.weight * like(count, mean) * (fields["mean"] - mean).square()
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
