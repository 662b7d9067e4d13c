"""What rich draws, as plain text: the same for a file, a terminal and a notebook."""

from __future__ import annotations

from io import StringIO
from typing import Any


def plain(drawn: Any, width: int) -> str:
    """The lines of a table, without colours; rich by itself would draw it in a notebook, too."""
    from rich.console import Console

    text = StringIO()
    console = Console(
        file=text, width=width, color_system=None, force_terminal=False, force_jupyter=False, highlight=False
    )
    console.print(drawn)
    return text.getvalue()
