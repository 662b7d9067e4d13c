"""A batch of one site's maps, and which of its images belong together."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from evoprune.scoring.accumulator import DOUBLE


@dataclass(frozen=True)
class Groups:
    """A batch's images by their row in the accumulators: the same at every site.

    rows: of each image, `[image]`.
    """

    rows: Tensor
    _parts: dict[tuple[int, int], Groups] = field(default_factory=dict)

    @cached_property
    def count(self) -> Tensor:
        """How many images each row has, `[row]`, up to the last row that there is."""
        return torch.bincount(self.rows).to(DOUBLE)

    @cached_property
    def end(self) -> int:
        """One more than the last row that there is."""
        return len(self.count)

    @cached_property
    def most(self) -> int:
        """How many images the largest group has."""
        return int(self.count.max())

    @cached_property
    def members(self) -> dict[int, Tensor]:
        """The rows that there are, and which images are theirs."""
        present = self.count.nonzero()[:, 0].tolist()
        if len(present) == 1:
            return {present[0]: torch.arange(len(self.rows), device=self.rows.device)}
        order = torch.sort(self.rows, stable=True).indices
        sizes = [int(size) for size in self.count[present].tolist()]
        return dict(zip(present, torch.split(order, sizes), strict=True))

    @cached_property
    def together(self) -> Groups:
        """All images as one group in the first row."""
        return Groups(torch.zeros_like(self.rows))

    def part(self, start: int, stop: int) -> Groups:
        """Some of the images; made once for all sites."""
        if (start, stop) == (0, len(self.rows)):
            return self
        if (start, stop) not in self._parts:
            self._parts[start, stop] = Groups(self.rows[start:stop])
        return self._parts[start, stop]


@dataclass(frozen=True)
class Batch:
    """One site's maps of a batch, `[image, channel, pixel]`, and its images by row in the accumulators."""

    maps: Tensor
    groups: Groups
