"""Telling how far a long pass has come: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds that pass in silence: short passes say nothing."""

LINE_EVERY = 15.0
"""Seconds between lines where there is no terminal."""


def track(items: Iterable[T], title: str, total: int | None = None) -> Iterator[T]:
    """The items, with a report of the progress on standard error."""
    started = time.monotonic()
    iterator = iter(items)
    if not sys.stderr.isatty():
        yield from _lines(iterator, title, total, started)
        return
    done = 0
    for item in iterator:
        yield item
        done += 1
        if time.monotonic() - started > PATIENCE:
            break
    else:
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, completed=done)
        for item in iterator:
            yield item
            bar.advance(task)


def _lines(items: Iterator[T], title: str, total: int | None, started: float) -> Iterator[T]:
    told = started
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - told > LINE_EVERY:
            told = now
            each = (now - started) / done
            rest = f" of {total} batches, {each * (total - done):.0f} s left" if total else " batches"
            print(f"{title}: {done}{rest}", file=sys.stderr, flush=True)
