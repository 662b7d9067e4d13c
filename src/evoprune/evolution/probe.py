"""Whether a bred tree may live: a scalar, within the limits, finite, and not the same for every channel.

Breeding asks this thousands of times for trees that are mostly parts of each other, so everything found
out about a subtree (its shape, the order its rows have, its values on the probe) is kept and looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evoprune.errors import ConfigError
from evoprune.expression.check import MAX_ENTRIES, nominal_entries, shape_of
from evoprune.expression.order import Axes, Dependent, axes_of
from evoprune.expression.shapes import Shape
from evoprune.expression.tree import Expr
from evoprune.scoring import reference
from evoprune.scoring.reference import Value
from evoprune.scoring.steps import CHANNEL, CLASS, LAYER, SCOPE_OF_OPERAND

# The probe: a layer of so many channels, seen through so many images of each class.
CHANNELS = 2
CLASS_SIZES = (2, 3, 4)
MAP_SIZE = (2, 3)
WEIGHTS = 5

# The last channel is a twin of the first, moved by this much: what differs between the two beside what
# differs between other channels is rounding, and a function of rounding is a constant.
TWIN_MOVE = 1e-10
NOISE = 1e-3
SMALLEST_SPREAD = 1e-12

_COPIES = {LAYER: 1, CHANNEL: CHANNELS + 1, CLASS: (CHANNELS + 1) * len(CLASS_SIZES)}


@dataclass(frozen=True)
class Limits:
    """What a tree must keep to, to be bred."""

    max_size: int = 80
    max_depth: int = 14
    order_dependent: bool = False

    def __post_init__(self) -> None:
        if self.max_size < 2 or self.max_depth < 1:
            raise ConfigError(
                "a function has at least 2 nodes and depth 1, "
                f"got max_size = {self.max_size} and max_depth = {self.max_depth}"
            )


class Probe:
    """Judges trees by shape and size, and by their scores on a fixed, small, seeded layer."""

    def __init__(self, limits: Limits | None = None, *, remembers: int = 200_000) -> None:
        self.limits = limits or Limits()
        self._remembers = remembers
        self._shapes: dict[Expr, Shape] = {}
        self._rows: dict[Expr, Axes] = {}
        self._objections: dict[Expr, str | None] = {}  # those that its shape and its parts raise
        self._values: dict[Expr, tuple[int, Sequence[Value]]] = {}  # scope, one for each that differs

    def shape(self, expr: Expr) -> Shape:
        """The shape of a tree."""
        shape = self._shapes.get(expr)
        if shape is None:
            self._look(expr)
            shape = self._shapes[expr]
        return shape

    def objection(self, expr: Expr) -> str | None:
        """Why a tree may not be bred; None if it may."""
        limits = self.limits
        if expr.size > limits.max_size or expr.depth > limits.max_depth:
            return f"more than {limits.max_size} nodes, or deeper than {limits.max_depth}"
        if self.shape(expr).axes:
            return "not a scalar"
        objection = self._objections[expr]
        if objection is not None:
            return objection
        scores = self.scores(expr)
        if not np.isfinite(scores).all():
            return "not finite"
        *others, twin = scores.tolist()
        spread = max(others) - min(others)
        if spread < SMALLEST_SPREAD or abs(others[0] - twin) > NOISE * spread:
            return "constant"
        return None

    def scores(self, expr: Expr) -> Value:
        """The scores `[channel]` on the probe; the last channel is the first one's twin."""
        self._look(expr)
        with np.errstate(all="ignore"):
            for node in _unknown(expr, self._values):
                self._values[node] = self._evaluated(node)
            scope, values = self._values[expr]
            of_channels = np.array(values).reshape(_COPIES[min(scope, CHANNEL)], -1)
            return np.asarray(np.broadcast_to(of_channels.mean(axis=1), CHANNELS + 1))

    def _look(self, expr: Expr) -> None:
        """Find out what needs no data, from the operands up."""
        if len(self._shapes) > self._remembers:
            for known in (self._shapes, self._rows, self._objections, self._values):
                known.clear()
        for node in _unknown(expr, self._shapes):
            shape = self._shapes[node] = shape_of(node, self._shapes)
            objection = next((o for arg in node.args if (o := self._objections[arg])), None)
            if objection is None and nominal_entries(shape) > MAX_ENTRIES:
                objection = "a value would be too large"
            if objection is None and not self.limits.order_dependent:
                try:
                    self._rows[node] = axes_of(node, self._shapes, self._rows)
                except Dependent:
                    objection = "depends on the order of images or filters"
            self._objections[node] = objection

    def _evaluated(self, node: Expr) -> tuple[int, Sequence[Value]]:
        if not node.args:
            return SCOPE_OF_OPERAND[node.name], _layer()[node.name]
        args = [self._values[arg] for arg in node.args]
        scope = max([scope for scope, _ in args])
        each = []
        for of_arg, values in args:
            times = _COPIES[scope] // _COPIES[of_arg]
            each.append(values if times == 1 else [value for value in values for _ in range(times)])
        shapes = self._shapes
        return scope, [reference.apply(node, list(one), MAP_SIZE, shapes) for one in zip(*each, strict=True)]


def _unknown(expr: Expr, known: Mapping[Expr, object]) -> list[Expr]:
    """The subtrees that are not known yet, operands first."""
    if expr in known:
        return []
    order: dict[Expr, None] = {}
    stack = [(expr, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order[node] = None
        elif node not in known and node not in order:
            stack.append((node, True))
            stack.extend([(arg, False) for arg in node.args])
    return list(order)


@lru_cache(maxsize=1)
def _layer() -> dict[str, tuple[Value, ...]]:
    """The operands of the probe: for each the values of its scope, channel by channel, class by class."""
    rng = np.random.default_rng(20220709)
    classes = np.repeat(np.arange(len(CLASS_SIZES)), CLASS_SIZES)
    pixels = MAP_SIZE[0] * MAP_SIZE[1]

    def channels(*shape: int) -> Value:
        return rng.normal(size=(CHANNELS, *shape))

    def with_twin(values: Value) -> Value:
        moved = values[:1] * (1 + TWIN_MOVE * rng.normal(size=values[:1].shape))
        return np.concatenate([values, moved])

    # As after a ReLU: some entries are 0; classes differ.
    of_class = 0.5 * channels(len(CLASS_SIZES), 1)
    maps = with_twin(np.maximum(channels(len(classes), pixels) + 0.4 + of_class[:, classes], 0))
    filters = with_twin(channels(WEIGHTS))
    norms = with_twin(channels(4) * 0.3 + [1.0, 0.0, 0.0, 0.0])
    norms[:, 3] = norms[:, 3] ** 2 + 0.5  # a variance
    each_class = range(len(CLASS_SIZES))
    return {
        "F": tuple(maps),
        "F+": tuple(of_channel[classes == k] for of_channel in maps for k in each_class),
        "F-": tuple(of_channel[classes != k] for of_channel in maps for k in each_class),
        "W": (filters,),
        "W_I": tuple(filters),
        "B": tuple(norms),
    }
