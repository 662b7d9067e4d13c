"""The configuration of an evolution: what may be set, and what the paper set it to.

preset or file ─ overrides ─▶ table ─▶ Settings, checked ─▶ config.toml in the run's folder
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from evoprune import config
from evoprune.errors import ConfigError, ExpressionError, RunError
from evoprune.evolution.variation import Variation
from evoprune.expression.library import resolve
from evoprune.runs.executors import gpus_here
from evoprune.runs.slurm import Cluster

NAMED = "evoprune.tasks.task:named"
"""The factory of the package's own tasks."""

CHANGEABLE = (
    "budget",
    "run.workers",
    "run.executor",
    "run.time_limit",
    "run.retries",
    "slurm",
    "population.generations",
)
"""What a resumed run may set anew: all that no finished evaluation depends on."""


@dataclass(frozen=True)
class TaskChoice:
    """A task of the package, or one from a factory of your own."""

    name: str
    """Of a task of the package (or its TOML file); with a factory, any name."""
    factory: str = ""
    """`module:function`, called with `folder` (for what its processes share) and the options."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For a task of the package: `device`, and settings to change, like recipe = {epochs = 5}."""

    def source(self, device: str) -> tuple[str, dict[str, Any]]:
        """The factory and what it is called with; a factory of your own sees to its device itself."""
        if self.factory:
            return self.factory, dict(self.options)
        return NAMED, {"name": self.name, "device": device, **self.options}


