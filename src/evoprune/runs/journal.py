"""The record of a run: JSON lines that are only ever appended, each with a checksum.

    {"event": "fitness", "generation": 3, "index": 17, "fitness": 0.93, …, "sum": "1f0c9a3e"}

A line is on the disk before anything is built upon it. A run may be killed at any byte; then the last line
is torn, which its checksum shows, and it is dropped. Every event has a generation and an index, so that the
journals of two runs can be compared whatever the order in which their evaluations finished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

from evoprune.errors import RunError
from evoprune.runs.files import refusals_said

Record = dict[str, Any]

BEGINNING = b'{"event": '
"""What every line begins with."""

SETTINGS = "settings"
"""The key in the first record of the settings that a run keeps to."""

ENVIRONMENT = "environment"
"""The key in the first record of the versions and the machine that a run began with."""

MAY_DIFFER = frozenset({"at", "seconds", "elapsed", SETTINGS, ENVIRONMENT})
"""The keys that two equal runs may differ in: times, what is around them, and settings, since tasks' options
hold paths."""

NOTE = "note"
"""The event that only tells: of a worker that died, of an interruption."""

SUBMITTING, SUBMITTED = "submitting", "submitted"
"""The events around handing work to a cluster: what goes under which name, then the ids of the jobs."""

INCIDENTAL = frozenset({NOTE, SUBMITTING, SUBMITTED})
"""The events that equal runs may differ in."""


@dataclass(frozen=True)
class Reading:
    """The intact records of a journal, how many bytes they take, and how many are torn off behind them."""

    records: tuple[Record, ...]
    length: int
    torn: int


def read(path: str | Path) -> Reading:
    """Read a journal; what is torn at its end is left out, damage before that is an error."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise RunError(f"there is no journal {path}") from None
    except OSError as error:
        raise RunError(f"the journal {path} cannot be read: {error.strerror}") from error
    if not BEGINNING.startswith(data[: len(BEGINNING)]):
        raise RunError(
            f"{path} is not a journal, or its beginning is damaged: that is not the trace of a killed run. "
            "Restore it from a backup, or start another run"
        )
    records: list[Record] = []
    length = position = 0
    damaged = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        position += len(line)
        record = _checked(line)
        if record is None:
            damaged = damaged or number
            continue
        if damaged:
            raise RunError(
                f"line {damaged} of {path} is damaged, though intact lines follow it: that is not the trace "
                "of a killed run. Restore the journal from a backup, or cut it off before that line to go on "
                "from there; finished evaluations are found again in the folder evals"
            )
        records.append(record)
        length = position
    return Reading(tuple(records), length, len(data) - length)


def line_of(record: Record) -> bytes:
    """The line of a record, with its checksum."""
    body = _dump(record)
    return f'{body[:-1]}, "sum": "{crc32(body.encode()):08x}"}}\n'.encode()


def _dump(record: Record) -> str:
    return json.dumps(record, allow_nan=False, ensure_ascii=False)


def _checked(line: bytes) -> Record | None:
    """The record of an intact line."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
        told = record.pop("sum")
        return record if line_of(record) == line and isinstance(told, str) else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


class Journal:
    """A journal open for appending; whoever opens it holds the run's lock."""

    def __init__(self, path: Path) -> None:
        reading = read(path)
        self.path = path
        self.records = reading.records
        self.torn = reading.torn
        self._length = reading.length
        with refusals_said(f"opening the journal {path}"):
            self._file = os.open(path, os.O_WRONLY)
            if reading.torn:
                os.ftruncate(self._file, reading.length)
                os.fsync(self._file)

    def append(self, *records: Record) -> None:
        """Put records at the end, in one write, and wait until they are on the disk."""
        data = b"".join(map(line_of, records))
        if not self._is_there():
            raise RunError(
                f"the journal {self.path} was removed or replaced while the run was writing it; put it back "
                "to go on from there, finished evaluations are found again in the folder evals"
            )
        try:
            written = os.pwrite(self._file, data, self._length)
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._length + written)
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # otherwise the next reader finds the torn line and drops it
                os.ftruncate(self._file, self._length)
            raise RunError(f"the journal {self.path} cannot be written: {error.strerror}") from error
        self._length += len(data)

    def _is_there(self) -> bool:
        """Whether the file that is written to is still the one that others find."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._file))
        except OSError:
            return False

    def close(self) -> None:
        """Nothing more will be written."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def comparable(records: Iterable[Record]) -> list[str]:
    """Records as texts that are equal for equal runs: without times, settings and incidents, in order."""
    kept = [
        {key: value for key, value in record.items() if key not in MAY_DIFFER}
        for record in records
        if record["event"] not in INCIDENTAL
    ]
    kept.sort(key=lambda r: (r["generation"], r["index"], r["event"], json.dumps(r, sort_keys=True)))
    return [json.dumps(record, sort_keys=True, ensure_ascii=False) for record in kept]
