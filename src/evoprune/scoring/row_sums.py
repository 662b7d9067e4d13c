"""Sums that lose nothing of what is one number for each image: its mean, and the deviations from it.

An image's map is summed up in its own precision, which holds so few entries; images are merged into classes
in float64 by the pairwise formula of Chan et al. All its terms are positive, so nothing cancels, whatever
the split into batches. All sources of a site go together, many batches at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evoprune.scoring.accumulator import DOUBLE, Accumulator, grown, merged_moments
from evoprune.scoring.plan import Need

LOST = 64.0
"""How many times less than its mean square a map may vary before digits are lost."""

PENDING = 2**17
"""Means that may wait at a site to be merged into their classes."""


@dataclass(frozen=True)
class _Exact:
    """Of some maps `[image, channel]` of a batch: their means, and the squared deviations from them."""

    maps: Tensor
    mean: Tensor
    spread: Tensor


@dataclass(frozen=True)
class _Waiting:
    """A batch whose images are not merged yet.

    rows: of its images, `[image]`. sums: of each map's entries, and of their squares, `[2, source, image,
    channel]`. exact: by source, the maps that sums lost digits of.
    """

    rows: Tensor
    sums: Tensor
    exact: dict[int, _Exact]


class RowSums:
    """Moments of the maps of each class, of several sources of one site.

    widths: columns of the sources. maps: of the first images.
    """

    def __init__(self, needs: Sequence[Need], widths: Sequence[int], maps: Tensor) -> None:
        self._by_class = any(need.by_class for need in needs)
        self._needs = [replace(need, by_class=self._by_class) for need in needs]
        self._widths = list(widths)
        weights = [width * (1 - 1 / LOST) if width > 1 else 2.0 for width in widths]
        self._least = torch.tensor(weights, dtype=DOUBLE, device=maps.device)[:, None, None]
        self._count = torch.zeros(1, dtype=DOUBLE, device=maps.device)
        shape = (1, maps.shape[1])
        self._fields = [{name: self._count.new_zeros(shape) for name in ("mean", "squares")} for _ in needs]
        self._parts: list[list[Tensor]] = [[] for _ in (*needs, *needs)]
        self._waiting: list[_Waiting] = []

    @property
    def waiting(self) -> int:
        """How many means wait to be merged."""
        return sum(each.sums[0].numel() for each in self._waiting)

    def put(self, source: int, total: Tensor, squares: Tensor) -> None:
        """Sums of a source's entries, and of their squares, for the next images of the batch."""
        self._parts[source].append(total)
        self._parts[len(self._needs) + source].append(squares)

    def end(self, rows: Tensor, values: Callable[[int, Tensor, Tensor], Tensor]) -> bool:
        """Take in the batch, its images' rows being `rows`; False where a sum is not finite.

        values(source, images, channels): maps of some images and channels, once more.
        """
        if not self._needs:
            return True
        sums = torch.cat([part for parts in self._parts for part in parts]).to(DOUBLE)
        sums = sums.view(2, len(self._needs), len(rows), -1)
        for parts in self._parts:
            parts.clear()
        total, squares = sums
        exact, finite = {}, True
        # Below zero where digits were lost, infinite where a square overflowed, NaN where a sum is.
        low, high = torch.aminmax((squares * self._least).addcmul_(total, total, value=-1))
        if not 0 <= float(low) <= float(high) < torch.inf:
            exact = dict(self._exact(total, squares, values))
            finite = bool(torch.isfinite(total.sum()))
        self._waiting.append(_Waiting(rows, sums, exact))
        if self.waiting > PENDING:
            self._settle()
        return finite

    def _exact(
        self, total: Tensor, squares: Tensor, values: Callable[[int, Tensor, Tensor], Tensor]
    ) -> Iterator[tuple[int, _Exact]]:
        """Maps that vary little beside their mean, or whose squares overflow, once more in float64."""
        far = (squares * self._least < total.square()) | squares.isinf()
        for source, maps in enumerate(far):
            if self._widths[source] > 1 and bool(maps.any()):
                images, channels = maps.any(1).nonzero()[:, 0], maps.any(0).nonzero()[:, 0]
                again = values(source, images, channels)[maps[images][:, channels]].to(DOUBLE)
                near = again[:, :1]
                deviations = again - near
                middle = deviations.mean(-1, keepdim=True)
                spread = (deviations - middle).square().sum(-1)
                yield source, _Exact(maps, (near + middle)[:, 0], spread)

    def _settle(self) -> None:
        """Merge the images that wait."""
        if not self._waiting:
            return
        rows = torch.cat([each.rows for each in self._waiting])
        if not self._by_class:
            rows = torch.zeros_like(rows)
        present, place, counts = torch.unique(rows, return_inverse=True, return_counts=True)
        first = place.new_full((len(present),), len(place))
        first.scatter_reduce_(0, place, torch.arange(len(place), device=place.device), "amin")
        count = counts.to(DOUBLE)
        self._reserve(int(present[-1]) + 1)
        before = self._count[present]

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros((len(count), values.shape[1])).index_add_(0, place, values)

        for source, (fields, width) in enumerate(zip(self._fields, self._widths, strict=True)):
            mean, spread = self._moments(source)
            # From one of themselves, equal values deviate by exactly 0, not by the rounding of their mean.
            near = mean[first]
            deviations = mean.sub_(near[place])
            sums = summed(deviations)
            step = sums / count[:, None]
            # Squares from one image are at most as many times too large as there are images.
            squares = summed(spread.addcmul_(deviations, deviations, value=width))
            squares.addcmul_(sums, step, value=-width).clamp_(min=0)
            have = {name: value[present] for name, value in fields.items()}
            new = {"mean": near + step, "squares": squares}
            for name, value in merged_moments(before, have, count, new, width).items():
                fields[name][present] = value
        self._count[present] += count
        self._waiting.clear()

    def _moments(self, source: int) -> tuple[Tensor, Tensor]:
        """Of the images that wait: their maps' means, and squared deviations, `[image, channel]`."""
        width = self._widths[source]
        total, squares = (torch.cat([each.sums[i, source] for each in self._waiting]) for i in (0, 1))
        mean = total / width
        spread = squares.addcmul_(mean, total, value=-1) if width > 1 else squares.zero_()
        start = 0
        for each in self._waiting:
            stop = start + len(each.rows)
            if source in each.exact:
                exact = each.exact[source]
                mean[start:stop][exact.maps], spread[start:stop][exact.maps] = exact.mean, exact.spread
            start = stop
        return mean, spread

    def _reserve(self, rows: int) -> None:
        self._count = grown(self._count, rows)
        self._fields = [
            {name: grown(value, rows) for name, value in fields.items()} for fields in self._fields
        ]

    def finished(self, counts: Tensor) -> list[Accumulator]:
        """What has been gathered of each source, given how many images each class has, `[class]`."""
        self._settle()
        counts = counts if self._by_class else counts.sum()[None]
        rows = len(counts)
        self._reserve(rows)
        return [
            Accumulator(need, counts, {name: value[:rows] for name, value in fields.items()}, width)
            for need, fields, width in zip(self._needs, self._fields, self._widths, strict=True)
        ]
