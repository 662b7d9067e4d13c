"""How a network is trained: a frozen recipe, and the recipes by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from evoprune import config
from evoprune.errors import ConfigError
from evoprune.tasks.batches import Augmentation


@dataclass(frozen=True)
class Recipe:
    """Everything about a training but the network, the data and the seed."""

    epochs: int
    batch_size: int
    rate: float
    """The learning rate that the schedule starts from."""
    optimizer: Literal["adam", "sgd"] = "sgd"
    """`sgd` has Nesterov momentum; weight decay is L2 in both."""
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Literal["constant", "steps", "cosine"] = "constant"
    steps: tuple[float, ...] = ()
    """Shares of the epochs at which the rate is multiplied by `factor` (schedule `steps`)."""
    factor: float = 0.1
    warmup: float = 0.0
    """The share of the training during which the rate grows linearly from 0."""
    dropout: float | None = None
    """The ratio set on every dropout layer; without it they stay as the network has them."""
    augment: Augmentation = "none"
    scoring_images: int | Literal["all"] = "all"
    """How many training images the channels are scored on, drawn at random, stratified by class."""
    recalibrate: int = 0
    """How many training images renew the batch-norm statistics after a cut; 0 leaves them."""
    steps_per_epoch: int | None = None
    """Ends every epoch after so many batches."""
    bf16: bool = False
    """Run the network in bfloat16 where autocast finds it safe."""
    channels_last: bool = False
    compile: bool = False
    """Compile the network with torch.compile; the first steps then take minutes."""

    def __post_init__(self) -> None:
        positive = {"batch_size": self.batch_size, "rate": self.rate, "factor": self.factor}
        for name, value in positive.items():
            if not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value:g}")
        not_negative = {
            "epochs": self.epochs,
            "weight_decay": self.weight_decay,
            "recalibrate": self.recalibrate,
        }
        for name, value in not_negative.items():
            if value < 0:
                raise ConfigError(f"{name} must be 0 or more, got {value:g}")
        shares = {"momentum": self.momentum, "warmup": self.warmup, "dropout": self.dropout or 0.0}
        for name, value in [*shares.items(), *(("steps", step) for step in self.steps)]:
            if not 0 <= value < 1:
                raise ConfigError(f"{name} must lie in [0, 1), got {value:g}")
        if self.schedule == "steps" and not self.steps:
            raise ConfigError("schedule = 'steps' needs steps: shares of the epochs, like [0.4, 0.8]")
        if self.schedule != "steps" and self.steps:
            raise ConfigError(f"steps belong to schedule = 'steps', not to {self.schedule!r}")
        if self.scoring_images != "all" and self.scoring_images < 1:
            raise ConfigError(f"scoring_images must be 'all' or 1 and more, got {self.scoring_images}")
        if self.steps_per_epoch is not None and self.steps_per_epoch < 1:
            raise ConfigError(f"steps_per_epoch must be 1 or more, got {self.steps_per_epoch}")

    def rate_at(self, epoch: int, within: float = 0.0) -> float:
        """The learning rate `within` (0 to 1) an epoch, epochs counted from 0."""
        done = (epoch + within) / self.epochs
        rate = self.rate
        if self.schedule == "steps":
            # Whole epochs count, so that 0.4 of 200 epochs is epoch 80 and nothing moves within an epoch.
            rate *= self.factor ** sum(epoch >= round(step * self.epochs) for step in self.steps)
        elif self.schedule == "cosine":
            after_warmup = max(0.0, done - self.warmup) / (1 - self.warmup)
            rate *= 0.5 * (1 + math.cos(math.pi * after_warmup))
        if done < self.warmup:
            rate *= done / self.warmup
        return rate

    def described(self) -> str:
        """The recipe in a few words, for tables."""
        decay = {
            "constant": "",
            "cosine": " cosine",
            "steps": f" ×{self.factor:g} at {', '.join(f'{step:.0%}' for step in self.steps)}",
        }[self.schedule]
        return f"{self.epochs} epochs × {self.batch_size}, {self.optimizer} {self.rate:g}{decay}"


def recipe_tables() -> dict[str, config.Table]:
    """The recipes that come with the package, as tables by name."""
    text = (files("evoprune.tasks") / "assets" / "recipes.toml").read_text(encoding="utf-8")
    return config.parse(text, where="recipes.toml of the package")


def recipe(name: str) -> Recipe:
    """A recipe of the package."""
    tables = recipe_tables()
    if name not in tables:
        raise ConfigError(config.unknown_key(name, tables, what="recipe"))
    return config.build(Recipe, tables[name], where=f"recipe {name}")
