"""Writing so that a reader never meets half a file, and what to say when the disk refuses."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evoprune.errors import RunError

# Errors of the machine, not of a function under evaluation: the run stops and can be resumed.
REFUSALS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE}
)


def write(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Write aside, then rename: afterwards the file is the old one or the new one, whole.

    `sync` also makes it survive a loss of power.
    """
    data = content.encode() if isinstance(content, str) else content
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        aside.replace(path)
        if sync:
            sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, table: Any) -> None:
    """Plain values as one line of JSON, written aside and renamed."""
    write(path, json.dumps(table, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any | None:
    """What `write_json` wrote; None where there is nothing, or nothing that can be read."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def sweep(folder: Path) -> None:
    """Remove what killed processes wrote aside and never renamed."""
    for left in folder.glob("**/.*.tmp"):
        with suppress(OSError):
            left.unlink()


@contextmanager
def refusals_said(doing: str) -> Iterator[None]:
    """Turn what the system refuses into a RunError that says what was being done."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise RunError(f"{doing} failed: {error.strerror or error}{where}") from error
