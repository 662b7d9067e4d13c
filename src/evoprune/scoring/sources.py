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

    def read(
        self, source: Expr, maps: Tensor, channels: Tensor | None = None, unsigned: bool = False
    ) -> Tensor:
        """Values `[image, channel, column]` from maps of the same layout.

        channels: which of the site's the maps have, if not all. unsigned: no entry is below zero.
        """
        if source == F:
            return maps
        if source.args == (F,) and source.name in OF_EACH_MAP:
            return OF_EACH_MAP[source.name](maps, self.map_size, unsigned)
        known = self.parameters
        if channels is not None:
            known = {k: v if v.shape[1] == 1 else v[:, channels] for k, v in known.items()}
        values = evaluate_rows(self.programs[source], maps.transpose(0, 1), self.map_size, known)
        values = values if values.ndim == 3 else values.unsqueeze(-1)
        return values.transpose(0, 1)


OF_EACH_MAP: dict[str, Callable[[Tensor, tuple[int, int], bool], Tensor]] = {
    "abs": lambda maps, size, unsigned: maps.abs(),
    "sq": lambda maps, size, unsigned: maps.square(),
    "sqrt": lambda maps, size, unsigned: root(maps, unsigned),
    "tr": lambda maps, size, unsigned: trace(maps, size).unsqueeze(-1),
}
"""Operators on `F` itself that can do without the axes of an evaluation; `[image, channel, column]` again."""


class Piece:
    """Some images' maps `[image, channel, pixel]`, and what has been read from them, once."""

    def __init__(self, sources: Sources, maps: Tensor) -> None:
        self._sources, self._maps = sources, maps
        self._values: dict[Expr, Tensor] = {}
        self._sums: dict[Expr, tuple[Tensor, Tensor]] = {}

    @cached_property
    def _unsigned(self) -> bool:
        """Whether no entry is below zero: maps behind a ReLU are their own absolute values."""
        return self._maps.amin().item() >= 0

    def _simplest(self, source: Expr) -> Expr:
        unsigned = self._sources.unsigned.get(source, source)
        return unsigned if unsigned != source and self._unsigned else source

    def values(self, source: Expr) -> Tensor:
        """A source's values `[image, channel, column]`."""
        source = self._simplest(source)
        if source not in self._values:
            unsigned = source == ROOT and self._unsigned
            self._values[source] = self._sources.read(source, self._maps, unsigned=unsigned)
        return self._values[source]

    def sums(self, source: Expr) -> tuple[Tensor, Tensor]:
        """The sums over the columns of a source's values, and of their squares, `[image, channel]`."""
        source = self._simplest(source)
        if source not in self._sums:
            values = self.values(source)
            known = source == ROOT and F in self._sums and self._unsigned
            self._sums[source] = _total(values), self._sums[F][0] if known else _squares(values)
        return self._sums[source]


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
