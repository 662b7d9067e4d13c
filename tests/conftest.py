"""One thread per test process: small tensors gain nothing from more, and runs stay comparable."""

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "default", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "ci", parent=hypothesis.settings.get_profile("default"), derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Iterator[Path]:
    """The folder of real data, or a skip that says how to get one."""
    folder = os.environ.get("EVOPRUNE_DATA")
    if not folder:
        pytest.skip("EVOPRUNE_DATA is not set: it names the folder with the real data sets")
    yield Path(folder)
