"""Every task of the package, end to end: two steps per epoch on small files in the real layout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import layouts
import pytest

from evoprune.errors import DataError
from evoprune.tasks.settings import task_tables
from evoprune.tasks.task import named

STEPS = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 16}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layouts.everything(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", list(task_tables()))
def test_a_task_runs_from_data_to_result(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOPRUNE_DATA", str(root))
    data = {"image_size": 64, "workers": 1, "validation": 0.1} if name == "resnet18-imagenet" else {}
    task = named(name, data=data, base={**STEPS, "rate": 1e-4}, recipe={**STEPS, "scoring_images": 40})
    kept = task.kept("xi_star")
    result = task.evaluate(kept, 0)
    assert 0 <= result.accuracy <= 1
    assert result.macs < result.macs_base
    assert set(kept.channels) == {site.name for site in task.surgeon.sites}
    assert task.evaluate(kept, 0) == result


def test_a_network_that_cannot_take_the_images_is_refused() -> None:
    task = named("digits", network="evoprune.networks:shapes_net")
    with pytest.raises(DataError, match=r"shapes_net.*images \[channel, y, x\] of 1 × 8 × 8"):
        task.base()


ALONE = """
import sys
for name in ("sklearn", "datasets", "pyarrow", "PIL", "pandas", "scipy"):
    sys.modules[name] = None
from evoprune.tasks.datasets import load_data
print(len(load_data("digits").train), len(load_data("shapes").train))
try:
    load_data("mnist")
except Exception as error:
    print(type(error).__name__, error)
"""


def test_the_embedded_sets_need_nothing_that_is_optional(tmp_path: Path) -> None:
    layouts.plain(tmp_path, "mnist", (28, 28), count=20)
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        capture_output=True,
        text=True,
        env={"EVOPRUNE_DATA": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1294 5400\nMissingExtraError")
    assert "pip install 'evoprune[data]'" in done.stdout
