"""What is read from each image's maps before anything is summed up: `F` itself, `sqrt(F)`, `tr(F)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from evoprune.expression.tree import Expr
from evoprune.scoring.execute import evaluate_rows
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
        known = self.parameters
        if channels is not None:
            known = {k: v if v.shape[1] == 1 else v[:, channels] for k, v in known.items()}
        values = evaluate_rows(self.programs[source], maps.transpose(0, 1), self.map_size, known)
        values = values if values.ndim == 3 else values.unsqueeze(-1)
        return values.transpose(0, 1)

    def piece(self, maps: Tensor) -> Piece:
        """Some images' maps, from which each source is read once."""
        tells_sign = any(source != plain for source, plain in self.unsigned.items())
        return Piece(self, maps, tells_sign and bool(maps.amin() >= 0))


class Piece:
    """Some images' maps `[image, channel, pixel]`, and what has been read from them.

    Maps behind a ReLU are their own absolute values, which makes sources equal.
    """

    def __init__(self, sources: Sources, maps: Tensor, unsigned: bool) -> None:
        self._sources, self._maps, self._unsigned = sources, maps, unsigned
        self._values: dict[Expr, Tensor] = {}

    def values(self, source: Expr) -> Tensor:
        """A source's values `[image, channel, column]`."""
        if self._unsigned:
            source = self._sources.unsigned[source]
        if source not in self._values:
            self._values[source] = self._sources.read(source, self._maps)
        return self._values[source]


def _without_abs(source: Expr) -> Expr:
    plain = source.replace(Expr("abs", (F,)), F)
    return plain.fold(lambda node, args: simplified(Expr(node.name, args, node.rho)))
