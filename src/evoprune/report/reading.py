"""A run's folder, read once for everything that is drawn of it, without disturbing the run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from evoprune import config
from evoprune.errors import RunNameError
from evoprune.evolution.ledger import Judged, Ledger
from evoprune.evolution.settings import Settings, build
from evoprune.runs.folder import RunFolder, find, is_locked
from evoprune.runs.folder import names as every
from evoprune.runs.journal import NOTE, Record, read

LOG_LINES = 12
"""How many of a log's last lines are shown of a run that has not ended well."""


@dataclass(frozen=True)
class RunView:
    """A run as its folder tells it."""

    name: str
    path: Path
    state: str
    """`running`, `ended` or `stopped`."""
    settings: Settings
    config: str
    records: tuple[Record, ...]
    ledger: Ledger
    torn: int
    log: tuple[str, ...]
    """The log's last lines, of a run that has not ended."""

    @property
    def judged(self) -> tuple[Judged, ...]:
        """Everyone who was judged, in the order of generations."""
        return tuple(each for _, each in sorted(self.ledger.judged.items()))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have a part in the fitness."""
        return tuple(self.settings.weights())

    @property
    def notes(self) -> tuple[str, ...]:
        """What the run noted of itself, such as interruptions."""
        return tuple(str(record.get("text", "")) for record in self.records if record["event"] == NOTE)

    @property
    def about(self) -> Record:
        """What was written down when the run began."""
        return next((record for record in self.records if record["event"] == "run"), {})


def view(folder: RunFolder) -> RunView:
    """Read a run; one that still goes on is read as far as it is."""
    locked = is_locked(folder)  # first: a run that ends meanwhile has not been stopped
    settings = build(config.read(folder.config))
    reading = read(folder.journal)
    ledger = Ledger.of(reading.records)
    judged = len(ledger.generations)
    state = "stopped"
    if locked:
        state = "running"
    elif ledger.ended and ledger.ended_after == judged - 1:
        state = "ended"
    log: tuple[str, ...] = ()
    if state != "ended":
        with suppress(OSError):  # a log that is gone, or may not be read, tells nothing
            log = tuple(folder.log.read_text("utf-8", errors="replace").splitlines()[-LOG_LINES:])
    return RunView(
        name=folder.name or folder.path.resolve().name,  # of the path "."
        path=folder.path,
        state=state,
        settings=settings,
        config=folder.config.read_text("utf-8"),
        records=reading.records,
        ledger=ledger,
        torn=reading.torn,
        log=log,
    )


def views(runs: Path, names: Sequence[str]) -> tuple[RunView, ...]:
    """Several runs, by name or path; each once."""
    if not names:
        there = ", ".join(every(runs)) or "none"
        raise RunNameError(f"name at least one run; runs in {runs.absolute()}: {there}")
    found = [find(runs, name) for name in names]
    paths = [folder.path.resolve() for folder in found]
    for folder, path in zip(found, paths, strict=True):
        if paths.count(path) > 1:
            raise RunNameError(f"the run {folder.name!r} is named twice")
    return tuple(view(folder) for folder in found)
