"""Who becomes a parent, and how accuracies become a fitness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from numpy.random import Generator


def tournament(rng: Generator, fitness: Sequence[float], *, entrants: int, winners: int) -> list[int]:
    """The winners of as many tournaments, by position: each time the fittest of some drawn at random.

    One may win more than once; of equals the one drawn first wins.
    """
    entrants = min(entrants, len(fitness))
    won = []
    for _ in range(winners):
        drawn = rng.choice(len(fitness), size=entrants, replace=False).tolist()
        won.append(max(drawn, key=lambda each: fitness[each]))
    return won


def combined(accuracies: Mapping[str, float], weights: Mapping[str, float], how: str) -> float:
    """The weighted geometric or arithmetic mean over the tasks that have a weight."""
    if len(weights) == 1:
        return accuracies[next(iter(weights))]
    if how == "arithmetic":
        return math.fsum(weight * accuracies[task] for task, weight in weights.items())
    if any(accuracies[task] <= 0 for task in weights):
        return 0.0
    return math.exp(math.fsum(weight * math.log(accuracies[task]) for task, weight in weights.items()))
