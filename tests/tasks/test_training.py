"""Training: reproducible to the bit, resumable at any moment, and honest about what goes wrong."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from evoprune import config
from evoprune.errors import ConfigError, DataError, SavedFileError, TrainingError
from evoprune.tasks.batches import HeldSplit, Normalisation
from evoprune.tasks.progress import TrainingProgress
from evoprune.tasks.recipes import Recipe, recipe, recipe_tables
from evoprune.tasks.store import read_weights
from evoprune.tasks.training import (
    CHECKPOINT,
    Epoch,
    accuracy,
    recalibrate,
    seeded,
    state_key,
    train,
)


def network(seed: int = 0, *, classes: int = 3) -> nn.Module:
    """Batch-norm, dropout and a head: everything whose state could get lost."""
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(24, classes),
        )


def split(count: int = 90, seed: int = 0) -> HeldSplit:
    """Three classes that differ in where the image is bright."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 120, (count, 1, 8, 8), generator=generator)
    for label, (rows, columns) in enumerate([(slice(0, 4), slice(0, 4)), (slice(4, 8), slice(4, 8))]):
        images[labels == label, :, rows, columns] += 120
    return HeldSplit(images.byte(), labels, Normalisation((0.3,), (0.2,)))


SGD = Recipe(5, 16, 0.05, schedule="cosine", augment="pad-crop-flip", dropout=0.4)
ADAM = Recipe(5, 16, 0.01, optimizer="adam", weight_decay=1e-4, augment="flip")
BF16 = dataclasses.replace(SGD, bf16=True, channels_last=True, schedule="steps", steps=(0.4, 0.8))
EACH = pytest.mark.parametrize("how", [SGD, ADAM, BF16], ids=["sgd", "adam", "bf16-channels-last"])


class Killed(Exception):
    pass


class KillAt:
    """Stands for a kill: ends the training in the middle of an epoch."""

    def __init__(self, epoch: int, step: int) -> None:
        self.at = (epoch, step)

    def start(self, done: int, epochs: int, steps: int) -> None:
        pass

    def step(self, epoch: int, step: int, means: Callable[[], tuple[float, float]]) -> None:
        if (epoch, step) == self.at:
            raise Killed

    def epoch(self, number: int, result: Epoch) -> None:
        pass


@EACH
def test_training_repeats_to_the_bit(how: Recipe) -> None:
    first, second, other = network(), network(), network()
    torch.manual_seed(1)
    history = train(first, split(), how, seed=3)
    torch.manual_seed(2)
    assert train(second, split(), how, seed=3) == history
    assert state_key(first) == state_key(second)
    train(other, split(), how, seed=4)
    assert state_key(other) != state_key(first)
    assert not first.training


@pytest.mark.parametrize("how", [SGD, ADAM], ids=["sgd", "adam"])
def test_training_learns_what_it_did_not_see(how: Recipe) -> None:
    net = network()
    history = train(net, split(300), dataclasses.replace(how, epochs=10, augment="none"), seed=0)
    assert history[-1].loss < 0.5 * history[0].loss
    assert history[-1].accuracy > 0.9
    assert accuracy(net, split(seed=1)).top1 > 0.9


def test_every_epoch_has_its_own_order_and_dropout() -> None:
    """With a learning rate of almost nothing, the loss of an epoch tells which batches and masks it had."""
    still = dataclasses.replace(SGD, rate=1e-12, schedule="constant")
    losses = [epoch.loss for epoch in train(network(), split(), still, seed=0)]
    assert len(set(losses)) == len(losses)
    shuffled = dataclasses.replace(still, augment="none", dropout=0.0, steps_per_epoch=1)
    losses = [epoch.loss for epoch in train(network(), split(), shuffled, seed=0)]
    assert len(set(losses)) == len(losses)


