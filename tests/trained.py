"""A task that trains for real and tells of every epoch; worker processes build it from `trained:Digits`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evoprune
from evoprune.tasks.task import named
from evoprune.tasks.training import Epoch


class Digits:
    """The task `digits`, with few epochs. What happens is written to `epochs.txt`; with `TOY_PIPE` in the
    environment, the first training to end its second epoch stalls there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task: evoprune.Task = named("digits", folder=folder, base={"epochs": 2}, recipe={"epochs": 4})

    def base(self) -> Any:
        return self.task.base()

    def kept(self, function: str) -> Any:
        return self.task.kept(function)

    def evaluate(self, kept: Any, seed: int) -> Any:
        return self.task.evaluate(kept, seed, watcher=self)

    def start(self, done: int, epochs: int, steps: int) -> None:
        self._tell(f"from {done}")

    def step(self, epoch: int, step: int, means: Callable[[], tuple[float, float]]) -> None:
        pass

    def epoch(self, number: int, result: Epoch) -> None:
        self._tell(f"epoch {number}")
        mark = self.folder / "stalled"
        if "TOY_PIPE" in os.environ and number == 2 and not mark.exists():
            mark.touch()
            Path(os.environ["TOY_PIPE"]).write_text(f"{os.environ['SLURM_JOB_ID']} {os.getpid()}\n")
            while True:
                signal.pause()

    def _tell(self, what: str) -> None:
        with (self.folder / "epochs.txt").open("a") as file:
            file.write(f"{what}\n")
