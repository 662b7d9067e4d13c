"""Training and judging networks: one loop, its checkpoints, accuracy, batch-norm recalibration.

Every random choice of an epoch is derived from the seed and the epoch's number, so that a checkpoint needs no
state of a random generator: the epoch after it is the same, whoever runs it. With one thread (or the same
number of threads on the same machine) a training gives the same weights, to the bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from evoprune import config
from evoprune.errors import DataError, SavedFileError, TrainingError
from evoprune.pruning.recalibrate import recalibrate as renew
from evoprune.tasks.batches import Split
from evoprune.tasks.recipes import Recipe
from evoprune.tasks.store import read_tensors, write_tensors

CHECKPOINT = "checkpoint.safetensors"
FORMAT = "evoprune training 1"


@dataclass(frozen=True)
class Epoch:
    """What an epoch of training was like: means over its images, as they were met."""

    loss: float
    accuracy: float
    rate: float
    seconds: float = field(compare=False)


History = tuple[Epoch, ...]


class Watcher(Protocol):
    """Something that is told how a training goes."""

    def start(self, done: int, epochs: int, steps: int) -> None:
        """Before the first batch: how many of the epochs are done already, and the batches of each."""

    def step(self, epoch: int, step: int, means: Callable[[], tuple[float, float]]) -> None:
        """After a batch (the first is 1) of an epoch (the first is 0); `means` gives loss and accuracy."""

    def epoch(self, number: int, result: Epoch) -> None:
        """After an epoch (the first is 1), with its checkpoint written."""


@dataclass(frozen=True)
class Accuracy:
    """How a network did on a split: shares of its images, and the mean cross-entropy."""

    top1: float
    top5: float
    loss: float
    images: int


def train(
    network: nn.Module,
    split: Split,
    recipe: Recipe,
    *,
    seed: int,
    folder: Path | None = None,
    watcher: Watcher | None = None,
) -> History:
    """Train `network` in place, on the device of the split.

    With a `folder`, a checkpoint is written there after every epoch, and a training that was stopped goes on
    from the last one, to the same weights as if it had not been.
    """
    device = split.device
    network.to(device)
    if recipe.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.dropout is not None:
        set_dropout(network, recipe.dropout)
    optimizer = _optimizer(network, recipe)
    history: History = ()
    key = _key(network, split, recipe, seed) if folder is not None else ""
    if folder is not None and (folder / CHECKPOINT).exists():
        history = _resume(network, optimizer, folder / CHECKPOINT, key)
    forward = torch.compile(network) if recipe.compile else network
    steps = max(1, len(split) // recipe.batch_size)
    steps = min(steps, recipe.steps_per_epoch or steps)

    if watcher is not None:
        watcher.start(len(history), recipe.epochs, steps)
    for number in range(len(history), recipe.epochs):
        started, tally = time.monotonic(), _Tally(device)
        network.train()
        with _seeded_epoch(seed, number, device) as epoch_seed:
            batches = split.shuffled(recipe.batch_size, seed=epoch_seed, augment=recipe.augment)
            for step, (images, labels) in enumerate(itertools.islice(batches, steps)):
                for group in optimizer.param_groups:
                    group["lr"] = recipe.rate_at(number, step / steps)
                if recipe.channels_last:
                    images = images.contiguous(memory_format=torch.channels_last)
                with torch.autocast(device.type, torch.bfloat16, enabled=recipe.bf16):
                    outputs = forward(images)
                if number == len(history) and step == 0:
                    _check_outputs(outputs, split)
                loss = functional.cross_entropy(outputs.float(), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                tally.add(loss.detach(), outputs.detach(), labels)
                if (
                    device.type == "cpu" or step % 25 == 0
                ):  # elsewhere a look at the loss waits for the device
                    _check_finite(tally.loss, recipe, number, step, steps)
                if watcher is not None:
                    watcher.step(number, step + 1, tally.means)
            _check_finite(tally.loss, recipe, number, steps - 1, steps)
        loss_mean, accuracy_mean = tally.means()
        rate = recipe.rate_at(number)
        result = Epoch(loss_mean, accuracy_mean, rate, seconds=time.monotonic() - started)
        history = (*history, result)
        if folder is not None:
            _save(network, optimizer, folder / CHECKPOINT, key, history)
        if watcher is not None:
            watcher.epoch(number + 1, result)
    network.eval()
    return history


class _Tally:
    """Sums over the images of an epoch, kept on the device."""

    def __init__(self, device: torch.device) -> None:
        self.loss = torch.zeros((), dtype=torch.float64 if device.type == "cpu" else None, device=device)
        self.right = torch.zeros((), dtype=torch.int64, device=device)
        self.images = 0

    def add(self, loss: Tensor, outputs: Tensor, labels: Tensor) -> None:
        self.loss += loss * len(labels)
        self.right += (outputs.argmax(1) == labels).sum()
        self.images += len(labels)

    def means(self) -> tuple[float, float]:
        return self.loss.item() / self.images, self.right.item() / self.images


def _check_finite(loss: Tensor, recipe: Recipe, epoch: int, step: int, steps: int) -> None:
    if math.isfinite(loss.item()):
        return
    told = f"the loss is {loss.item()} in epoch {epoch + 1} of {recipe.epochs}, at batch {step + 1}"
    if epoch == step == 0:
        raise TrainingError(f"{told}, before any step was made: look at the network's weights and the images")
    rate = recipe.rate_at(epoch, step / steps)
    raise TrainingError(f"{told}, with a learning rate of {rate:g}; a smaller rate, or warmup, usually helps")


def _check_outputs(outputs: Tensor, split: Split) -> None:
    """One output per class, or the labels would mean nothing."""
    classes = int(split.labels.max()) + 1
    if outputs.ndim != 2 or outputs.shape[1] < classes:
        shape = " × ".join(map(str, outputs.shape))
        raise DataError(
            f"the network gives outputs of shape {shape}, expected [image, class] with {classes} classes"
        )


def _optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not parameters:
        raise TrainingError("the network has no parameters that require gradients, so it cannot be trained")
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=recipe.rate, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        parameters,
        lr=recipe.rate,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
    )


def set_dropout(network: nn.Module, ratio: float) -> None:
    """Set the ratio of every dropout layer."""
    layers = [
        module for module in network.modules() if isinstance(module, (nn.Dropout, nn.Dropout1d, nn.Dropout2d))
    ]
    if not layers and ratio:
        raise TrainingError(f"the recipe asks for dropout {ratio:g}, but the network has no dropout layer")
    for layer in layers:
        layer.p = ratio


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run with the global generators seeded, and give them back as they were.

    For what draws from them and takes no generator: the initial weights of layers, and dropout.
    """
    device = torch.device(device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed(seed)
        yield


@contextlib.contextmanager
def _seeded_epoch(seed: int, epoch: int, device: torch.device) -> Iterator[int]:
    """The seed that all of an epoch's random choices come from."""
    derived = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
    with contextlib.ExitStack() as stack:
        stack.enter_context(seeded(derived, device))
        if device.type == "cuda":
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True))
        yield derived


