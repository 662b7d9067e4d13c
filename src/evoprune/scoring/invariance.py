"""Which changes of the data leave a function's scores as they are: tried out, not proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evoprune.errors import ScoringError
from evoprune.expression.tree import Expr
from evoprune.scoring.arrays import score_arrays

Floats = NDArray[np.float64]
Given = dict[str, Any]

SAME = 1e-7
"""The largest difference, relative to the spread of the scores, that is put down to rounding."""

CLOSE = 0.05
"""Differences below this share of the spread are told: a ridge that hardly matters shows in them."""

FACTOR, SHIFT = 3.0, 0.7
IMAGES, CHANNELS, SIDE, CLASSES = 60, 24, 3, 4


@dataclass(frozen=True)
class Invariance:
    """What a change does to the scores.

    verdict: `same`; `scaled`, all multiplied by `factor` ** `power`; `ranked`, other scores in the same
    order; `changed`, another order; `not finite`. difference: the largest, as a share of the spread of the
    scores before. correlation: Spearman's, of the scores before and after; NaN where either are all equal.
    """

    change: str
    verdict: str
    difference: float
    correlation: float
    factor: float = 1.0
    power: float = 0.0

    def __str__(self) -> str:
        if self.verdict == "not finite":
            return "scores that are not finite"
        alike = " (all channels score alike)" if np.isnan(self.correlation) else ""
        close = f" by up to {self.difference:.1g} of their spread" if self.difference < CLOSE else ""
        ranked = alike or f" (rank correlation {self.correlation:+.3f})"
        told = {
            "same": f"the same scores{alike}",
            "scaled": f"scores times {self.factor:g}^{self.power:g}, the same order{alike}",
            "ranked": f"other scores{close}, the same order{alike}",
            "changed": f"other scores{close}, another order{ranked}",
        }
        return told[self.verdict]


def ranks(values: Floats) -> Floats:
    """The ranks from 1 upwards; equals share the mean of theirs."""
    order = np.argsort(values, kind="stable")
    _, first, counts = np.unique(values[order], return_index=True, return_counts=True)
    shared = np.repeat(first + (counts + 1) / 2, counts)
    result = np.empty(len(values))
    result[order] = shared
    return result


def spearman(a: Floats, b: Floats) -> float:
    """The correlation of the ranks; NaN where all entries of one are equal, or there is only one."""
    x, y = ranks(np.asarray(a)), ranks(np.asarray(b))
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 0 else float("nan")


def invariances(expr: Expr, *, seed: int = 0) -> tuple[Invariance, ...]:
    """Every change that concerns what the function reads, tried on seeded random maps and parameters.

    A function whose scores are not finite there is refused with a `ScoringError`.
    """
    given = _drawn(seed)
    before = score_arrays(expr, dtype="float64", **given)
    rng = np.random.default_rng([seed, 1])
    found = []
    for change, (reads, changed, factor) in _CHANGES.items():
        if expr.operands & reads:
            altered, order = changed(given, rng)
            try:
                after = score_arrays(expr, dtype="float64", **altered)
            except ScoringError:
                nan = float("nan")
                found.append(Invariance(change, "not finite", nan, nan))
                continue
            found.append(_judged(change, before if order is None else before[order], after, factor))
    return tuple(found)


def _judged(change: str, before: Floats, after: Floats, factor: float) -> Invariance:
    spread = max(float(np.ptp(before)), 1e-3 * float(np.abs(before).max()), 1e-300)
    difference = float(np.abs(after - before).max()) / spread
    correlation = spearman(before, after)
    if difference <= SAME:
        return Invariance(change, "same", difference, correlation)
    if factor != 1.0:
        power = _power(before, after, factor)
        if power is not None:
            return Invariance(change, "scaled", difference, correlation, factor, power)
    same_order = np.array_equal(np.argsort(before, kind="stable"), np.argsort(after, kind="stable"))
    return Invariance(change, "ranked" if same_order else "changed", difference, correlation)


def _power(before: Floats, after: Floats, factor: float) -> float | None:
    """The power of the factor that all scores are multiplied by, where there is one."""
    size = float(np.abs(before).max())
    if not size or not np.abs(after).max():
        return None
    at = int(np.abs(before).argmax())
    ratio = after[at] / before[at]
    if ratio <= 0:
        return None
    power = round(float(np.log(ratio) / np.log(factor)), 3)
    fits = np.abs(after - before * factor**power).max() <= SAME * size * factor**power
    return power if fits else None


def _drawn(seed: int) -> Given:
    """Maps behind a ReLU whose channels differ in scale, sparsity and in how they tell classes apart."""
    rng = np.random.default_rng([seed, 0])
    labels = rng.permutation(np.arange(IMAGES) % CLASSES)
    centres = rng.normal(0, 0.6, (CLASSES, CHANNELS, 1, 1))
    scale = rng.uniform(0.3, 1.5, (1, CHANNELS, 1, 1))
    offset = rng.normal(0.2, 0.4, (1, CHANNELS, 1, 1))
    noise = rng.normal(0, 1, (IMAGES, CHANNELS, SIDE, SIDE))
    return {
        "maps": np.maximum(scale * (noise + centres[labels]) + offset, 0),
        "labels": labels,
        "filters": rng.normal(0, 0.5, (CHANNELS, 3, 2, 2)) * rng.uniform(0.5, 2, (CHANNELS, 1, 1, 1)),
        "batch_norm": np.stack(
            [
                rng.normal(1, 0.5, CHANNELS),
                rng.normal(0, 0.3, CHANNELS),
                rng.normal(0, 1, CHANNELS),
                rng.uniform(0.2, 2, CHANNELS),
            ],
            axis=1,
        ),
    }


Changed = tuple[Given, NDArray[np.int64] | None]
Change = Callable[[Given, np.random.Generator], Changed]


def _times(name: str) -> Change:
    return lambda given, rng: (given | {name: FACTOR * given[name]}, None)


def _shifted(given: Given, rng: np.random.Generator) -> Changed:
    return given | {"maps": given["maps"] + SHIFT}, None


def _order(length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """A new order, in which nothing keeps its place."""
    cycle = rng.permutation(length)
    order = np.empty(length, dtype=np.int64)
    order[cycle] = np.roll(cycle, 1)
    return order


def _renumbered(given: Given, rng: np.random.Generator) -> Changed:
    names = 10 * (1 + rng.permutation(CLASSES))
    names = np.roll(np.sort(names), 1)  # no class keeps its place in the order
    return given | {"labels": names[given["labels"]]}, None


def _images_reordered(given: Given, rng: np.random.Generator) -> Changed:
    order = _order(IMAGES, rng)
    return given | {"maps": given["maps"][order], "labels": given["labels"][order]}, None


def _pixels_reordered(given: Given, rng: np.random.Generator) -> Changed:
    flat = given["maps"].reshape(IMAGES, CHANNELS, -1)[:, :, _order(SIDE * SIDE, rng)]
    return given | {"maps": flat.reshape(given["maps"].shape)}, None


def _channels_reordered(given: Given, rng: np.random.Generator) -> Changed:
    order = _order(CHANNELS, rng)
    altered = {"maps": given["maps"][:, order]}
    altered |= {name: given[name][order] for name in ("filters", "batch_norm")}
    return given | altered, order


_MAPS, _FILTERS = frozenset({"F", "F+", "F-"}), frozenset({"W", "W_I"})
_ALL = _MAPS | _FILTERS | {"B"}

# what is changed → (the operands it concerns, how, the factor where something is multiplied)
_CHANGES: Mapping[str, tuple[frozenset[str], Change, float]] = {
    f"maps times {FACTOR:g}": (_MAPS, _times("maps"), FACTOR),
    f"maps plus {SHIFT:g}": (_MAPS, _shifted, 1.0),
    f"filters times {FACTOR:g}": (_FILTERS, _times("filters"), FACTOR),
    "labels renumbered": (frozenset({"F+", "F-"}), _renumbered, 1.0),
    "images in another order": (_MAPS, _images_reordered, 1.0),
    "pixels in another order": (_MAPS, _pixels_reordered, 1.0),
    "channels in another order": (_ALL, _channels_reordered, 1.0),
}
