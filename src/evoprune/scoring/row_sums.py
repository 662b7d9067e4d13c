"""Sums that lose nothing of what is one number for each image: its mean, and the deviations from it.

An image's map is summed up in the maps' own precision, which holds so few entries; images are merged into
classes in float64 by the pairwise formula of Chan et al. All its terms are positive, so nothing cancels,
whatever the split into batches. All sources of a site are merged at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from evoprune.scoring.accumulator import DOUBLE, Accumulator, grown, like, merged_moments
from evoprune.scoring.plan import Need

LOST = 64.0
"""How many times less than its mean square a map may vary before digits are lost."""

SHORT = 32
"""Columns up to which rows are short."""

PENDING = 2**17
"""Means that may wait at a site to be merged into their classes."""


class RowSums:
    """Moments of the maps of each class, of several sources `[image, channel, column]` of one site.

    widths: of the sources. maps: of the first images.
    """

    def __init__(self, needs: Sequence[Need], widths: Sequence[int], maps: Tensor) -> None:
        self._by_class = any(need.by_class for need in needs)
        self._needs = [replace(need, by_class=self._by_class) for need in needs]
        self._widths = list(widths)
        # Of each source, to broadcast over [row, source, channel].
        self._weight = torch.tensor(self._widths, dtype=DOUBLE, device=maps.device)[:, None]
        self._count = torch.zeros(1, dtype=DOUBLE, device=maps.device)
        empty = self._count.new_zeros((1, len(self._needs), maps.shape[1]))
        self._fields = {"mean": empty, "squares": empty.clone()}
        self._raw = empty
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []

    @property
    def waiting(self) -> int:
        """How many means wait to be merged."""
        return sum(mean.numel() for _, mean, _ in self._pending)

    def start(self, images: int) -> None:
        """Make room for the sums of a batch."""
        self._raw = self._raw.new_empty((2, images, *self._fields["mean"].shape[1:]))

    def put(self, source: int, first: int, values: Tensor) -> None:
        """Sum up the maps of some images of the batch: `values` are a source's, from the first image on."""
        room = self._raw[:, first : first + len(values), source]
        if values.shape[-1] == 1:
            room[:] = values[..., 0]
        else:
            room[0], room[1] = _sums(values), _squares(values)

    def end(self, rows: Tensor, values: Callable[[int, Tensor, Tensor], Tensor]) -> bool:
        """Take in the batch, its images' rows being `rows`; False where a sum is not finite.

        values(source, images, channels): maps of some images and channels, once more.
        """
        totals, squares = self._raw
        mean = totals / self._weight
        spread = squares - mean * totals
        spread *= self._weight > 1
        # The difference lost digits where a map varies little beside its mean; all, where a square overflows.
        far = ((spread * LOST < squares) | squares.isinf()) & (self._weight > 1)
        if bool(far.any()):
            for source in far.any(2).any(0).nonzero()[:, 0].tolist():
                of_source = far[:, source]
                images, channels = of_source.any(1).nonzero()[:, 0], of_source.any(0).nonzero()[:, 0]
                mask = of_source[images][:, channels]
                again = values(source, images, channels)[mask].to(DOUBLE)
                mean[:, source][of_source], spread[:, source][of_source] = _from_near(again)
        self._pending.append((rows, mean, spread))
        if self.waiting > PENDING:
            self._settle()
        return bool(torch.isfinite(totals.sum()))

    def _settle(self) -> None:
        """Merge the images that wait."""
        if not self._pending:
            return
        rows, mean, spread = (torch.cat(parts) for parts in zip(*self._pending, strict=True))
        self._pending.clear()
        if not self._by_class:
            rows = torch.zeros_like(rows)
        present, place, count = torch.unique(rows, return_inverse=True, return_counts=True)
        count = count.to(DOUBLE)
        self._reserve(int(present[-1]) + 1)

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros((len(count), *values.shape[1:])).index_add_(0, place, values)

        # From one of themselves, equal values deviate by exactly 0, not by the rounding of their mean.
        near = mean[_first(place, len(count))]
        middle = near + summed(mean - near[place]) / like(count, near)
        between = self._weight * (mean - middle[place]).square()
        new = {"mean": middle, "squares": summed(spread + between)}
        have = {name: value[present] for name, value in self._fields.items()}
        merged = merged_moments(self._count[present], have, count, new, self._weight)
        for name, value in merged.items():
            self._fields[name][present] = value
        self._count[present] += count

    def _reserve(self, rows: int) -> None:
        self._count = grown(self._count, rows)
        self._fields = {name: grown(value, rows) for name, value in self._fields.items()}

    def finished(self, classes: int) -> list[Accumulator]:
        """What has been gathered of each source, with a row for each class."""
        self._settle()
        rows = classes if self._by_class else 1
        self._reserve(rows)
        return [
            Accumulator(
                need,
                self._count[:rows],
                {name: value[:rows, source].contiguous() for name, value in self._fields.items()},
                width,
            )
            for source, (need, width) in enumerate(zip(self._needs, self._widths, strict=True))
        ]


def _sums(values: Tensor) -> Tensor:
    """Sums of the last axis; torch's reductions are slow over short rows, a product with ones is not."""
    if values.shape[-1] > SHORT:
        return values.sum(-1)
    sums: Tensor = values @ values.new_ones(values.shape[-1])
    return sums


def _squares(values: Tensor) -> Tensor:
    """Sums of squares of the last axis."""
    if values.shape[-1] <= SHORT:
        return _sums(values.square())
    lengths: Tensor = torch.linalg.vector_norm(values, dim=-1)
    return lengths.square()


def _from_near(values: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of rows `[row, column]`, and the sum of squared deviations, measured from near the mean."""
    near = values[:, :1]
    deviations = values - near
    middle = deviations.mean(-1, keepdim=True)
    return (near + middle)[:, 0], (deviations - middle).square().sum(-1)


def _first(place: Tensor, groups: int) -> Tensor:
    """Which image is the first of each group, `[group]`."""
    first = place.new_full((groups,), len(place))
    return first.scatter_reduce_(0, place, torch.arange(len(place), device=place.device), "amin")
