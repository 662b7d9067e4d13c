"""The pages on reports and feature selection: their examples run, their commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evoprune.cli import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "reports.md", DOCS / "feature-selection.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist_and_examples_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page.read_text()
    known = {name for group in COMMANDS.values() for name in group}
    assert set(re.findall(r"evoprune ([a-z]+)", text)) <= known
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, page.name, "exec"), {})