def test_the_global_generators_are_left_alone() -> None:
    before = torch.get_rng_state()
    train(network(), split(), SGD, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


@EACH
@pytest.mark.parametrize("at", [(0, 3), (2, 1), (2, 5), (4, 2)])
def test_killed_in_an_epoch_and_resumed_is_never_killed(
    how: Recipe, at: tuple[int, int], tmp_path: Path
) -> None:
    whole = network()
    history = train(whole, split(), how, seed=0)
    with pytest.raises(Killed):
        train(network(), split(), how, seed=0, folder=tmp_path, watcher=KillAt(*at))
    resumed = network()
    seen: list[int] = []

    class Watch(KillAt):
        def epoch(self, number: int, result: Epoch) -> None:
            seen.append(number)

    assert train(resumed, split(), how, seed=0, folder=tmp_path, watcher=Watch(-1, -1)) == history
    assert seen == list(range(at[0] + 1, 6)), "only what was not done is done"
    assert state_key(resumed) == state_key(whole)


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from test_training import SGD, network, split
from evoprune.tasks.training import state_key, train
import dataclasses
net = network()
train(net, split(300), dataclasses.replace(SGD, epochs=40), seed=0, folder=Path({folder!r}))
print(state_key(net))
"""


@pytest.mark.heavy
def test_a_real_kill_at_any_moment_changes_nothing(tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.Popen[str]:
        code = CHILD.format(here=str(Path(__file__).parent), folder=str(folder))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
        )

    whole, _ = start(tmp_path / "whole").communicate(timeout=120)
    checkpoint, kills = tmp_path / "killed" / CHECKPOINT, 0
    for wait in (0.0, 0.013, 0.041):
        child = start(tmp_path / "killed")
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
                time.sleep(wait)
                child.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
        child.communicate(timeout=60)
        kills += child.returncode == -signal.SIGKILL
    assert kills >= 2
    resumed, _ = start(tmp_path / "killed").communicate(timeout=120)
    assert resumed == whole != ""


def test_a_finished_training_is_read_back_and_not_repeated(tmp_path: Path) -> None:
    first, second = network(), network()
    history = train(first, split(), SGD, seed=0, folder=tmp_path)
    stamp = (tmp_path / CHECKPOINT).stat().st_mtime_ns
    assert train(second, split(), SGD, seed=0, folder=tmp_path) == history
    assert state_key(first) == state_key(second)
    assert (tmp_path / CHECKPOINT).stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"recipe": dataclasses.replace(SGD, rate=0.06)},
        {"split": split(seed=1)},
        {"network": network(1)},
    ],
    ids=["seed", "recipe", "data", "network"],
)
def test_a_checkpoint_of_another_training_is_refused(other: dict[str, object], tmp_path: Path) -> None:
    train(network(), split(), SGD, seed=0, folder=tmp_path)
    given = {"network": network(), "split": split(), "recipe": SGD, "seed": 0, **other}
    with pytest.raises(TrainingError, match="belongs to another training"):
        train(**given, folder=tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["cut", "foreign", "empty"])
def test_a_damaged_checkpoint_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    train(network(), split(), SGD, seed=0, folder=tmp_path)
    path = tmp_path / CHECKPOINT
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "foreign": b"PK" + content, "empty": b""}[damage])
    with pytest.raises(SavedFileError, match=r"checkpoint\.safetensors"):
        train(network(), split(), SGD, seed=0, folder=tmp_path)


def test_checkpoints_hold_no_pickle_and_leave_nothing_aside(tmp_path: Path) -> None:
    train(network(), split(), SGD, seed=0, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    assert set(read_weights(tmp_path / CHECKPOINT)) == set(network().state_dict())


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_loss_that_is_not_finite_stops_with_the_place(tmp_path: Path) -> None:
    wild = dataclasses.replace(SGD, rate=1e20, schedule="constant", augment="none")
    with pytest.raises(
        TrainingError, match=r"loss is (nan|inf) in epoch 1 of 5, at batch \d.*rate of 1e\+20"
    ):
        train(network(), split(), wild, seed=0, folder=tmp_path)
    assert not (tmp_path / CHECKPOINT).exists()
    broken = network()
    torch.nn.init.constant_(next(broken.parameters()), math.nan)
    with pytest.raises(
        TrainingError, match="at batch 1, before any step was made: look at the network's weights"
    ):
        train(broken, split(), SGD, seed=0)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(DataError, match=r"shape 16 × 2, expected \[image, class\] with 3 classes"):
        train(network(classes=2), split(), SGD, seed=0)
    with pytest.raises(DataError, match="with 3 classes"):
        accuracy(network(classes=2), split())
    frozen = network().requires_grad_(False)
    with pytest.raises(TrainingError, match="no parameters that require gradients"):
        train(frozen, split(), SGD, seed=0)
    with pytest.raises(TrainingError, match="no dropout layer"):
        train(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), split(), SGD, seed=0)


def test_compiled_training_gives_the_plain_network_its_weights() -> None:
    """`compile` trains through torch.compile; here an eager backend stands in for the code generator."""
    with pytest.MonkeyPatch.context() as patch:
        compiled = []
        patch.setattr(torch, "compile", lambda net: compiled.append(net) or net)
        net, plain = network(), network()
        train(net, split(), dataclasses.replace(SGD, compile=True), seed=0)
    train(plain, split(), SGD, seed=0)
    assert compiled == [net]
    assert state_key(net) == state_key(plain)


def test_progress_tells_a_file_in_about_ten_lines_and_a_terminal_with_a_bar(tmp_path: Path) -> None:
    def watched(*, terminal: bool) -> str:
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=120)
        with TrainingProgress("base of x", console=console) as progress:
            train(network(), split(), dataclasses.replace(SGD, epochs=25), seed=0, watcher=progress)
        return out.getvalue()

    lines = watched(terminal=False).splitlines()
    assert 10 <= len(lines) <= 13
    assert re.fullmatch(r"base of x: epoch 2/25  loss \d\.\d{4}  accuracy \d+\.\d\d%  .* s left", lines[0])
    assert "epoch 25/25" in lines[-1] and "left" not in lines[-1]
    assert "epoch 25/25" not in watched(terminal=True).splitlines()[-1], "the bar goes away when it is done"


def test_progress_says_where_a_training_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(network(), split(), SGD, seed=0, folder=tmp_path, watcher=KillAt(3, 1))
    out = io.StringIO()
    with TrainingProgress("x", console=Console(file=out, width=120)) as progress:
        train(network(), split(), SGD, seed=0, folder=tmp_path, watcher=progress)
    assert out.getvalue().startswith("x: goes on after epoch 3 of 5")


# --- recipes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(recipe_tables()))
def test_every_recipe_reads_and_survives_a_dump(name: str) -> None:
    one = recipe(name)
    assert config.build(Recipe, config.parse(config.dump(one))) == one
    assert 0 <= one.rate_at(one.epochs - 1, 0.99) <= one.rate


STEPS, EARLY, COSINE = ("steps", (0.4, 0.8)), ("steps", (0.25, 0.5)), ("cosine", ())
PAD, CROP = "pad-crop-flip", "resized-crop-flip"
PUBLISHED = {  # epochs, batch, optimiser, rate, schedule, factor, decay, dropout, augmentation, scored on
    "lenet5-mnist": (300, 200, "adam", 5e-4, ("constant", ()), None, 7e-5, None, "none", "all"),
    "vgg16-cifar10": (200, 128, "sgd", 0.006, STEPS, 0.28, 1e-3, 0.3, PAD, "all"),
    "resnet38-cifar100": (200, 128, "sgd", 0.1, STEPS, 0.1, 1e-3, None, PAD, "all"),
    "transfer-cifar100": (200, 128, "sgd", 0.05, STEPS, 0.14, 1e-4, None, PAD, "all"),
    "transfer-svhn": (20, 32, "sgd", 0.05, STEPS, 0.14, 1e-4, None, "none", 20_000),
    "transfer-imagenet-vgg16": (30, 128, "sgd", 6e-4, STEPS, 0.4, 1e-4, None, CROP, 10_000),
    "transfer-imagenet-resnet18": (100, 128, "sgd", 6e-4, STEPS, 0.4, 1e-4, None, CROP, 10_000),
    "transfer-imagenet-mobilenetv2": (100, 128, "sgd", 0.03, COSINE, None, 1e-4, None, CROP, 10_000),
    "evolution-imagenet-resnet18": (4, 128, "sgd", 0.001, EARLY, 0.4, 1e-4, None, CROP, 10_000),
}  # fmt: skip


def test_the_published_recipes_are_those_of_the_paper() -> None:
    assert {f"{name}-paper" for name in PUBLISHED} == {n for n in recipe_tables() if n.endswith("-paper")}
    for name, wanted in PUBLISHED.items():
        one = recipe(f"{name}-paper")
        factor = one.factor if one.schedule == "steps" else None
        found = (one.epochs, one.batch_size, one.optimizer, one.rate, (one.schedule, one.steps), factor)
        found += (one.weight_decay, one.dropout, one.augment, one.scoring_images)  # type: ignore[assignment]
        assert (found, one.momentum) == (wanted, 0.9), name


def test_the_published_schedules() -> None:
    vgg = recipe("vgg16-cifar10-paper")
    rates = {epoch: vgg.rate_at(epoch) for epoch in (0, 79, 80, 159, 160, 199)}
    expected = [0.006, 0.006, 0.006 * 0.28, 0.006 * 0.28, 0.006 * 0.28**2, 0.006 * 0.28**2]
    assert list(rates.values()) == pytest.approx(expected)
    imagenet = recipe("evolution-imagenet-resnet18-paper")
    assert [imagenet.rate_at(epoch) for epoch in range(4)] == pytest.approx([1e-3, 4e-4, 1.6e-4, 1.6e-4])
    lenet = recipe("lenet5-mnist-paper")
    assert (lenet.epochs, lenet.batch_size, lenet.weight_decay) == (300, 200, 7e-5)
    assert {lenet.rate_at(epoch) for epoch in range(300)} == {5e-4}
    resnet = recipe("resnet38-cifar100-paper")
    assert [resnet.rate_at(epoch) for epoch in (79, 80, 160)] == pytest.approx([0.1, 0.01, 0.001])


def test_cosine_and_warmup_have_their_ends() -> None:
    how = Recipe(10, 8, 0.2, schedule="cosine", warmup=0.1)
    assert how.rate_at(0) == 0
    assert how.rate_at(0, 0.5) == pytest.approx(0.1, rel=0.01)
    assert how.rate_at(1) == pytest.approx(0.2)
    assert how.rate_at(9, 0.999) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": -1},
        {"batch_size": 0},
        {"rate": 0.0},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"dropout": 1.0},
        {"schedule": "steps"},
        {"steps": (0.5,)},
        {"schedule": "steps", "steps": (1.5,)},
        {"scoring_images": 0},
        {"steps_per_epoch": 0},
        {"recalibrate": -1},
    ],
)
def test_a_recipe_out_of_range_is_refused(wrong: dict[str, object]) -> None:
    given = {"epochs": 1, "batch_size": 1, "rate": 0.1, **wrong}
    with pytest.raises(ConfigError, match=next(reversed(wrong))):
        Recipe(**given)  # type: ignore[arg-type]


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'lenet5-mnist-paper'"):
        recipe("lenet5-mnist-papr")


# --- judging --------------------------------------------------------------------------------------------


class Fixed(nn.Module):
    """Gives each image the outputs that its first pixel numbers."""

    def __init__(self, outputs: torch.Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.outputs[(images[:, 0, 0, 0] * 255).round().long()]


def test_accuracy_counts_top1_and_top5_over_all_batches() -> None:
    outputs = torch.rand(103, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 12, (103,), generator=torch.Generator().manual_seed(1))
    images = torch.arange(103, dtype=torch.uint8).reshape(-1, 1, 1, 1)
    data = HeldSplit(images, labels, Normalisation((0.0,), (1.0,)))
    order = outputs.argsort(1, descending=True)
    for batch_size in (1, 10, 103, 500):
        found = accuracy(Fixed(outputs), data, batch_size=batch_size)
        assert found.top1 == (order[:, 0] == labels).sum() / 103
        assert found.top5 == pytest.approx(float((order[:, :5] == labels[:, None]).any(1).float().mean()))
        assert found.loss == pytest.approx(float(nn.functional.cross_entropy(outputs, labels)), rel=1e-5)
        assert found.images == 103


def test_accuracy_leaves_every_mode_as_it_was() -> None:
    net = network().train()
    net[1].eval()
    modes = [module.training for module in net.modules()]
    before = state_key(net)
    judged = accuracy(net, split())
    assert [module.training for module in net.modules()] == modes
    assert state_key(net) == before
    assert judged == accuracy(net.eval(), split()), "judged in evaluation mode"


def test_recalibration_gives_the_statistics_of_the_images() -> None:
    net, data = network().eval(), split()
    net[1].running_mean.fill_(100.0)
    momentum = net[1].momentum
    recalibrate(net, data, 90, batch_size=90)
    with torch.no_grad():
        maps = net[0](next(data.ordered(90))[0])
    assert torch.allclose(net[1].running_mean, maps.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(net[1].running_var, maps.var((0, 2, 3)), rtol=1e-4)
    assert net[1].momentum == momentum
    assert not any(module.training for module in net.modules())
