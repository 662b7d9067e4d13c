"""What is freed is kept for the next request."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from evoprune.allocator import ENVIRONMENT
from evoprune.runs.executors import surroundings

# Prints how often the system had to hand out a page while 50 times four blocks of 8 MiB came and went.
COUNTED = """
import resource
import numpy as np

{first}
np.ones(2**20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    several = [np.ones(2**20) for _ in range(4)]
    del several
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
KEPT = "from evoprune.allocator import keep_freed; keep_freed()"

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


def pages(first: str = "", **environment: str) -> int:
    bare = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    command = [sys.executable, "-c", COUNTED.format(first=first)]
    run = subprocess.run(command, env=bare | environment, capture_output=True, text=True, check=True)
    return int(run.stdout)


def test_freed_blocks_are_not_asked_for_anew() -> None:
    kept = pages(KEPT)
    assert pages() > 10 * kept
    assert pages(**ENVIRONMENT) < 2 * kept


def test_one_large_block_teaches_the_same() -> None:
    learnt = "from evoprune.allocator import expect_large_blocks; expect_large_blocks()"
    assert pages() > 10 * pages(learnt)
    assert pages(learnt, MALLOC_MMAP_THRESHOLD_="65536") > 10 * pages(learnt)


def test_workers_keep_what_they_free_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    assert surroundings(1).items() >= ENVIRONMENT.items()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    assert surroundings(1)["MALLOC_TRIM_THRESHOLD_"] == "0"
    assert pages(KEPT, MALLOC_TRIM_THRESHOLD_="0") > 10 * pages(KEPT)
