"""What an evolution tells while it runs: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evoprune.evolution.hall_of_fame import percent

LINE_EVERY = 30.0
"""Seconds between two plain lines about the same generation."""


@dataclass(frozen=True)
class Status:
    """How a run stands."""

    name: str
    generation: int
    generations: int
    best: float | None
    median: float | None
    formula: str
    done: int
    wanted: int
    running: int
    saved: int
    elapsed: float
    left: float | None
    """Seconds, as far as that can be told."""

    def line(self) -> str:
        """In a line."""
        left = f", {duration(self.left)} left" if self.left is not None else ""
        return (
            f"generation {self.generation + 1} of {self.generations}: best {percent_of(self.best)}, "
            f"median {percent_of(self.median)}; evaluations: {self.done} of {self.wanted} done, "
            f"{self.running} running, {self.saved} saved; {duration(self.elapsed)} gone{left}"
        )


class Watch(Protocol):
    """Something that is told how a run goes."""

    def say(self, text: str) -> None:
        """Lines that stay."""

    def show(self, status: Status) -> None:
        """How the run stands; called several times a second."""

    def close(self) -> None:
        """Nothing more will be told."""


class Silent:
    """Tells nothing."""

    def say(self, text: str) -> None: ...

    def show(self, status: Status) -> None: ...

    def close(self) -> None: ...


class Lines:
    """Plain lines: one for each generation, and now and then one in between."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._said = time.monotonic()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._said = time.monotonic()

    def show(self, status: Status) -> None:
        if time.monotonic() - self._said >= LINE_EVERY:
            self.say(status.line())

    def close(self) -> None: ...


class Picture:
    """A picture that is drawn anew in place; lines that stay scroll by above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._open = False

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, status: Status) -> None:
        if not self._open:
            self._live.start()
            self._open = True
        self._live.update(_picture(status), refresh=True)

    def close(self) -> None:
        if self._open:
            self._live.stop()
            self._open = False


def watch() -> Watch:
    """What fits where the error output goes."""
    console = Console(stderr=True)
    return Picture(console) if console.is_terminal else Lines(console)


def _picture(status: Status) -> Group:
    table = Table.grid(padding=(0, 2))
    left = "" if status.left is None else f", about {duration(status.left)} left"
    rows = (
        ("run", f"{status.name}, {duration(status.elapsed)} gone{left}"),
        ("generation", f"{status.generation + 1} of {status.generations}"),
        ("fitness", f"best {percent_of(status.best)}, median {percent_of(status.median)}"),
        ("best", status.formula),
        (
            "evaluations",
            f"{status.done} of {status.wanted} done, {status.running} running, {status.saved} saved so far",
        ),
    )
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    return Group(table, ProgressBar(total=max(1, status.wanted), completed=status.done, width=60))


def percent_of(share: float | None) -> str:
    """A share of 1 in percent; a dash where there is none."""
    return "–" if share is None else percent(share)


def duration(seconds: float) -> str:
    """Seconds in the units people use."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
