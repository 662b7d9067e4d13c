"""A SLURM to submit to."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "slurm.sh"


@pytest.fixture(scope="session")
def slurm() -> Iterator[None]:
    """One that runs already, or one of a single node, started for the session; or a skip that says why."""
    if shutil.which("sinfo") and subprocess.run(["sinfo"], capture_output=True).returncode == 0:
        yield
        return
    if shutil.which("slurmctld") is None or shutil.which("munged") is None:
        pytest.skip("there is no SLURM: as root, `tests/slurm.sh install` installs one")
    if os.geteuid() != 0:
        pytest.skip("starting SLURM's daemons needs root")
    subprocess.run([SCRIPT, "start"], check=True, capture_output=True, timeout=60)
    yield
    subprocess.run([SCRIPT, "stop"], check=True, capture_output=True, timeout=60)
