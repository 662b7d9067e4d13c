"""What one site gathers during the pass: batches of its maps in, accumulators out.

A few images at a time pass through all that is wanted of them while they are in a core's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from evoprune.scoring.accumulator import Accumulator
from evoprune.scoring.column_sums import FEW, ColumnSums, column_sums
from evoprune.scoring.groups import Batch
from evoprune.scoring.plan import F, Need
from evoprune.scoring.row_sums import RowSums
from evoprune.scoring.sources import Piece, Sources

CHUNK = 2**20
"""Entries of maps that are worked on at once: few enough for a cache, enough to be worth the calls."""

FIRST = 16
"""Images that tell what a source's values look like."""


class SiteSums:
    """What is gathered for the needs of one site; parameters are those of its layer."""

    def __init__(
        self, needs: Sequence[Need], map_size: tuple[int, int], parameters: Mapping[str, Tensor]
    ) -> None:
        self._sources = Sources.of((need.source for need in needs), map_size, parameters)
        self._of_rows = [need for need in needs if need.kind == "moments"]
        self._of_columns = [need for need in needs if need.kind != "moments"]
        self._rows: RowSums | None = None
        self._columns: list[ColumnSums] = []

    def add(self, batch: Batch) -> bool:
        """Add a batch; False where a sum over its maps, or over what is read from them, is not finite."""
        maps, groups = _dense(batch.maps), batch.groups
        images, channels, pixels = maps.shape
        if self._rows is None:
            self._start(maps[:FIRST])
        assert self._rows is not None
        step = FEW if self._columns else images
        if maps.device.type == "cpu":
            step = min(step, max(1, CHUNK // (channels * pixels)))
        for first in range(0, images, step):
            last = min(first + step, images)
            piece, part = Piece(self._sources, maps[first:last]), groups.part(first, last)
            for place, need in enumerate(self._of_rows):
                self._rows.put(place, *piece.sums(need.source))
            for need, sums in zip(self._of_columns, self._columns, strict=True):
                sums.add(partial(piece.values, need.source), part)

        def again(place: int, images: Tensor, channels: Tensor) -> Tensor:
            return self._sources.read(self._of_rows[place].source, maps[images][:, channels], channels)

        finite = self._rows.end(groups.rows, again)
        if all(need.source != F for need in self._of_rows):
            finite &= bool(torch.isfinite(maps.sum()))
        return finite

    def _start(self, maps: Tensor) -> None:
        piece = Piece(self._sources, maps)
        widths = [piece.values(need.source).shape[-1] for need in self._of_rows]
        self._rows = RowSums(self._of_rows, widths, maps)
        self._columns = [column_sums(need, piece.values(need.source)) for need in self._of_columns]

    @property
    def waiting(self) -> int:
        """How many means wait to be merged."""
        return 0 if self._rows is None else self._rows.waiting

    def finished(self, counts: Tensor) -> tuple[Accumulator, ...]:
        """What has been gathered, given how many images each class has, `[class]`; on the CPU."""
        if self._rows is None:
            return ()
        found = [*self._rows.finished(counts), *(each.finished(counts) for each in self._columns)]
        return tuple(each.cpu() for each in found)


def _dense(maps: Tensor) -> Tensor:
    """Maps `[image, channel, pixel]` without gaps, channels last or not."""
    return maps if maps.transpose(1, 2).is_contiguous() else maps.contiguous()
