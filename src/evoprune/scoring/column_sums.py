"""Sums over images that keep the columns of a site's maps apart, and products over images.

Values arrive a few images at a time. Sums of few are held in the values' own precision, and added up in
float64 before rounding could mount up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from evoprune.scoring.accumulator import DOUBLE, Accumulator, grown, like
from evoprune.scoring.groups import Groups
from evoprune.scoring.plan import Need

FEW = 128
"""Images of a class whose sum single precision holds: beyond, rounding mounts up."""

FIRST_FEW = 16
"""Images of a class after which the point that it is measured from is chosen anew."""

MANY = 64
"""Classes beyond which images are added up in float64 one by one: a block of each would take more room."""

FAR = 4.0
"""Columns whose mean is more deviations from zero than this are summed up from near their mean."""

AT_ONCE = 2**19
"""Entries that are worked on at once in float64."""


class ColumnSums(ABC):
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

    @abstractmethod
    def _grow(self, rows: int) -> None:
        """Make room for more rows."""

    @abstractmethod
    def _add(self, values: Callable[[], Tensor], groups: Groups) -> None:
        """Add values; there is room for their rows."""

    @abstractmethod
    def _fields(self) -> tuple[dict[str, Tensor], Tensor | None]:
        """What the accumulator holds, and what it is measured from."""


class PixelSums(ColumnSums):
    """The sum of each column over the images of each class."""

    def __init__(self, need: Need, first: Tensor) -> None:
        super().__init__(need, first)
        self._shift = _shift(first)
        self._block: Tensor | None = torch.zeros_like(self._laid(first[:1]))
        self._sum = torch.zeros_like(self._block, dtype=DOUBLE)
        self._held = 0  # images of any class in the block, at most

    def _grow(self, rows: int) -> None:
        self._sum = grown(self._sum, rows)
        if self._block is not None:
            self._block = grown(self._block, rows)
            if rows > MANY:
                self._settle()
                self._block = None

    def _add(self, values: Callable[[], Tensor], groups: Groups) -> None:
        added = self._laid(values() if self._shift is None else values() - self._shift)
        if self._block is None:
            self._sum.index_add_(0, groups.rows, added.to(DOUBLE))
            return
        if self._held + groups.most > FEW:
            self._settle()
        self._held += groups.most
        self._block.index_add_(0, groups.rows, added)

    def _settle(self) -> None:
        if self._block is not None:
            self._sum += self._block
            self._block.zero_()
            self._held = 0

    def _fields(self) -> tuple[dict[str, Tensor], Tensor | None]:
        self._settle()
        return {"sum": self._unlaid(self._sum)}, self._shift


class PixelMoments(ColumnSums):
    """The mean of each column over the images of each class, and squared deviations from it.

    Deviations are taken from near the class's mean: from that of its first images, soon from that of all so
    far. What is equal deviates by exactly 0 (a deviation of 1e-9 is a divisor, 0 is none).
    """

    def __init__(self, need: Need, first: Tensor) -> None:
        super().__init__(need, first)
        self._near = torch.zeros_like(self._laid(first[:1]))
        # Of deviations from there, and of their squares: in float64, and of the last images.
        self._sum = torch.zeros_like(self._near, dtype=DOUBLE)
        self._squares = torch.zeros_like(self._sum)
        self._block: tuple[Tensor, Tensor] | None = torch.zeros_like(self._near), torch.zeros_like(self._near)
        self._count = self._sum.new_zeros(1)
        self._held, self._room = 0, FIRST_FEW  # images of any class in the block, at most
        self._seen: set[int] = set()

    def _grow(self, rows: int) -> None:
        self._near, self._count = grown(self._near, rows), grown(self._count, rows)
        self._sum, self._squares = grown(self._sum, rows), grown(self._squares, rows)
        if self._block is not None:
            self._block = grown(self._block[0], rows), grown(self._block[1], rows)
            if rows > MANY:
                self._settle()
                self._block = None

    def _add(self, values: Callable[[], Tensor], groups: Groups) -> None:
        maps = self._laid(values())
        for row in groups.members.keys() - self._seen:
            own = maps[groups.members[row]]
            self._near[row] = own[0] + (own - own[0]).mean(0)
            self._seen.add(row)
        if self._held and self._held + groups.most > self._room:
            self._settle()
            self._room = FEW
        if self._rows == 1:
            deviations = maps - self._near
        else:
            deviations = self._near.index_select(0, groups.rows)
            torch.sub(maps, deviations, out=deviations)
        self._count[: groups.end] += groups.count
        if self._block is None:
            of_sum, of_squares, deviations = self._sum, self._squares, deviations.to(DOUBLE)
        else:
            of_sum, of_squares = self._block
            self._held += groups.most
        of_sum.index_add_(0, groups.rows, deviations)
        of_squares.index_add_(0, groups.rows, deviations.square_())

    def _settle(self) -> None:
        """Take in the block, and measure from the means so far."""
        if self._block is None:
            return
        for total, block in zip((self._sum, self._squares), self._block, strict=True):
            total += block
            block.zero_()
        self._held = 0
        count = like(self._count, self._sum)
        before = self._near.clone()
        self._near += self._sum / count.clamp(min=1)
        moved = self._near.to(DOUBLE) - before
        # Σ(d - m)² = Σd² - m·(2·Σd - n·m); rounding may leave less than nothing.
        twice = self._sum.mul(2).addcmul_(moved, count, value=-1)
        self._squares.addcmul_(moved, twice, value=-1).clamp_(min=0)
        self._sum.addcmul_(moved, count, value=-1)

    def _fields(self) -> tuple[dict[str, Tensor], Tensor | None]:
        self._settle()
        step = self._sum / like(self._count, self._sum).clamp(min=1)
        self._squares.addcmul_(self._sum, step, value=-1).clamp_(min=0)
        return {"mean": self._unlaid(step.add_(self._near)), "squares": self._unlaid(self._squares)}, None


class Products(ColumnSums):
    """The product over the images of each class, of each column or of all entries together.

    Nearly every product of many is 0 soon. Then it stays 0, and is not looked at any more.
    """

    def __init__(self, need: Need, first: Tensor) -> None:
        super().__init__(need, first)
        self._shape = self._laid(first).shape[1:] if need.kind == "pixel products" else first.shape[1:2]
        self._product = first.new_ones((1, self._shape.numel()), dtype=DOUBLE)
        self._seen: set[int] = set()
        self._dead: set[int] = set()
        self._alive: Tensor | None = None  # which entries are, of any class that was seen; None for all
        self._since = 0  # images

    def _grow(self, rows: int) -> None:
        self._product = grown(self._product, rows, 1.0)

    def _add(self, values: Callable[[], Tensor], groups: Groups) -> None:
        if unseen := groups.members.keys() - self._seen:
            self._alive = None
            self._seen |= unseen
        if groups.members.keys() <= self._dead:
            return
        if self._need.kind == "products":
            factors = values().prod(-1, dtype=DOUBLE)
        else:
            factors = self._laid(values()).flatten(1)
        product = self._product
        if self._alive is not None:
            factors, product = factors.index_select(1, self._alive), product.index_select(1, self._alive)
        place = groups.rows[:, None].expand_as(factors)
        product.scatter_reduce_(0, place, factors.to(DOUBLE), "prod")
        if self._alive is not None:
            self._product.index_copy_(1, self._alive, product)
        self._since += len(factors)
        if self._alive is None or self._since >= FEW:
            self._find_alive()

    def _find_alive(self) -> None:
        seen = sorted(self._seen)
        alive = self._product[seen].abs() > 0  # what is NaN stays NaN, too
        self._dead = {row for row, lives in zip(seen, alive.any(1).tolist(), strict=True) if not lives}
        self._alive = alive.any(0).nonzero()[:, 0]
        self._since = 0

    def _fields(self) -> tuple[dict[str, Tensor], Tensor | None]:
        product = self._product.view(-1, *self._shape)
        return {"product": self._unlaid(product) if product.ndim == 3 else product}, None


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
        maps = maps.contiguous()  # channels last, a channel's matrix would lie scattered
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
