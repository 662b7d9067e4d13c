"""JSON in a run's folder, and what to say when the disk refuses."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evoprune.errors import RunError
from evoprune.files import write

# Errors of the machine, not of a function under evaluation: the run stops and can be resumed.
REFUSALS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE}
)


def write_json(path: Path, table: Any, *, sync: bool = True) -> None:
    """Plain values as one line of JSON, written aside and renamed."""
    write(path, json.dumps(table, allow_nan=False, ensure_ascii=False) + "\n", sync=sync)


def read_json(path: Path) -> Any | None:
    """What `write_json` wrote; None where there is nothing, or nothing that can be read."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


FORGOTTEN = 24 * 3600.0
"""Seconds after which a file that another machine wrote aside is not going to be renamed any more."""


def sweep(folder: Path) -> None:
    """Remove what killed processes wrote aside and never renamed; others may be writing right now."""
    for left in folder.glob("**/.*.tmp"):
        with suppress(OSError):
            if _is_left(left):
                left.unlink()


def _is_left(aside: Path) -> bool:
    writer, _, process = aside.name.removesuffix(".tmp").rpartition("-")
    if not writer.endswith(f".{os.uname().nodename}"):
        return time.time() - aside.stat().st_mtime > FORGOTTEN
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return True
    except PermissionError:  # it is another user's
        return False
    return int(process) == os.getpid()


@contextmanager
def refusals_said(doing: str) -> Iterator[None]:
    """Turn what the system refuses into a RunError that says what was being done."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise RunError(f"{doing} failed: {error.strerror or error}{where}") from error
