"""What the commands on tasks have in common: which task, whose recipe, and where."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from evoprune import config
from evoprune.commands._parsing import plain
from evoprune.errors import ConfigError

if TYPE_CHECKING:
    from evoprune.tasks.task import Task


@dataclass(frozen=True)
class CutOptions:
    """What is cut, where it is not what the task says. At most one of ratio, flops and params."""

    ratio: Annotated[float | None, plain("SHARE")] = None
    """The share of channels that goes, at every site."""
    flops: Annotated[float | None, plain("SHARE")] = None
    """The share of multiply-accumulates that goes, like 0.56."""
    params: Annotated[float | None, plain("SHARE")] = None
    """The share of parameters that goes."""
    selection: Annotated[bool | None, tyro.conf.FlagConversionOff, plain()] = None
    """Whether residual streams keep their width, and blocks choose the channels they read."""
    ignore: Annotated[tuple[str, ...], plain("SITE [SITE …]")] = ()
    """Sites that stay whole."""

    def over(self, cut: Mapping[str, Any]) -> dict[str, Any]:
        """The table of a cut with these laid over it."""
        targets = {"ratio": self.ratio, "flops": self.flops, "params": self.params}
        given = {name: value for name, value in targets.items() if value is not None}
        if len(given) > 1:
            raise ConfigError(f"give one of --ratio, --flops and --params, not {' and '.join(given)}")
        table = dict(cut)
        if given:  # another target takes the place of the task's own
            table = {key: value for key, value in table.items() if key not in (*targets, "kept", "per_site")}
            table |= given
        if self.selection is not None:
            table["selection"] = self.selection
        if self.ignore:
            table["ignore"] = list(self.ignore)
        return table


@dataclass(frozen=True)
class Which:
    """Which task: one by name or TOML file, or a network and data of your own."""

    task: Annotated[str, tyro.conf.Positional, plain("[TASK]")] = ""
    """A task by name (`evoprune tasks` lists them) or TOML file; none with --model."""
    model: Annotated[str | None, plain("MODULE:FACTORY")] = None
    """Your own network: package.module:factory."""
    weights: Annotated[Path | None, plain("FILE")] = None
    """Its weights: safetensors, or a PyTorch file of tensors. Also replaces the base of a named task."""
    data: Annotated[str | None, plain("NAME|FOLDER")] = None
    """Your own data: the name of a data set, or a folder of parquet files or class folders."""
    image_size: Annotated[int | None, plain("PIXELS")] = None
    """Scale the images of --data to squares of this size."""
    normalise: Annotated[Literal["data", "imagenet", "half", "none"] | None, plain()] = None
    """How the images of --data are normalised; by their own mean and deviation (data) unless given."""
    recipe: Annotated[str | None, plain("NAME|FILE")] = None
    """Train by this recipe, a name or a TOML file, instead of the task's."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, plain("KEY=VALUE")] = ()
    """Change one setting of the task, like recipe.epochs=5; may be given many times."""
    folder: Path = Path("runs/tasks")
    """Where trained base networks and results are kept, in a folder for each task."""
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "cpu"
    """cpu, cuda, cuda:1, …"""
    threads: Annotated[int | None, plain("COUNT")] = None
    """How many threads torch may use; it chooses unless given."""

    def open(self, *, cut: CutOptions | None = None, recipe_of: Literal["recipe", "base"] = "recipe") -> Task:
        """The task, with nothing loaded yet; `cut` replaces what is cut, --recipe the recipe named here."""
        import torch

        from evoprune.tasks.settings import settings, settings_table, task_tables
        from evoprune.tasks.task import Task

        if self.threads is not None:
            if self.threads < 1:
                raise ConfigError(f"--threads must be 1 or more, got {self.threads}")
            torch.set_num_threads(self.threads)
        _check_device(self.device)
        if bool(self.task) == bool(self.model):
            raise ConfigError(
                f"give a TASK, or --model with --data; the tasks are {', '.join(task_tables())}"
            )
        find_own_modules()
        table: Any = self.task if self.model is None else self._own()
        overrides = list(self.set)
        if self.model is None and (self.data or self.image_size or self.normalise):
            raise ConfigError(
                "--data, --image-size and --normalise go with --model; "
                "for a task there is --set data.KEY=VALUE"
            )
        if self.model is None and self.weights is not None:
            overrides.insert(0, config.dump({"weights": self.weights}).strip())
        replaced: dict[str, Any] = {recipe_of: self.recipe} if self.recipe else {}
        if cut is not None:
            replaced["cut"] = cut.over(settings_table(table).get("cut", {}))
        chosen = settings(table, overrides, **replaced)
        return Task(chosen, self.folder / chosen.name, self.device)

    def _own(self) -> dict[str, Any]:
        """The table of a task of the user's own."""
        if not self.data:
            raise ConfigError("--model needs --data: the name of a data set, or a folder of images")
        data: dict[str, Any] = {"name": self.data}
        if self.image_size is not None:
            data["image_size"] = self.image_size
        if self.normalise is not None:
            data["normalise"] = self.normalise
        name = f"{str(self.model).rpartition(':')[2]}-{Path(self.data).name}"
        table = {
            "name": name,
            "network": self.model,
            "data": data,
            "base": "plain-base",
            "recipe": "finetune",
            "cut": {"ratio": 0.4},
        }
        return table | ({"weights": str(self.weights)} if self.weights is not None else {})


def find_own_modules() -> None:
    """Let factories be found beside the user, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _check_device(device: str) -> None:
    import torch

    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"--device: expected cpu, cuda or cuda:N, got {device!r}") from None
    if wanted.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device: expected cpu, cuda or cuda:N, got {device!r}")
    count = torch.cuda.device_count() if wanted.type == "cuda" else 0
    if wanted.type == "cuda" and (wanted.index or 0) >= count:
        raise ConfigError(f"--device {device}: this machine has {count} CUDA devices")
