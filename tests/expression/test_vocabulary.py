"""The table of words, and what is generated from it."""

from __future__ import annotations

import runpy
from pathlib import Path

from evoprune.expression.vocabulary import GROUPS, OPERANDS, OPERATORS

DOCS = Path(__file__).parents[2] / "docs"


def test_6_operands_and_23_operators_in_two_forms_of_statistics() -> None:
    assert list(OPERANDS) == ["F", "F+", "F-", "W", "W_I", "B"]
    assert len({operator.base for operator in OPERATORS.values()}) == 23
    statistics = [o for o in OPERATORS.values() if o.group == "statistics"]
    assert len(statistics) == 12
    assert {o.group for o in OPERATORS.values()} == set(GROUPS)


def test_the_page_of_operators_is_fresh() -> None:
    page = runpy.run_path(str(DOCS / "_operators.py"))["page"]()
    assert (DOCS / "operators.md").read_text(encoding="utf-8") == page, "run `make docs`"


def test_only_f_plus_and_f_minus_are_label_aware() -> None:
    assert {o.name for o in OPERANDS.values() if o.label_aware} == {"F+", "F-"}
