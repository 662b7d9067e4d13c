"""Lists for people: broken to the width of a terminal, a line each where a program may read."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence


def width() -> int | None:
    """The columns of the terminal that reads; none where it is a file or another program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def listing(rows: Mapping[str, str], *, names: int | None = None, indent: str = "") -> str:
    """Names with a text each, the texts in a column; `names` is how wide that of the names is."""
    names = max(map(len, rows), default=0) if names is None else names
    columns = width()
    lines = []
    for name, text in rows.items():
        start = f"{indent}{name:<{names}}  "
        if columns is None or columns < 2 * len(start):
            lines.append(start + text)
        else:
            lines.append(
                textwrap.fill(text, columns, initial_indent=start, subsequent_indent=" " * len(start))
            )
    return "\n".join(lines)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; where the terminal is too narrow for it, a paragraph for every row."""
    from evoprune.tasks.results import aligned

    text = aligned(header, rows)
    columns = width()
    if columns is None or max(map(len, text.splitlines())) <= columns:
        return text
    told = []
    for name, *values in rows:
        facts = "; ".join(f"{what}: {value}" for what, value in zip(header[1:], values, strict=True))
        told.append(f"{name}\n{textwrap.fill(facts, columns, initial_indent='  ', subsequent_indent='  ')}")
    return "\n".join(told)
