"""Tournaments and the combination of accuracies."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from evoprune.evolution.selection import combined, tournament


def test_every_tournament_is_won_by_the_fittest_of_its_entrants() -> None:
    """With 2 of 4 entering, the fittest wins half of the tournaments, the next a third, the last none."""
    won = Counter(tournament(default_rng(0), [0.1, 0.4, 0.3, 0.2], entrants=2, winners=6000))
    assert won[0] == 0
    assert won[1] / 6000 == pytest.approx(1 / 2, abs=0.03)
    assert won[2] / 6000 == pytest.approx(1 / 3, abs=0.03)
    assert won[3] / 6000 == pytest.approx(1 / 6, abs=0.03)


def test_a_tournament_of_all_is_won_by_the_fittest() -> None:
    assert set(tournament(default_rng(1), [0.2, 0.9, 0.5], entrants=9, winners=20)) == {1}


def test_the_same_generator_selects_the_same() -> None:
    fitness = [0.5] * 30
    picks = [tournament(default_rng(3), fitness, entrants=4, winners=10) for _ in range(2)]
    assert picks[0] == picks[1]
    assert len(set(picks[0])) > 5, "of equals, chance decides"


shares = st.floats(0, 1)


@given(st.lists(st.tuples(shares, st.integers(1, 9)), min_size=1, max_size=4))
def test_means(parts: list[tuple[float, int]]) -> None:
    total = sum(weight for _, weight in parts)
    weights = {str(i): weight / total for i, (_, weight) in enumerate(parts)}
    accuracies = {str(i): accuracy for i, (accuracy, _) in enumerate(parts)}
    arithmetic = combined(accuracies, weights, "arithmetic")
    geometric = combined(accuracies, weights, "geometric")
    assert arithmetic == pytest.approx(sum(weights[t] * accuracies[t] for t in weights))
    assert geometric == pytest.approx(math.prod(accuracies[t] ** weights[t] for t in weights), abs=1e-12)
    assert geometric <= arithmetic + 1e-12


def test_tasks_without_a_weight_count_for_nothing() -> None:
    assert combined({"a": 0.9, "b": 0.0}, {"a": 1.0}, "geometric") == 0.9
    assert combined({"a": 0.0, "b": 0.9}, {"a": 0.5, "b": 0.5}, "geometric") == 0.0
