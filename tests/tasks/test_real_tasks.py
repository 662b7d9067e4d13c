"""On the real data sets and weights, where they are: see `EVOPRUNE_DATA`."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoprune.tasks.batches import Batches
from evoprune.tasks.datasets import DataConfig, load_data
from evoprune.tasks.task import named

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    ("name", "shape", "train", "test"),
    [
        ("mnist", (1, 28, 28), 60_000, 10_000),
        pytest.param("fashion_mnist", (1, 28, 28), 60_000, 10_000, marks=pytest.mark.heavy),
        pytest.param("cifar10", (3, 32, 32), 50_000, 10_000, marks=pytest.mark.heavy),
    ],
)
def test_a_data_set_is_whole_and_normalised(
    name: str, shape: tuple[int, ...], train: int, test: int, real_data: Path
) -> None:
    data = load_data(name, folder=real_data)
    assert data.shape == shape
    assert len(data.train) + len(data.validation) == train
    assert len(data.validation) == train // 10
    assert len(data.test) == test
    assert len(data.classes) == 10
    images, _ = next(iter(Batches(data.train, 2000)))
    assert abs(float(images.mean())) < 0.05
    assert abs(float(images.std()) - 1) < 0.05


def test_imagenet_like_files_are_held_or_streamed_alike(
    real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evoprune.tasks import datasets

    if not (real_data / "imagenette").is_dir():
        pytest.skip(f"{real_data} has no imagenette")
    config = DataConfig("imagenette", label="imagenet_label", normalise="half", image_size=64, workers=0)
    held = load_data(config, folder=real_data)
    monkeypatch.setattr(datasets, "HELD_LIMIT", 0)
    streamed = load_data(config, folder=real_data)
    assert len(held.classes) == 702
    one, _ = next(held.validation.ordered(16))
    other, _ = next(streamed.validation.ordered(16))
    assert (one == other).all()


@pytest.mark.heavy
def test_lenet5_learns_mnist_in_two_epochs(real_data: Path, tmp_path: Path) -> None:
    """The whole recipe reaches 99.2 % (see docs/tasks.md); two epochs of it already 98 %."""
    task = named("lenet5-mnist", folder=tmp_path, base={"epochs": 2}, recipe={"epochs": 1})
    accuracy = task.base().accuracy
    assert accuracy is not None and accuracy > 0.98
    result = task.evaluate(task.kept("xi_star"), 0)
    assert 1 - result.macs / result.macs_base == pytest.approx(0.924, abs=5e-4)
    assert 1 - result.parameters / result.parameters_base == pytest.approx(0.980, abs=5e-4)
    assert result.accuracy > 0.9


@pytest.mark.heavy
def test_published_weights_score_what_they_should_on_test(real_data: Path) -> None:
    weights = real_data / "checkpoints" / "resnet20-12fca82f.th"
    if not weights.is_file():
        pytest.skip(f"{weights} is not there")
    task = named("resnet20-cifar10", weights=str(weights))
    assert task.base().accuracy is None, "they have seen every training image"
    assert round(task.base_on_test.top1, 4) == 0.9173
