"""What is read from each image's maps before anything is summed up: `F` itself, `sqrt(F)`, `tr(F)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from evoprune.expression.tree import Expr
from evoprune.scoring.execute import evaluate_rows, root, trace
from evoprune.scoring.plan import F
from evoprune.scoring.planner import simplified
from evoprune.scoring.steps import Program, compile


@dataclass(frozen=True)
class Sources:
    """How sources are read from the maps of one site, with the parameters of its layer.

    unsigned: each source as it may be read from maps without negative entries.
    """

    unsigned: Mapping[Expr, Expr]
    programs: Mapping[Expr, Program]
    map_size: tuple[int, int]
    parameters: Mapping[str, Tensor]

    @staticmethod
    def of(sources: Iterable[Expr], map_size: tuple[int, int], parameters: Mapping[str, Tensor]) -> Sources:
        """The sources of a site; parameters as `[1, channel or 1, …]`."""
        unsigned = {source: _without_abs(source) for source in sources}
        programs = {source: compile([source]) for source in (*unsigned, *unsigned.values()) if source != F}
        return Sources(unsigned, programs, map_size, parameters)

    def read(self, source: Expr, maps: Tensor, channels: Tensor | None = None) -> Tensor:
        """Values `[image, channel, column]` from maps of the same layout; of some of the site's channels."""
        if source == F:
            return maps
        if source.args == (F,) and source.name in BY_MAP:
            return BY_MAP[source.name](maps, self.map_size)
        known = self.parameters
        if channels is not None:
            known = {k: v if v.shape[1] == 1 else v[:, channels] for k, v in known.items()}
        values = evaluate_rows(self.programs[source], maps.transpose(0, 1), self.map_size, known)
        values = values if values.ndim == 3 else values.unsqueeze(-1)
        return values.transpose(0, 1)

    def piece(self, maps: Tensor) -> Piece:
        """Some images' maps, from which each source is read once."""
        return Piece(self, maps)


class Piece:
    """Some images' maps `[image, channel, pixel]`, and what has been read from them."""

    def __init__(self, sources: Sources, maps: Tensor) -> None:
        self._sources, self._maps = sources, maps
        self._values = {F: maps}
        self._sums: dict[Expr, tuple[Tensor, Tensor]] = {}

    @cached_property
    def _unsigned(self) -> bool:
        """Whether no entry is negative: maps behind a ReLU are their own absolute values."""
        return self._maps.amin().item() >= 0

    def values(self, source: Expr) -> Tensor:
        """A source's values `[image, channel, column]`."""
        if (unsigned := self._sources.unsigned[source]) != source and self._unsigned:
            source = unsigned
        if source not in self._values:
            if source == ROOT:
                self._values[source] = root(self._maps, self._unsigned)
            else:
                self._values[source] = self._sources.read(source, self._maps)
        return self._values[source]

    def sums(self, source: Expr) -> tuple[Tensor, Tensor]:
        """The sums over the columns of a source's values, and of their squares, `[image, channel]`."""
        if source not in self._sums:
            values = self.values(source)
            squared = source == ROOT and F in self._sums and self._unsigned
            squares = self._sums[F][0] if squared else _squares(values)
            self._sums[source] = _total(values), squares
        return self._sums[source]


BY_MAP: dict[str, Callable[[Tensor, tuple[int, int]], Tensor]] = {
    "abs": lambda maps, size: maps.abs(),
    "sq": lambda maps, size: maps.square(),
    "sqrt": lambda maps, size: root(maps),
    "tr": lambda maps, size: trace(maps, size).unsqueeze(-1),
}
"""What is read from each map of `F` by itself, whatever the order of axes before it."""

ROOT = Expr("sqrt", (F,))
SHORT = 32
"""Columns up to which rows are short."""


def _total(values: Tensor) -> Tensor:
    """Sums of the last axis; torch's reductions are slow over short rows, a product with ones is not."""
    if values.shape[-1] == 1:
        return values[..., 0]
    if values.shape[-1] > SHORT or values.stride(-1) > 1:
        return values.sum(-1)
    total: Tensor = values @ values.new_ones(values.shape[-1])
    return total


def _squares(values: Tensor) -> Tensor:
    """Sums of the squares of the last axis; a norm takes no copy, but its time where entries lie apart."""
    if values.shape[-1] <= SHORT or values.stride(-1) > 1:
        return _total(values.square())
    length: Tensor = torch.linalg.vector_norm(values, dim=-1)
    return length.square_()


def _without_abs(source: Expr) -> Expr:
    plain = source.replace(Expr("abs", (F,)), F)
    return plain.fold(lambda node, args: simplified(Expr(node.name, args, node.rho)))
