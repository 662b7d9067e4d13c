"""A run's folder, and the lock that keeps two processes from working on one run.

runs/NAME/
  config.toml         the resolved configuration
  journal.jsonl       the record of the run
  log.txt             what was said, for people
  hall_of_fame.txt    the best functions, for people
  hall_of_fame.csv    the same, for programs
  comparison.csv      the best beside SOAP, once the run has ended
  evals/HASH/         one piece of work: work.json, result.json
  tasks/NAME/         a task's trained base network and statistics
"""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import shutil
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from evoprune.errors import RunError, RunNameError
from evoprune.files import write
from evoprune.runs.files import refusals_said, sweep
from evoprune.runs.journal import Record, line_of

RUNS = Path("runs")
"""Where runs live, below the current directory, unless told otherwise."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RunFolder:
    """The places in a run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.config = path / "config.toml"
        self.journal = path / "journal.jsonl"
        self.log = path / "log.txt"
        self.hall_of_fame = path / "hall_of_fame.txt"
        self.hall_of_fame_csv = path / "hall_of_fame.csv"
        self.comparison_csv = path / "comparison.csv"
        self.evals = path / "evals"
        self.tasks = path / "tasks"

    def exercise(self) -> None:
        """Write to every place that will be written to, so that a refusal comes now and not after hours."""
        with refusals_said(f"trying out the run's folder {self.path}"):
            for folder in (self.evals, self.tasks):
                folder.mkdir(exist_ok=True)
            for place in (self.path, self.evals, self.tasks):
                probe = place / "exercise"
                write(probe, "written, renamed, read and removed\n")
                if not probe.read_text():
                    raise RunError(f"what was written to {place} is not there when it is read")
                probe.unlink()
            for file in (self.hall_of_fame, self.hall_of_fame_csv, self.comparison_csv):
                if not file.exists():
                    write(file, "")
        self.say("")

    def say(self, text: str) -> None:
        """Add lines to the log."""
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        lines = "".join(f"{now}  {line}\n" for line in text.splitlines())
        with refusals_said("writing the log"), self.log.open("a", encoding="utf-8") as file:
            file.write(lines)


def create(runs: Path, name: str, config: str, beginning: Record) -> RunFolder:
    """A new run with its first record; it appears whole or not at all. A name that is taken is refused."""
    if not _NAME.fullmatch(name):
        raise RunNameError(
            f"{name!r} cannot be a run's name: expected up to 100 letters, digits, dots, dashes and "
            "underscores, the first a letter or a digit"
        )
    path = runs / name
    making = f"making the folder of the run {name!r} in {runs.absolute()}"
    taken = RunNameError(
        f"there is already a run {name!r} in {runs}; go on with it: evoprune resume {name}. "
        "Or give the new one another name with --name"
    )
    with refusals_said(making):
        if path.exists():
            raise taken
    aside = runs / f".{name}.{os.getpid()}.new"
    with refusals_said(making):
        runs.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            shutil.rmtree(aside)
        aside.mkdir()
        try:
            write(aside / "config.toml", config)
            write(aside / "journal.jsonl", line_of(beginning))
            (aside / "log.txt").touch()
            try:
                aside.rename(path)
            except OSError as error:
                if path.exists():
                    raise taken from error
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return RunFolder(path)


def find(runs: Path, name: str) -> RunFolder:
    """A run by its name, or by the path of its folder."""
    for path in (runs / name, Path(name)):
        with refusals_said(f"looking for the run {name!r}"):
            if (path / "journal.jsonl").is_file():
                return RunFolder(path)
    there = names(runs)
    listed = ", ".join(there) if there else "none"
    close = difflib.get_close_matches(name, there, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise RunNameError(f"there is no run {name!r}{hint}; runs in {runs.absolute()}: {listed}")


def names(runs: Path) -> list[str]:
    """The runs there are, the latest last."""
    found = [
        path
        for path in runs.glob("*/journal.jsonl")
        if path.is_file() and not path.parent.name.startswith(".")
    ]
    return [path.parent.name for path in sorted(found, key=_begun)]


def _begun(journal: Path) -> tuple[float, str]:
    """When a run began, to sort by; a folder that lacks something is a run all the same."""
    try:
        return (journal.with_name("config.toml").stat().st_mtime, journal.parent.name)
    except OSError:
        return (0.0, journal.parent.name)


def next_name(runs: Path, stem: str) -> str:
    """`stem-1`, or the next number that is free."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "run"
    number = 1
    with refusals_said(f"looking for a name in {runs.absolute()}"):
        while (runs / f"{stem}-{number}").exists():
            number += 1
    return f"{stem}-{number}"


def now() -> str:
    """The time of day, for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Lock:
    """Held by the one process that works on a run; the system lets go of it however that process ends."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        with refusals_said(f"opening the run {folder.name!r}"):
            self._file = os.open(folder.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            # `evoprune runs` holds the lock for an instant to see whether anybody else does.
            if not any(self._taken(wait) for wait in (0.0, 0.05, 0.2)):
                holder = os.pread(self._file, 200, 0).decode(errors="replace").strip()
                os.close(self._file)
                if holder == _me():
                    raise RunError(
                        f"this process itself has the run {folder.name!r} open; close it there with "
                        "Run.close(), and resume then"
                    )
                raise RunError(
                    f"another process works on the run {folder.name!r} ({holder or 'unknown'}); "
                    "wait for it, or stop it, and resume then"
                )
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{_me()}\n".encode(), 0)
        sweep(folder.path)

    def _taken(self, wait: float) -> bool:
        time.sleep(wait)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let others have the run."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _me() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


def is_locked(folder: RunFolder) -> bool:
    """Whether a process works on the run right now."""
    try:
        file = os.open(folder.path / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