@dataclass(frozen=True)
class Population:
    """How many there are of what. The defaults are the paper's main experiment."""

    size: int = 40
    generations: int = 25
    """How many generations are judged, the first included."""
    seeds: tuple[str, ...] = ()
    """Functions of your own, by name or text: each is in the first generation once."""
    soap: int = 20
    """How many of the first generation are drawn from SOAP; the others are random trees."""
    tournament: int = 4
    selected: int = 10
    """How many are selected as parents; they stay."""
    children: int = 24
    immigrants: int = 6
    immigrants_from: Literal["both", "soap", "random"] = "both"

    def __post_init__(self) -> None:
        for name in ("size", "generations", "tournament", "selected"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("soap", "children", "immigrants"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.soap + len(self.seeds) > self.size:
            raise ConfigError(
                f"the first generation has {self.size} functions, too few for {self.soap} of SOAP and "
                f"{len(self.seeds)} seeds"
            )
        total = self.selected + self.children + self.immigrants
        if self.generations > 1 and total != self.size:
            raise ConfigError(
                f"selected + children + immigrants is {self.selected} + {self.children} + {self.immigrants} "
                f"= {total}, which must be the size, {self.size}"
            )
        for seed in self.seeds:
            try:
                expr = resolve(seed).expr
            except ExpressionError as error:
                raise ConfigError(f"seeds: {error}") from None
            if expr is None:
                raise ConfigError(f"{seed!r} is not an expression and cannot be bred from")


@dataclass(frozen=True)
class Fitness:
    """How the accuracies on several tasks become one number."""

    combine: Literal["geometric", "arithmetic"] = "geometric"
    alpha: float | None = None
    """For two tasks: the weight of the first; the second has the rest. Without it, 0.5."""
    weights: tuple[float, ...] = ()
    """For any number of tasks: their weights, which sum to 1; without them all weigh the same."""

    def of_tasks(self, count: int) -> tuple[float, ...]:
        """The weight of every task."""
        if self.alpha is not None:
            if self.weights:
                raise ConfigError("fitness: give alpha or weights, not both")
            if count != 2:
                raise ConfigError(f"fitness: alpha is for two tasks, there are {count}; give weights")
            if not 0 <= self.alpha <= 1:
                raise ConfigError(f"fitness: alpha is from 0 to 1, got {self.alpha:g}")
            return (self.alpha, 1 - self.alpha)
        if not self.weights:
            return (1 / count,) * count
        if len(self.weights) != count:
            raise ConfigError(f"fitness: {count} tasks need {count} weights, got {len(self.weights)}")
        if min(self.weights) < 0 or not math.isclose(sum(self.weights), 1, abs_tol=1e-9):
            got = ", ".join(f"{weight:g}" for weight in self.weights)
            raise ConfigError(f"fitness: weights are 0 or more and sum to 1, got {got}")
        return self.weights


@dataclass(frozen=True)
class Execution:
    """Where and how evaluations run."""

    executor: Literal["inline", "local", "slurm"] = "local"
    """In this process, in worker processes on this machine, or as jobs of a SLURM cluster."""
    workers: int = 0
    """Worker processes of `local`; 0: one for every GPU, or as many as the cores are for `threads`."""
    threads: int = 1
    """Threads of one evaluation; 0: the cores here, divided between the workers. Results may depend on it, so
    it stays what it was when a run is resumed."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where tasks of the package compute. With cuda, each worker or job has one GPU to itself."""
    time_limit: float | None = None
    """Seconds that one evaluation may take."""
    retries: int = 2
    """How often an evaluation is tried again whose worker died or took too long."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("threads", 0), ("retries", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be {least} or more, got {getattr(self, name)}")
        if self.time_limit is not None and not self.time_limit > 0:
            raise ConfigError(f"time_limit must be above 0 seconds, got {self.time_limit:g}")

    def gpus_here(self) -> tuple[str, ...]:
        """The GPUs for workers on this machine."""
        if self.device == "cpu" or self.executor != "local":
            return ()
        gpus = gpus_here()
        if not gpus:
            raise ConfigError("run.device is cuda, but this machine shows no GPU (nvidia-smi lists none)")
        return gpus

    def workers_here(self) -> int:
        """How many workers that is on this machine."""
        return self.workers or len(self.gpus_here()) or max(1, _cores() // max(1, self.threads))

    def settled(self, cores_of_a_job: int) -> Execution:
        """With a number of threads where that was left to the machine."""
        if self.threads:
            return self
        here = _cores() // (1 if self.executor == "inline" else self.workers_here())
        return replace(self, threads=max(1, cores_of_a_job if self.executor == "slurm" else here))


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Budget:
    """When to stop early. A run stopped by its time or its evaluations can be resumed with more."""

    seconds: float | None = None
    evaluations: int | None = None
    """Retrainings, the looked-up ones not counted."""
    patience: int | None = None
    """Generations without a better best."""
    fitness: float | None = None
    """A best fitness that is enough."""

    def __post_init__(self) -> None:
        for name in ("seconds", "evaluations", "patience", "fitness"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value:g}")


@dataclass(frozen=True)
class Settings:
    """Everything about an evolution."""

    tasks: tuple[TaskChoice, ...]
    about: str = ""
    seed: int = 0
    population: Population = field(default_factory=Population)
    variation: Variation = field(default_factory=Variation)
    fitness: Fitness = field(default_factory=Fitness)
    run: Execution = field(default_factory=Execution)
    slurm: Cluster = field(default_factory=Cluster)
    """For the executor slurm: what its jobs ask for."""
    budget: Budget = field(default_factory=Budget)
    judges: tuple[TaskChoice, ...] = ()
    """Tasks on which the winner is judged at the end; they have no part in the fitness."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ConfigError("tasks: at least one is needed, as in [[tasks]] name = 'digits'")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")
        names = self.names()
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"tasks: {name!r} is there twice; give one of the two another name")
            if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
                raise ConfigError(f"tasks: a name has letters, digits, dashes and dots, got {name!r}")
        self.weights()

    def settled(self) -> Settings:
        """With everything fixed that was left to the machine that the run starts on."""
        return replace(self, run=self.run.settled(self.slurm.cpus))

    def weights(self) -> dict[str, float]:
        """The weight of every task that counts."""
        weights = self.fitness.of_tasks(len(self.tasks))
        return {choice.name: weight for choice, weight in zip(self.tasks, weights, strict=True) if weight}

    def names(self) -> list[str]:
        """All tasks and judges, in order."""
        return [choice.name for choice in (*self.tasks, *self.judges)]

    def choice(self, task: str) -> TaskChoice:
        """The task or judge of a name."""
        return next(choice for choice in (*self.tasks, *self.judges) if choice.name == task)


