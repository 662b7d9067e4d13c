"""Telling people how a training goes: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from evoprune.tasks.training import Epoch

EVERY = 0.2  # seconds between two looks at a live bar
LINES = 10  # about how many plain lines a training prints


class TrainingProgress:
    """Watches a training, under a title.

    On a terminal a bar moves with loss, accuracy and the time left; elsewhere (files, CI) about ten lines are
    printed over the whole training.
    """

    def __init__(self, title: str, *, console: Console | None = None, brief: bool = False) -> None:
        """`brief`: of a training among many, print only the end."""
        self.title = title
        self._lines = 1 if brief else LINES
        self.console = console or Console(stderr=True, soft_wrap=True)
        self._bar: Progress | None = None
        self._looked = self._started = 0.0
        self._done = self._epochs = self._steps = 0

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, done: int, epochs: int, steps: int) -> None:
        """Before the first batch: `done` epochs were done by an earlier training, of `epochs`."""
        self._started, self._done, self._epochs, self._steps = time.monotonic(), done, epochs, steps
        if 0 < done < epochs:
            self.console.print(f"{self.title}: goes on after epoch {done} of {epochs}", highlight=False)
        if self.console.is_terminal and done < epochs:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self._task = self._bar.add_task(self.title, total=(epochs - done) * steps, state="")
            self._bar.start()

    def step(self, epoch: int, step: int, means: Callable[[], tuple[float, float]]) -> None:
        """After a batch; epochs are counted from 0, batches from 1."""
        if self._bar is None or time.monotonic() - self._looked < EVERY:
            return
        self._looked = time.monotonic()
        loss, accuracy = means()
        state = f"epoch {epoch + 1}/{self._epochs}  loss {loss:.4f}  accuracy {accuracy:.2%}"
        self._bar.update(self._task, completed=(epoch - self._done) * self._steps + step, state=state)

    def epoch(self, number: int, result: Epoch) -> None:
        """After an epoch; here the first is number 1."""
        if self._bar is not None and number == self._epochs:
            self._bar.stop()
        if self.console.is_terminal:
            return
        every = max(1, self._epochs // self._lines)
        if number % every and number != self._epochs:
            return
        each = (time.monotonic() - self._started) / (number - self._done)
        left = each * (self._epochs - number)
        self.console.print(
            f"{self.title}: epoch {number}/{self._epochs}  loss {result.loss:.4f}  "
            f"accuracy {result.accuracy:.2%}  {each:.1f} s an epoch"
            + (f", {left:.0f} s left" if left else ""),
            highlight=False,
        )
