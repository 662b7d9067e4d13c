"""Tables as text, wherever they are asked for."""

from __future__ import annotations

import pytest
from rich.table import Table

from evoprune.plain import plain


@pytest.mark.parametrize("notebook", [False, True])
def test_a_table_is_plain_text_in_a_notebook_and_where_colours_are_forced(
    notebook: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console._is_jupyter", lambda: notebook)
    table = Table("[site]", title="pruned", header_style="bold")
    table.add_row("conv1")
    text = plain(table, width=40)
    assert "conv1" in text and "\x1b" not in text
    assert capsys.readouterr().out == ""
