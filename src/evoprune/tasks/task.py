"""A task: network + data + what is cut + how it is retrained. The unit of fitness and of every result."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from evoprune import config
from evoprune.errors import ConfigError, SavedFileError
from evoprune.tasks.batches import Split
from evoprune.tasks.datasets import Data, load_data, stratified
from evoprune.tasks.settings import Settings, settings
from evoprune.tasks.store import read_tensors, read_weights, write_tensors
from evoprune.tasks.training import CHECKPOINT, Accuracy, Watcher, accuracy, seeded, train

On = Literal["validation", "test"]
BASE_FORMAT = "evoprune base 1"


@dataclass(frozen=True, eq=False)
class Task:
    """A task that can be run: its settings, and where what is made once for it is kept.

    `folder` holds the trained base network and what is computed from it; processes that share it share those.
    Nothing is loaded, built or trained before it is needed.
    """

    settings: Settings
    folder: Path | None = None
    device: str = "cpu"
    _made: dict[str, Any] = field(default_factory=dict, repr=False)  # the base network, once it is made

    @classmethod
    def from_spec(
        cls,
        spec: str | Path | Mapping[str, Any],
        *,
        overrides: Iterable[str] = (),
        folder: str | Path | None = None,
        device: str = "cpu",
    ) -> Task:
        """A task of the package by name, from a TOML file, or from the table that `spec` gave."""
        return cls(settings(spec, overrides), Path(folder) if folder is not None else None, device)

    @property
    def spec(self) -> config.Table:
        """Everything that `from_spec` needs in another process, as a table for TOML."""
        table: config.Table = config.to_table(self.settings)
        return table

    @property
    def name(self) -> str:
        return self.settings.name

    @cached_property
    def data(self) -> Data:
        return load_data(self.settings.data, device=self.device)

    @cached_property
    def scoring(self) -> Split:
        """The training images that channels are scored on; none of them is in the validation split."""
        wanted, train_split = self.settings.recipe.scoring_images, self.data.train
        if wanted == "all" or wanted >= len(train_split):
            return train_split
        return train_split.take(stratified(train_split.labels.numpy(), wanted, self.settings.base_seed)[0])

    def example(self) -> torch.Tensor:
        """An input of the network's shape: `[1, channel, y, x]`."""
        return torch.zeros(1, *self.data.shape, device=self.device)

    # --- the base network -------------------------------------------------------------------------------

    def untrained(self) -> nn.Module:
        """The network with its initial weights, which come from the base seed."""
        with seeded(self.settings.base_seed, self.device):
            return build(self.settings.network, self.settings.options).to(self.device)

    def base(self, watcher: Watcher | None = None) -> nn.Module:
        """The trained network that is scored and cut; trained when it is first needed, then read back."""
        if "base" not in self._made:
            self._made["base"] = self._base(watcher).eval()
        network: nn.Module = self._made["base"]
        return network

    def _base(self, watcher: Watcher | None) -> nn.Module:
        network = self.untrained()
        if self.settings.weights is not None:
            return _with_weights(network, read_weights(self.settings.weights), self.settings.weights)
        if self.base_folder is None:
            train(network, self.data.train, self.settings.base, seed=self.settings.base_seed, watcher=watcher)
            return network
        path = self.base_folder / "base.safetensors"
        if path.exists():
            weights, header = read_tensors(path, BASE_FORMAT)
            if header.get("data") != self.data.key:
                raise SavedFileError(
                    f"{path} was trained on other images of {self.data.name!r} than those here"
                )
            return _with_weights(network, weights, path)
        train(
            network,
            self.data.train,
            self.settings.base,
            seed=self.settings.base_seed,
            folder=self.base_folder,
            watcher=watcher,
        )
        header = {"format": BASE_FORMAT, "data": self.data.key, "settings": config.dump(self.settings)}
        write_tensors(path, network.state_dict(), header)
        (self.base_folder / CHECKPOINT).unlink(missing_ok=True)
        return network

    @property
    def base_folder(self) -> Path | None:
        """Where the base network is; another network, data, recipe or seed has another folder."""
        if self.folder is None:
            return None
        chosen = self.settings
        parts = {
            "network": chosen.network,
            "options": dict(chosen.options),
            "data": chosen.data,
            "base": chosen.base,
            "seed": chosen.base_seed,
        }
        return self.folder / f"base-{hashlib.sha256(config.dump(parts).encode()).hexdigest()[:10]}"

    def judge(self, network: nn.Module, on: On) -> Accuracy:
        """A network's accuracy on the validation split, or, for a final result, on the test images."""
        return accuracy(network, self.data.validation if on == "validation" else self.data.test)


def build(network: str, options: Mapping[str, Any]) -> nn.Module:
    """Call a `module:factory` with its options."""
    module_name, _, name = network.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"network {network!r}: there is no module {error.name!r}; it must be importable, "
            "installed or below the folder you are in"
        ) from None
    except Exception as error:
        raise ConfigError(f"network {network!r}: importing {module_name} failed: {error!r}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        made = [
            other for other, value in vars(module).items() if callable(value) and not other.startswith("_")
        ]
        raise ConfigError(config.unknown_key(name, made, where=module_name, what="factory"))
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"network {network!r} cannot be called with the options {dict(options)}: {error}; "
            f"it takes {inspect.signature(factory)}"
        ) from None
    made = factory(**options)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"network {network!r} gave {type(made).__name__}, expected a torch.nn.Module")
    return made


def _with_weights(network: nn.Module, weights: Mapping[str, torch.Tensor], path: Path) -> nn.Module:
    own = network.state_dict()
    # Counts of batches are no weights, and older files have none.
    missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    unknown = [name for name in weights if name not in own]
    shapes = [
        f"{name} {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    problems = {"lacks": missing, "has besides": unknown, "has in other shapes": shapes}
    told = [
        f"it {what} {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
        for what, names in problems.items()
        if names
    ]
    if told:
        raise SavedFileError(f"{path} does not fit the network {type(network).__name__}: {'; '.join(told)}")
    network.load_state_dict(
        {name: value.to(own[name].dtype) for name, value in weights.items()}, strict=False
    )
    return network
