"""Paired tests against SciPy's, and Holm's correction against its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoprune.tasks.paired import holm, paired_p

numbers = st.floats(-1, 1).map(lambda value: round(value, 4))


@given(st.lists(numbers, min_size=2, max_size=30))
def test_p_values_are_those_of_scipy(differences: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")
    if len(set(differences)) == 1:
        assert paired_p(differences) == (None if differences[0] else 1.0)
        return
    expected = float(stats.ttest_1samp(differences, 0.0).pvalue)
    assert paired_p(differences) == pytest.approx(expected, rel=1e-9, abs=1e-14)


def test_one_pair_cannot_be_tested() -> None:
    assert paired_p([0.1]) is None
    assert paired_p([]) is None


def test_holm_by_hand() -> None:
    given_values = {"a": 0.01, "b": 0.04, "c": 0.03, "d": None, "e": 0.5}
    assert holm(given_values) == pytest.approx({"a": 0.04, "c": 0.09, "b": 0.09, "d": None, "e": 0.5})


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=8))
def test_holm_is_between_the_plain_and_bonferronis_values(values: dict[str, float]) -> None:
    corrected = holm(values)
    assert set(corrected) == set(values)
    for name, value in values.items():
        assert value <= (corrected[name] or 0.0) <= min(1.0, value * len(values)) + 1e-12
    order = sorted(values, key=lambda name: values[name])
    assert [corrected[name] for name in order] == sorted(corrected[name] or 0.0 for name in order)
