"""What is freed is kept for the next request, as training makes the same ones over and over.

Left to itself, glibc gives large freed blocks back to the system and asks for them again, page by page and
zeroed: much of the time that a small network trains on a CPU. Other C libraries take no notice.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

import numpy as np

_MAPPED, _TRIMMED = 2**25, 2**30  # bytes: larger blocks are returned alone, freed ones together

ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(_MAPPED), "MALLOC_TRIM_THRESHOLD_": str(_TRIMMED)}
"""What has a new process keep what it frees."""


def keep_freed() -> None:
    """The same for this process, unless its environment says what is to be done."""
    if ENVIRONMENT.keys() & os.environ.keys():
        return
    with suppress(OSError, AttributeError, TypeError):  # no glibc
        library = ctypes.CDLL(None)
        # Keeping freed blocks helps only where large ones are not mapped; M_MMAP_THRESHOLD, M_TRIM_THRESHOLD.
        if library.mallopt(-3, _MAPPED):
            library.mallopt(-1, _TRIMMED)


def expect_large_blocks() -> None:
    """Have glibc keep freed blocks of up to 32 MiB, as it does of itself once one so large has come and gone.

    Nothing is set: a program that has made its own choice keeps it.
    """
    np.empty(_MAPPED - 2**16, dtype=np.uint8)  # no larger with what glibc adds to it
