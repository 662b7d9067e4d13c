"""The table of words, and what is generated from it."""

from __future__ import annotations

from evoprune.expression.vocabulary import GROUPS, OPERANDS, OPERATORS


def test_6_operands_and_23_operators_in_two_forms_of_statistics() -> None:
    assert list(OPERANDS) == ["F", "F+", "F-", "W", "W_I", "B"]
    assert len({operator.base for operator in OPERATORS.values()}) == 23
    statistics = [o for o in OPERATORS.values() if o.group == "statistics"]
    assert len(statistics) == 12
    assert {o.group for o in OPERATORS.values()} == set(GROUPS)


def test_only_f_plus_and_f_minus_are_label_aware() -> None:
    assert {o.name for o in OPERANDS.values() if o.label_aware} == {"F+", "F-"}
