"""Where steps after a pass find their values: in a site's statistics and parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from evoprune.pruning.sites import Site
from evoprune.scoring.accumulator import Accumulator, others, total
from evoprune.scoring.plan import Length, Number, Statistic, need_of
from evoprune.scoring.statistics import SiteStatistics, Statistics
from evoprune.scoring.steps import Step


@dataclass
class StatisticLeaves:
    """Leaves of a streamed program at one site.

    counts: images of each class, `[class]`; only classes that are present. parameters: `W`, `W_I` and
    `B` as `[1, channel or 1, …]`.
    """

    site: SiteStatistics
    counts: Tensor
    images: int
    parameters: Mapping[str, Tensor]
    _views: dict[object, Accumulator] = field(default_factory=dict)

    @staticmethod
    def of(site: Site, statistics: Statistics | None, parameters: Mapping[str, Tensor]) -> StatisticLeaves:
        """The leaves of a site; without statistics there are parameters only."""
        if statistics is None:
            empty = SiteStatistics(site.channels, site.map_size)
            return StatisticLeaves(empty, torch.zeros(0, dtype=torch.float64), 0, parameters)
        found = statistics.sites[site.name]
        return StatisticLeaves(found, statistics.counts, statistics.images, parameters)

    @property
    def map_size(self) -> tuple[int, int]:
        return self.site.map_size

    @property
    def sizes(self) -> Mapping[str, int]:
        height, width = self.site.map_size
        filters, weights = self.parameters["W"].shape[-2:]
        images = dict.fromkeys(("N", "N+", "N-"), self.images)
        return images | {"P": max(1, height * width), "filters": filters, "weights": weights}

    def class_groups(self) -> list[Sequence[int]]:
        return [range(len(self.counts))]

    def value(self, step: Step, channels: slice, classes: Sequence[int]) -> Tensor:
        leaf = step.leaf
        if isinstance(leaf, Statistic):
            return self._statistic(leaf, channels, classes)
        if isinstance(leaf, Number):
            return torch.tensor([[leaf.value]], dtype=torch.float64)
        if isinstance(leaf, Length):
            return torch.tensor([[leaf.axis.size(self.sizes)]], dtype=torch.float64)
        value = self.parameters[str(leaf)]
        return value if leaf == "W" else value[:, channels]

    def _statistic(self, leaf: Statistic, channels: slice, classes: Sequence[int]) -> Tensor:
        rows = list(classes) if leaf.over != "F" else [0]
        if leaf.kind == "count":
            counts = {
                "F": torch.tensor([float(self.images)], dtype=torch.float64),
                "F+": self.counts,
                "F-": self.images - self.counts,
            }
            return counts[leaf.over][rows][:, None]
        return self._field(leaf.kind, self._view(leaf, channels))[rows]

    def _view(self, leaf: Statistic, channels: slice) -> Accumulator:
        """The accumulator over all images, over each class, or over the others of each class."""
        need = need_of(leaf)
        assert need is not None
        gathered = self.site.find(need)
        assert gathered is not None  # what a plan needs is gathered before its steps run
        key = (gathered.need, leaf.over, channels.start, channels.stop)
        if key not in self._views:
            part = gathered.at(channels)
            self._views[key] = {"F": total, "F-": others}.get(leaf.over, lambda same: same)(part)
        return self._views[key]

    def _field(self, kind: str, view: Accumulator) -> Tensor:
        match kind:
            case "mean" | "pixel mean":
                return view.mean()
            case "var" | "pixel var":
                entries = view.count * (view.width if kind == "var" else 1)
                spread = view.fields["squares"]
                return spread / entries.reshape(-1, *[1] * (spread.ndim - 1))
            case "product" | "pixel product":
                return view.fields["product"]
            case _:  # around the mean map, from around the point it was gathered at
                sums = view.fields["sum"]
                means = sums / view.count[:, None, None]
                return view.fields["scatter"] - sums.unsqueeze(-1) * means.unsqueeze(-2)
