"""Scoring the columns of a table: every feature is a channel whose maps have one pixel.

The same pass, accumulators and steps as for a network's sites, without a network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from evoprune.errors import MissingOperandError, ScoringError
from evoprune.expression.library import Function
from evoprune.scoring.accumulate import SiteSums
from evoprune.scoring.arrays import random_scores
from evoprune.scoring.execute import array_leaves, evaluate
from evoprune.scoring.groups import Batch, Groups
from evoprune.scoring.leaves import StatisticLeaves
from evoprune.scoring.plan import Plan, plan
from evoprune.scoring.sample import Drawing
from evoprune.scoring.statistics import SiteStatistics
from evoprune.scoring.steps import compile

ROWS = 4096
"""Rows of the table that are worked on at once."""

PARAMETERS = {"W": "the filters of a layer", "W_I": "a channel's own filter", "B": "a channel's batch-norm"}


@dataclass(frozen=True)
class FeatureScores:
    """Scores `[feature]`, and how they came about: `streamed` over all rows, on a `sample`, or `drawn`."""

    scores: NDArray[np.float64]
    mode: str


def check_reads_features(function: Function) -> None:
    """Raise where a function reads what a table of features does not have."""
    if function.expr is None:
        return
    absent = [f"{name} ({what})" for name, what in PARAMETERS.items() if name in function.expr.operands]
    if absent:
        raise MissingOperandError(
            f"{function.name[:80]} reads {' and '.join(absent)}: features of a table come from no layer and "
            "have none; use a function of F, F+ and F-, such as xi_star, di, fdr, abs_snr or mean_activation"
        )


def score_features(
    function: Function,
    features: NDArray[np.floating],
    classes: NDArray[np.int64] | None,
    *,
    sample: int,
    seed: int,
) -> FeatureScores:
    """Score features `[row, feature]`, with classes `[row]` from 0 upwards where there are labels."""
    check_reads_features(function)
    rows, width = features.shape
    if function.expr is None:
        return FeatureScores(random_scores(width, seed), "drawn")
    if function.expr.is_label_aware:
        if classes is None:
            raise ScoringError(f"{function.name[:80]} compares classes: give y, a label for each row")
        if "F-" in function.expr.operands and classes.max() == 0:
            raise ScoringError(
                f"{function.name[:80]} reads F-, the rows of other classes, but all {rows} labels are equal"
            )
    planned = plan(function)
    if planned.streamed:
        found, mode = _streamed(planned, features, classes), "streamed"
    else:
        found, mode = _sampled(planned, features, classes, sample, seed), "sample"
    scores = found.numpy()
    wrong = np.flatnonzero(~np.isfinite(scores))
    if wrong.size:
        raise ScoringError(
            f"{function.name[:80]} gives {wrong.size} of {width} features scores that are not finite, like "
            f"{scores[wrong[0]]} to feature {wrong[0]}"
        )
    return FeatureScores(scores, mode)


def _streamed(
    planned: Plan, features: NDArray[np.floating], classes: NDArray[np.int64] | None
) -> torch.Tensor:
    rows, width = features.shape
    nothing = torch.zeros(1, 1, 1, 1, dtype=torch.float64)  # read for its size alone
    sums = SiteSums(planned.needs, (1, 1), {})
    kinds = torch.zeros(rows, dtype=torch.int64) if classes is None else torch.from_numpy(classes)
    for start in range(0, rows, ROWS):
        part = torch.from_numpy(np.array(features[start : start + ROWS]))
        if not sums.add(Batch(part.unsqueeze(-1), Groups(kinds[start : start + ROWS]))):
            raise ScoringError("a sum over the features is not finite: their values are too large")
    counts = torch.bincount(kinds).to(torch.float64)
    statistics = SiteStatistics(width, (1, 1), sums.finished(counts))
    leaves = StatisticLeaves(statistics, counts, rows, {"W": nothing})
    return evaluate(planned.program, leaves, width)[0]


def _sampled(
    planned: Plan, features: NDArray[np.floating], classes: NDArray[np.int64] | None, size: int, seed: int
) -> torch.Tensor:
    drawing = Drawing(size, seed)
    for start in range(0, len(features), ROWS):
        part = torch.from_numpy(np.array(features[start : start + ROWS]))
        drawing.add(part, None if classes is None else torch.from_numpy(classes[start : start + ROWS]))
    drawn = drawing.finish(classes is not None)
    maps = drawn.images.T.unsqueeze(-1).contiguous()
    expr = planned.functions[0].expr
    assert expr is not None
    leaves = array_leaves(maps, (1, 1), drawn.classes, None, None, None)
    return evaluate(compile([expr]), leaves, len(maps))[0]