def presets() -> dict[str, str]:
    """The presets there are, with what each is for."""
    folder = files("evoprune.evolution") / "presets"
    texts = {Path(each.name).stem: each.read_text("utf-8") for each in folder.iterdir()}
    return {name: str(config.parse(text).get("about", "")) for name, text in sorted(texts.items())}


def table(source: str | Path | Mapping[str, Any] | None = None, preset: str | None = None) -> config.Table:
    """The table of a file, a preset or both (the file then says what differs from the preset)."""
    if preset is None and source is None:
        raise ConfigError(f"give a configuration file or a preset: {', '.join(presets())}")
    own: Mapping[str, Any] = {}
    if isinstance(source, Mapping):
        own = source
    elif source is not None:
        own = config.read(source)
    if preset is not None:
        own = {"extends": preset} | dict(own)
    return _extended(own)


def _extended(own: Mapping[str, Any]) -> config.Table:
    """A table on top of the preset that it extends."""
    rest = {key: value for key, value in own.items() if key != "extends"}
    if "extends" not in own:
        return rest
    known = presets()
    name = own["extends"]
    if name not in known:
        raise ConfigError(config.unknown_key(str(name), known, what="preset"))
    text = (files("evoprune.evolution") / "presets" / f"{name}.toml").read_text("utf-8")
    return _merged(_extended(config.parse(text, where=f"the preset {name}")), rest)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> config.Table:
    """Tables are merged key by key; everything else of the upper one replaces the lower's."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            value = _merged(under, value)
        result[key] = value
    return result


def build(source: Mapping[str, Any], overrides: Iterable[str] = ()) -> Settings:
    """Settings from a table and assignments like `population.size=20`."""
    return config.build(Settings, config.override(source, overrides))


def lasting(settings: Settings) -> config.Table:
    """What results depend on, and what a run therefore keeps to: a table without what may be set anew."""
    return config.override(config.to_table(settings), [f"{key}=" for key in ("about", *CHANGEABLE)])


def check_lasting(began: Mapping[str, Any], settings: Settings, where: Path) -> None:
    """Refuse settings other than those that a run began with (from `lasting`): a file was edited."""
    # Built anew, so that settings which did not exist then have their defaults; whether the numbers of a
    # population fit together depends on its generations.
    generations = {"population": {"generations": settings.population.generations}}
    then, now = (_flat(lasting(each)) for each in (build(_merged(began, generations)), settings))
    changed = [
        f"{key} was {then.get(key, 'not set')} and is {now.get(key, 'not set')}"
        for key in sorted({*then, *now})
        if then.get(key) != now.get(key)
    ]
    if changed:
        raise RunError(
            f"{where} was changed since the run began, and its results depend on that: {'; '.join(changed)}. "
            "Change it back to go on, or start another run"
        )


def _flat(table: Any, place: str = "") -> dict[str, Any]:
    """Plain values by their dotted keys."""
    if isinstance(table, Mapping):
        inner = table.items()
    elif isinstance(table, list) and any(isinstance(entry, Mapping) for entry in table):
        inner = {str(i): entry for i, entry in enumerate(table)}.items()
    else:
        return {place: table}
    return {k: v for key, entry in inner for k, v in _flat(entry, f"{place}.{key}".strip(".")).items()}


def rebuilt(path: Path, overrides: Sequence[str]) -> Settings:
    """The settings of a run that is to go on, with what may be changed then."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not any(key == each or key.startswith(each + ".") for each in CHANGEABLE):
            raise ConfigError(
                f"{key!r} cannot be changed in a run that has begun, its results depend on it; "
                f"what can: {', '.join(CHANGEABLE)}"
            )
    return build(config.read(path), overrides)
