"""Scoring from statistics alone, without the network they were gathered from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from evoprune.expression.library import Function
from evoprune.scoring.execute import evaluate
from evoprune.scoring.leaves import StatisticLeaves
from evoprune.scoring.statistics import Plans, SiteStatistics, Statistics

Scored = dict[str, NDArray[np.float64]]


def known_scores(functions: Sequence[Function], statistics: Statistics) -> dict[str, Scored | str]:
    """By function its scores `[channel]` by site, or why these statistics do not give them."""
    return {function.name: _scored(function, statistics) for function in functions}


def _scored(function: Function, statistics: Statistics) -> Scored | str:
    if function.expr is None:
        return "it draws, and reads nothing"
    reads = sorted(function.expr.operands & {"W", "W_I", "B"})
    if reads:
        return f"it reads {' and '.join(reads)}, which the network has"
    found: Scored = {}
    for name, site in statistics.sites.items():
        scored = _at_site(function, statistics, site)
        if isinstance(scored, str):
            return f"{scored}, at {name}"
        found[name] = scored
    return found


def _at_site(function: Function, statistics: Statistics, site: SiteStatistics) -> NDArray[np.float64] | str:
    planned = Plans.of([function], statistics.expected_classes).at(site)
    if planned.sampled:
        return "it reads single images, which takes the network"
    missing = [need for need in planned.needs if site.find(need) is None]
    if missing:
        return f"not gathered: {missing[0]}"
    nothing = torch.zeros(1, 1, 1, 1, dtype=torch.float64)  # read for its size alone
    leaves = StatisticLeaves(site, statistics.counts, statistics.images, {"W": nothing})
    return evaluate(planned.program, leaves, site.channels)[0].numpy()