# --- checkpoints ------------------------------------------------------------------------------------------


def _key(network: nn.Module, split: Split, recipe: Recipe, seed: int) -> str:
    """What makes two trainings the same: where they start from, the data, the recipe, the seed."""
    digest = hashlib.sha256(f"{config.dump(recipe)}\n{seed}\n{split.key()}".encode())
    digest.update(state_key(network).encode())
    return digest.hexdigest()[:16]


def state_key(network: nn.Module) -> str:
    """A hash of the names, shapes and values of a network's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _save(
    network: nn.Module, optimizer: torch.optim.Optimizer, path: Path, key: str, history: History
) -> None:
    """Everything the next epoch needs, in one file, so that no kill can leave parts that do not fit."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items() if value is not None}
    header = {"format": FORMAT, "key": key, "history": json.dumps([asdict(epoch) for epoch in history])}
    write_tensors(path, tensors, header)


def _resume(network: nn.Module, optimizer: torch.optim.Optimizer, path: Path, key: str) -> History:
    tensors, header = read_tensors(path, FORMAT)
    if header.get("key") != key:
        raise TrainingError(
            f"{path} belongs to another training: another network, data, recipe or seed. Choose another "
            "folder, or remove it to train anew"
        )
    try:
        history = tuple(Epoch(**epoch) for epoch in json.loads(header["history"]))
        weights = {
            name.removeprefix("network."): value
            for name, value in tensors.items()
            if name.startswith("network.")
        }
        network.load_state_dict(weights)
        state: dict[int, dict[str, Any]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, number, what = name.split(".", 2)
                state.setdefault(int(number), {})[what] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise SavedFileError(f"{path} cannot be continued from: {error}") from None
    return history


# --- judging ----------------------------------------------------------------------------------------------


def accuracy(network: nn.Module, split: Split, *, batch_size: int = 500) -> Accuracy:
    """How the network does on a split, in evaluation mode and float32; it is left in the mode it had."""
    if len(split) == 0:
        raise DataError("there are no images to judge the network on")
    network.to(split.device)
    right1 = right5 = 0
    loss = 0.0
    with evaluating(network), torch.no_grad():
        for number, (images, labels) in enumerate(split.ordered(batch_size)):
            outputs = network(images).float()
            if number == 0:
                _check_outputs(outputs, split)
            best = outputs.topk(min(5, outputs.shape[1]), dim=1).indices == labels[:, None]  # [image, rank]
            right1 += int(best[:, 0].sum())
            right5 += int(best.sum())
            loss += float(functional.cross_entropy(outputs, labels, reduction="sum"))
    total = len(split)
    return Accuracy(right1 / total, right5 / total, loss / total, total)


def recalibrate(network: nn.Module, split: Split, images: int, *, batch_size: int = 200) -> None:
    """Renew, in place, the statistics of all batch-norms from about this many images; 0 leaves them."""
    if images < 1:
        return
    batch_size = min(batch_size, images, len(split))
    # Shuffled: files in the order of their classes would make batches of one class.
    batches = split.shuffled(batch_size, seed=0, augment="none")
    renew(network, itertools.islice(batches, images // batch_size))


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode, and each module's own mode afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
