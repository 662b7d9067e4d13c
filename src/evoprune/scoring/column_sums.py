"""Sums over images that keep the columns of a site's maps apart, and products over images.

Values arrive a few images at a time. Sums of few are held in the values' own precision, and added up in
float64 before rounding could mount up.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evoprune.scoring.accumulator import DOUBLE, Accumulator, grown, like, merged_moments
from evoprune.scoring.groups import Groups
from evoprune.scoring.plan import Need

FEW = 128
"""Images of a class whose sum single precision holds: beyond, rounding mounts up."""

FAR = 4.0
"""Columns whose mean is more deviations from zero than this are summed up from near their mean."""

AT_ONCE = 2**19
"""Entries that are worked on at once in float64."""


class ColumnSums:
    """What is gathered for a need that does not follow from one number for each image.

    first: the first images' values, which tell their layout.
    """

    def __init__(self, need: Need, first: Tensor) -> None:
        self._need = need
        self._width = first.shape[-1]
        self._rows = 1
        self._turned = first.transpose(1, 2).is_contiguous()

    def add(self, values: Callable[[], Tensor], groups: Groups) -> None:
        """Add the values `[image, channel, column]` of at most FEW images."""
        groups = groups if self._need.by_class else groups.together
        self._reserve(groups.end)
        self._add(values, groups)

    def finished(self, counts: Tensor) -> Accumulator:
        """What has been gathered, given how many images each class has, `[class]`."""
        counts = counts if self._need.by_class else counts.sum()[None]
        self._reserve(len(counts))
        fields, shift = self._fields()
        fields = {name: value[: len(counts)].contiguous() for name, value in fields.items()}
        return Accumulator(self._need, counts, fields, self._width, shift)

    def _reserve(self, rows: int) -> None:
        if rows > self._rows:
            self._rows = max(rows, 2 * self._rows)
            self._grow(self._rows)

    def _laid(self, values: Tensor) -> Tensor:
        """Values as they lie in memory: `[image, column, channel]` where channels come last."""
        return (values.transpose(1, 2) if self._turned else values).contiguous()

    def _unlaid(self, values: Tensor) -> Tensor:
        """`[row, channel, column]` again."""
        return values.transpose(1, 2) if self._turned else values

    def _grow(self, rows: int) -> None:
        """Make room for more rows."""
        raise NotImplementedError

    def _add(self, values: Callable[[], Tensor], groups: Groups) -> None:
        raise NotImplementedError

    def _fields(self) -> tuple[dict[str, Tensor], Tensor | None]:
        """What the accumulator holds, and what it is measured from."""
        raise NotImplementedError


class PixelSums(ColumnSums):
    """The sum of each column over the images of each class."""

    def __init__(self, need: Need, first: Tensor) -> None:
        super().__init__(need, first)
        self._shift = _shift(first)
        self._block = torch.zeros_like(self._laid(first[:1]))
        self._sum = torch.zeros_like(self._block, dtype=DOUBLE)
        self._held = 0  # images of any class in the block, at most

    def _grow(self, rows: int) -> None:
        self._block, self._sum = grown(self._block, rows), grown(self._sum, rows)

    def _add(self, values: Callable[[], Tensor], groups: Groups) -> None:
        if self._held + groups.most > FEW:
            self._settle()
        self._held += groups.most
        added = values() if self._shift is None else values() - self._shift
        self._block.index_add_(0, groups.rows, self._laid(added))

    def _settle(self) -> None:
        self._sum += self._block
        self._block.zero_()
        self._held = 0

    def _fields(self) -> tuple[dict[str, Tensor], Tensor | None]:
        self._settle()
        return {"sum": self._unlaid(self._sum)}, self._shift


class PixelMoments(ColumnSums):
    """The mean of each column over the images of each class, and squared deviations from it.

    Deviations are taken from near the class's mean: from its first image, soon from its mean so far. What
    is equal deviates by exactly 0 (a deviation of 1e-9 is a divisor, 0 is none).
    """

    def __init__(self, need: Need, first: Tensor) -> None:
        super().__init__(need, first)
        self._near = torch.zeros_like(self._laid(first[:1]))
        self._sum, self._squares = torch.zeros_like(self._near), torch.zeros_like(self._near)
        self._moments = {name: torch.zeros_like(self._near, dtype=DOUBLE) for name in ("mean", "squares")}
        self._count = self._moments["mean"].new_zeros(1)
        self._since = torch.zeros_like(self._count)  # images of each class in the block
        self._held = 0  # of any class, at most
        self._seen: set[int] = set()

    def _grow(self, rows: int) -> None:
        self._near, self._sum = grown(self._near, rows), grown(self._sum, rows)
        self._squares = grown(self._squares, rows)
        self._moments = {name: grown(value, rows) for name, value in self._moments.items()}
        self._count, self._since = grown(self._count, rows), grown(self._since, rows)

    def _add(self, values: Callable[[], Tensor], groups: Groups) -> None:
        if self._held + groups.most > FEW:
            self._settle()
        maps = self._laid(values())
        unseen = [row for row in groups.members if row not in self._seen]
        if unseen:
            self._near[unseen] = maps[[int(groups.members[row][0]) for row in unseen]]
        self._held += groups.most
        self._since[: groups.end] += groups.count
        near = self._near if self._rows == 1 else self._near.index_select(0, groups.rows)
        deviations = maps - near
        self._sum.index_add_(0, groups.rows, deviations)
        self._squares.index_add_(0, groups.rows, deviations.square_())
        if unseen:  # a first image may be far from the mean
            self._seen.update(unseen)
            self._settle()

    def _settle(self) -> None:
        rows = self._since.nonzero()[:, 0]
        count, near, sums = self._since[rows], self._near[rows].to(DOUBLE), self._sum[rows].to(DOUBLE)
        step = sums / like(count, sums)
        # Rounding may leave less than nothing of the squares.
        new = {"mean": near + step, "squares": (self._squares[rows] - sums * step).clamp_(min=0)}
        have = {name: value[rows] for name, value in self._moments.items()}
        for name, value in merged_moments(self._count[rows], have, count, new, 1.0).items():
            self._moments[name][rows] = value
        self._near[rows] = self._moments["mean"][rows].to(self._near.dtype)
        self._count += self._since
        for block in (self._sum, self._squares):
            block.index_fill_(0, rows, 0.0)
        self._since.zero_()
        self._held = 0

    def _fields(self) -> tuple[dict[str, Tensor], Tensor | None]:
        self._settle()
        return {name: self._unlaid(value) for name, value in self._moments.items()}, None


class Products(ColumnSums):
    """The product over the images of each class, of each column or of all entries together.

    Nearly every product of many is 0 soon. Then it stays 0, and more values are not asked for.
    """

    def __init__(self, need: Need, first: Tensor) -> None:
        super().__init__(need, first)
        kept = first[:1] if need.kind == "pixel products" else first[:1, :, 0]
        self._product = torch.ones_like(kept, dtype=DOUBLE)
        self._dead: set[int] = set()

    def _grow(self, rows: int) -> None:
        self._product = grown(self._product, rows, 1.0)

    def _add(self, values: Callable[[], Tensor], groups: Groups) -> None:
        for row in groups.members.keys() - self._dead:
            factors = values()
            own = factors if len(groups.members) == 1 else factors[groups.members[row]]
            if self._need.kind == "products":
                own = own.prod(-1, dtype=DOUBLE)
            self._product[row] *= own.prod(0, dtype=DOUBLE)
            if not self._product[row].abs().gt(0).any():  # NaN stays, too
                self._dead.add(row)

    def _fields(self) -> tuple[dict[str, Tensor], Tensor | None]:
        return {"product": self._product}, None


class Scatter(ColumnSums):
    """The sum over the images of each class of each map, and of its outer product with itself."""

    def __init__(self, need: Need, first: Tensor) -> None:
        super().__init__(need, first)
        self._shift = _shift(first)
        self._sum = torch.zeros_like(first[:1], dtype=DOUBLE)
        self._scatter = self._sum.unsqueeze(-1).repeat(1, 1, 1, self._width)

    def _grow(self, rows: int) -> None:
        self._sum, self._scatter = grown(self._sum, rows), grown(self._scatter, rows)

    def _add(self, values: Callable[[], Tensor], groups: Groups) -> None:
        maps = values() if self._shift is None else values() - self._shift
        for row, images in groups.members.items():
            own = maps if len(groups.members) == 1 else maps[images]
            step = max(1, AT_ONCE // own[:, 0].numel())
            for first in range(0, own.shape[1], step):
                channels = slice(first, first + step)
                part = own[:, channels].to(DOUBLE).permute(1, 2, 0)
                self._sum[row, channels] += part.sum(-1)
                self._scatter[row, channels] += part @ part.transpose(1, 2)

    def _fields(self) -> tuple[dict[str, Tensor], Tensor | None]:
        return {"sum": self._sum, "scatter": self._scatter}, self._shift


def column_sums(need: Need, first: Tensor) -> ColumnSums:
    """What gathers a need, started by the first images' values `[image, channel, column]`."""
    match need.kind:
        case "scatter":
            return Scatter(need, first)
        case "products" | "pixel products":
            return Products(need, first)
        case _:
            return PixelMoments(need, first) if need.squares else PixelSums(need, first)


def _shift(values: Tensor) -> Tensor | None:
    """A point to measure from, `[channel, 1]`: the first images' means where values lie far from zero."""
    means = values.mean((0, 2), dtype=DOUBLE)
    deviations = values - means.to(values.dtype)[:, None]
    spread = deviations.square().mean((0, 2), dtype=DOUBLE).sqrt()
    if not bool((means.abs() > FAR * spread).any()):
        return None
    return means.to(values.dtype)[:, None]
