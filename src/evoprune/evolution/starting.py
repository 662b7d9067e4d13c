"""Starting an evolution, and going on with one."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evoprune import __version__, config
from evoprune.errors import ConfigError
from evoprune.evolution import settings as of_settings
from evoprune.evolution.search import Run
from evoprune.evolution.settings import Settings
from evoprune.evolution.watching import Silent, Watch
from evoprune.expression.tree import Expr
from evoprune.files import write
from evoprune.runs import folder as folders
from evoprune.runs.executors import Executor, Inline, Local
from evoprune.runs.files import refusals_said
from evoprune.runs.folder import Lock, RunFolder
from evoprune.runs.journal import ENVIRONMENT, SETTINGS, Journal, Record, read
from evoprune.runs.slurm import Slurm, submitit
from evoprune.runs.work import Task

OBJECT = "object"
"""What stands for the factory of a task that was given as an object."""


def evolve(
    source: str | Path | Mapping[str, Any] | Settings | None = None,
    *,
    preset: str | None = None,
    name: str | None = None,
    overrides: Sequence[str] = (),
    seeds: Sequence[str | Expr] = (),
    tasks: Mapping[str, Task] | None = None,
    runs: str | Path = folders.RUNS,
    watch: Watch | None = None,
) -> Run:
    """Start an evolution. The run that is returned goes on as it is iterated, a generation at a time.

    source: a TOML file, a table, `Settings`, or the name of a preset.
    preset: what a file or table builds upon.
    name: of the run; its folder is `runs/name`.
    overrides: assignments like `population.size=20`.
    seeds: functions of your own, each in the first generation once.
    tasks: tasks of your own, as objects; they replace those of the configuration and need `inline`.

    >>> for generation in evoprune.evolve("demo"):          # doctest: +SKIP
    ...     print(generation.number, generation.best.fitness, generation.best.individual.expr)
    """
    table, stem = _table(source, preset, tasks)
    if tasks:
        table["tasks"] = [{"name": each, "factory": OBJECT} for each in tasks]
        table["run"] = {"executor": "inline", **table.get("run", {})}
    if seeds:
        population = dict(table.get("population", {}))
        population["seeds"] = [*population.get("seeds", ()), *map(str, seeds)]
        table["population"] = population
    settings = of_settings.build(table, overrides).settled()
    _check_objects(settings, tasks)
    if settings.run.executor == "slurm":
        submitit()  # before there is a folder of a run that cannot begin
    runs = Path(runs)
    folder = folders.create(
        runs,
        name or folders.next_name(runs, stem),
        config.dump(settings),
        _beginning(settings),
    )
    return _opened(folder, settings, Lock(folder), tasks, watch)


def resume(
    name: str,
    *,
    overrides: Sequence[str] = (),
    tasks: Mapping[str, Task] | None = None,
    runs: str | Path = folders.RUNS,
    watch: Watch | None = None,
) -> Run:
    """Go on with a run that was killed, interrupted, or stopped by its budget.

    name: of the run, or the path of its folder.
    overrides: assignments to what no finished evaluation depends on, like `budget.seconds=3600`.
    tasks: those that were given as objects, again.
    """
    folder = folders.find(Path(runs), name)
    settings = of_settings.rebuilt(folder.config, overrides)
    began = next(iter(read(folder.journal).records), {})
    if SETTINGS in began:
        of_settings.check_lasting(began[SETTINGS], settings, folder.config)
    _check_objects(settings, tasks)
    lock = Lock(folder)
    if overrides:
        with refusals_said("writing the configuration"):
            write(folder.config, config.dump(settings))
    return _opened(folder, settings, lock, tasks, watch)


def _table(
    source: str | Path | Mapping[str, Any] | Settings | None, preset: str | None, tasks: object
) -> tuple[config.Table, str]:
    """The table of what was given, and what a run of it is called."""
    if isinstance(source, Settings):
        return dict(config.to_table(source)), "run"
    if isinstance(source, Mapping):
        return of_settings.table(source, preset), preset or "run"
    if isinstance(source, str) and preset is None and source in of_settings.presets():
        return of_settings.table(None, source), source
    if source is not None:
        path = Path(source)
        if preset is None and not path.exists() and path.name == path.stem == str(source):
            known = of_settings.presets()
            raise ConfigError(config.unknown_key(str(source), known, what="configuration file or preset"))
        return of_settings.table(source, preset), path.stem
    if preset is None and tasks:
        return {}, "run"
    return of_settings.table(None, preset), preset or "run"


def _opened(
    folder: RunFolder, settings: Settings, lock: Lock, tasks: Mapping[str, Task] | None, watch: Watch | None
) -> Run:
    watch = watch or Silent()

    def say(text: str) -> None:
        folder.say(text)
        watch.say(text)

    journal = None
    try:
        journal = Journal(folder.journal)
        if not journal.records:  # it was torn in its first line
            journal.append(_beginning(settings))
        executor = _executor(folder, settings, journal, tasks, say)
        return Run(folder, settings, journal, executor, lock, watch)
    except BaseException:
        if journal is not None:
            journal.close()
        lock.release()
        raise


def _executor(
    folder: RunFolder,
    settings: Settings,
    journal: Journal,
    tasks: Mapping[str, Task] | None,
    say: Callable[[str], None],
) -> Executor:
    run = settings.run
    if run.executor == "inline":
        return Inline(folder.path, tasks=tasks)
    if run.executor == "local":
        return Local(
            folder.path,
            workers=run.workers_here(),
            threads=run.threads,
            gpus=run.gpus_here(),
            retries=run.retries,
            say=say,
        )
    cluster = settings.slurm
    if run.device == "cuda" and not cluster.gpus:
        cluster = replace(cluster, gpus=1)
    return Slurm(folder.path, cluster, journal=journal, threads=run.threads, retries=run.retries, say=say)


def _beginning(settings: Settings) -> Record:
    """The first record of a run."""
    return {
        "event": "run",
        "generation": -1,
        "index": -1,
        "version": __version__,
        "seed": settings.seed,
        SETTINGS: of_settings.lasting(settings),
        ENVIRONMENT: _environment(),
        "at": folders.now(),
    }


def _environment() -> dict[str, str]:
    """What a run begins with, as far as that can be told without loading it."""
    found = {"python": platform.python_version()}
    for package in ("torch", "numpy"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found | {"system": platform.platform(), "cores": str(len(os.sched_getaffinity(0)))}


def _check_objects(settings: Settings, tasks: Mapping[str, Task] | None) -> None:
    given = set(tasks or ())
    wanted = {choice.name for choice in (*settings.tasks, *settings.judges) if choice.factory == OBJECT}
    if wanted - given:
        raise ConfigError(
            f"the tasks {', '.join(sorted(wanted - given))} were given as objects; give them again: "
            "evoprune.resume(name, tasks={…})"
        )
    if given - wanted:
        raise ConfigError(
            f"the run has no tasks {', '.join(sorted(given - wanted))}; it has {', '.join(settings.names())}"
        )
    if given and settings.run.executor != "inline":
        raise ConfigError(
            "tasks that are objects cannot be sent to other processes: set run.executor = 'inline', or name "
            "a factory, as in [[tasks]] factory = 'package.module:function'"
        )
