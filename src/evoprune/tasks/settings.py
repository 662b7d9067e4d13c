"""What a task is, as configuration: the network, the data, what is cut, how it is trained.

Settings are written as TOML and rebuilt from it in any process. A recipe may be given by its name, or as a
table that starts from one and changes some of it:

    recipe = "cifar-short"
    recipe = {like = "cifar-short", epochs = 8}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from evoprune import config
from evoprune.errors import ConfigError
from evoprune.tasks.datasets import DataConfig
from evoprune.tasks.recipes import Recipe, recipe_tables


@dataclass(frozen=True)
class Cut:
    """What is cut: exactly one of `ratio`, `kept`, `flops` and `params`, the same for every function."""

    ratio: float | None = None
    """The share of channels that goes, at every site."""
    per_site: Mapping[str, float] = field(default_factory=dict)
    """Sites with a ratio of their own."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """How many channels stay, site by site; sites that are not named stay whole."""
    flops: float | None = None
    """The share of multiply-accumulates that goes."""
    params: float | None = None
    """The share of parameters that goes."""
    scope: Literal["site", "global"] = "site"
    """One ratio for all sites, or one threshold on the scores of all of them."""
    selection: bool = False
    """Residual streams keep their width, and each block chooses the channels it reads."""
    flatten_features: tuple[str, ...] = ()
    """Fully connected layers whose flattened features are a site of their own."""
    ignore: tuple[str, ...] = ()
    """Sites that stay whole."""

    def __post_init__(self) -> None:
        ways = {"ratio": self.ratio, "kept": self.kept or None, "flops": self.flops, "params": self.params}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) != 1:
            raise ConfigError(
                f"a cut is given by exactly one of {', '.join(ways)}; got {' and '.join(given) or 'none'}"
            )
        shares = {"ratio": self.ratio, "flops": self.flops, "params": self.params}
        shares |= {f"per_site.{site}": share for site, share in self.per_site.items()}
        for name, share in shares.items():
            if share is not None and not 0 <= share < 1:
                raise ConfigError(f"{name} is the share that goes, in [0, 1), got {share:g}")
        for site, count in self.kept.items():
            if count < 1:
                raise ConfigError(f"kept.{site} must be 1 or more, got {count}")
        if self.kept and (self.per_site or self.ignore or self.scope == "global"):
            raise ConfigError(
                "kept names every site that is cut; per_site, ignore and scope do not go with it"
            )

    def described(self) -> str:
        """The cut in a few words, for tables."""
        if self.kept:
            numbers = "-".join(map(str, self.kept.values()))
            what = f"keep {numbers}" if len(self.kept) < 6 else f"keep {sum(self.kept.values())} channels"
        elif self.ratio is not None:
            what = f"{self.ratio:.0%} of channels" + (", some sites else" if self.per_site else "")
        elif self.flops is not None:
            what = f"{self.flops:.1%} of FLOPs"
        else:
            what = f"{self.params or 0:.1%} of parameters"
        return what + (", by selection" if self.selection else "")


@dataclass(frozen=True)
class Settings:
    """A task without anything loaded: what `Task.spec` writes and `Task.from_spec` reads."""

    name: str
    network: str
    """`module:factory`; called with `options`."""
    data: DataConfig
    cut: Cut
    recipe: Recipe
    """How a pruned network is retrained."""
    base: Recipe
    """How the base network is trained."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the factory."""
    weights: Path | None = None
    """Weights of the base network that come from elsewhere, instead of training it."""
    weights_held_out: bool = False
    """Whether those weights never saw the validation split; else they serve comparisons on test only."""
    base_seed: int = 0
    """Of the base network's initial weights and training."""
    about: str = ""

    def __post_init__(self) -> None:
        module, colon, factory = self.network.partition(":")
        if not (module and colon and factory):
            raise ConfigError(f"network must look like package.module:factory, got {self.network!r}")
        if self.base_seed < 0:
            raise ConfigError(f"base_seed must be 0 or more, got {self.base_seed}")
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ConfigError(f"a task's name is also a folder's, got {self.name!r}")

    @property
    def network_name(self) -> str:
        """The network in a word or two, for tables."""
        name = self.network.rpartition(":")[2]
        return f"{name} {self.options['depth']}" if "depth" in self.options else name


def task_tables() -> dict[str, config.Table]:
    """The tasks that come with the package, as tables by name."""
    text = (files("evoprune.tasks") / "assets" / "tasks.toml").read_text(encoding="utf-8")
    tables = config.parse(text, where="tasks.toml of the package")
    return {name: {"name": name, **table} for name, table in tables.items()}


def settings(
    task: str | Path | Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    recipe: str | None = None,
    base: str | None = None,
    cut: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of a task: by name, from a TOML file, or from a table; then overridden.

    `recipe`, `base` (recipes by name or TOML file) and `cut` replace those of the task before that.
    """
    table = settings_table(task)
    replaced = {"recipe": recipe, "base": base, "cut": cut}
    table |= {key: value for key, value in replaced.items() if value is not None}
    # Twice: an override may change one setting of a recipe, or name another recipe.
    table = config.override(_with_recipes(table), overrides)
    return config.build(Settings, _with_recipes(table))


def changed(task: str, changes: Mapping[str, Any]) -> config.Table:
    """The table of a task with changes: a table's are laid over it key by key, anything else replaces."""

    def over(old: Any, new: Any) -> Any:
        if isinstance(old, Mapping) and isinstance(new, Mapping) and "like" not in new:
            return {**old, **{key: over(old.get(key), value) for key, value in new.items()}}
        return new

    table: config.Table = over(_with_recipes(settings_table(task)), changes)
    return table


def _with_recipes(table: config.Table) -> config.Table:
    recipes = {key: _recipe_table(table[key], where=key) for key in ("recipe", "base") if key in table}
    return table | recipes


def settings_table(task: str | Path | Mapping[str, Any]) -> config.Table:
    """The table of a task as it is written, by name, from a TOML file, or given."""
    if isinstance(task, Mapping):
        return dict(task)
    task, tables = str(task), task_tables()
    if task in tables:
        return tables[task]
    if task.endswith(".toml") or Path(task).is_file():
        return {"name": Path(task).stem, **config.read(task)}
    raise ConfigError(config.unknown_key(task, tables, what="task (nor a TOML file)"))


def _recipe_table(given: Any, where: str) -> Any:
    """The table of a recipe that was given by name, by file, or as a table that starts from another."""
    known = recipe_tables()
    if isinstance(given, str):
        if given in known:
            return known[given]
        if given.endswith(".toml") or Path(given).is_file():
            return _recipe_table(config.read(given), where=given)
        raise ConfigError(config.unknown_key(given, known, where=where, what="recipe (nor a TOML file)"))
    if isinstance(given, Mapping) and "like" in given:
        like = given["like"]
        if like not in known:
            raise ConfigError(config.unknown_key(str(like), known, where=f"{where}.like", what="recipe"))
        return {**known[like], **{key: value for key, value in given.items() if key != "like"}}
    return given
