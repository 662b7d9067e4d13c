"""A piece of work: addressed as a run's folder and a key, and carried out in any process.

    evals/KEY/work.json    what to do, written by the driver
    evals/KEY/result.json  what came of it, written aside and renamed by whoever did it: the truth

There are three kinds: `prepare` has a task make ready what all evaluations share (its base network), `score`
asks which channels some functions keep, `evaluate` cuts and retrains. A task comes from `module:factory`,
called with the folder for what its processes share, and with the task's options.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, SupportsFloat

from evoprune import config
from evoprune.errors import ConfigError, EvopruneError, RunError
from evoprune.files import write
from evoprune.runs.alarm import Overdue
from evoprune.runs.files import REFUSALS, read_json, write_json

Table = dict[str, Any]

PREPARE, SCORE, EVALUATE = "prepare", "score", "evaluate"

SAID = 2_000
"""How much of an error's message is told; all of it is in the traceback."""


@dataclass(frozen=True)
class Kept:
    """Which channels stay, by site, and the sites at which the function scored all channels alike."""

    channels: Mapping[str, tuple[int, ...]]
    constant: tuple[str, ...] = ()

    def table(self) -> Table:
        """As plain values."""
        channels = {site: [int(channel) for channel in kept] for site, kept in self.channels.items()}
        return {"channels": channels, "constant": [str(site) for site in self.constant]}

    @classmethod
    def of(cls, table: Table) -> Kept:
        """What `table` wrote."""
        channels = {site: tuple(kept) for site, kept in table["channels"].items()}
        return cls(channels, tuple(table["constant"]))


class Task(Protocol):
    """What an evolution asks of a task."""

    def base(self) -> Any:
        """The base network: trained, or found in the task's folder. Its `accuracy`, if any, is told."""

    def kept(self, function: str) -> Any:
        """The channels that the function keeps: something with the fields of `Kept`. Raises where the
        function cannot score them."""

    def evaluate(self, kept: Any, seed: int) -> Any:
        """Cut, retrain, judge: something with an `accuracy` from 0 to 1. Called in any process, with a
        `Kept` that an earlier `kept` gave."""


@dataclass(frozen=True)
class Work:
    """What to do, on which task."""

    kind: str
    task: str
    factory: str
    options: Table = field(default_factory=dict)
    threads: int = 1
    functions: tuple[str, ...] = ()
    kept: Table = field(default_factory=dict)
    seed: int = 0
    limit: float | None = None

    @property
    def key(self) -> str:
        """The same for the same work, in any process: what decides the result, and nothing else."""
        what: list[Any] = [self.kind, self.task]
        if self.kind == SCORE:
            what.append(self.functions)
        elif self.kind == EVALUATE:
            what += [self.kept["channels"], self.seed]
        text = json.dumps(what, sort_keys=True, separators=(",", ":"))
        return blake2b(text.encode(), digest_size=12).hexdigest()

    def table(self) -> Table:
        """As plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def of(cls, table: Table) -> Work:
        """What `table` wrote."""
        return cls(**(table | {"functions": tuple(table["functions"])}))


def order(folder: Path, work: Work) -> str:
    """Write down what to do; returns the key."""
    place = folder / "evals" / work.key
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "work.json").exists():
        # A scoring tells, for as long as its run, what was kept; other work can be written down anew.
        write_json(place / "work.json", work.table(), sync=work.kind == SCORE)
    return work.key


def result(folder: Path, key: str) -> Table | None:
    """What came of a piece of work; None where nothing has yet."""
    found = read_json(folder / "evals" / key / "result.json")
    return found if isinstance(found, dict) and found.get("key") == key else None


def time_limit(folder: Path, key: str) -> float | None:
    """Seconds that a piece of work may take."""
    table = read_json(folder / "evals" / key / "work.json")
    return None if table is None else table["limit"]


def give_up(folder: Path, key: str, why: str, trace: str = "") -> None:
    """Write down that a piece of work failed, for a reason outside of it; `trace` says where it was then."""
    _conclude(folder, key, {"ok": False, "error": why, "traceback": _writable(trace)}, 0.0)


def _conclude(folder: Path, key: str, outcome: Table, seconds: float) -> None:
    write_json(folder / "evals" / key / "result.json", {"key": key, "seconds": seconds, **outcome})


class Bench:
    """Where one process carries out work of a run: tasks are built once and kept."""

    def __init__(self, folder: Path, tasks: Mapping[str, Task] | None = None) -> None:
        self.folder = folder
        self._tasks: dict[str, Task] = dict(tasks or {})

    def carry_out(self, key: str, begun: Callable[[], None] = lambda: None) -> None:
        """Do a piece of work and write its result; `begun` is called when its task is there.

        What goes wrong in the task is a result, too. What says nothing about the work is raised: that the
        machine refuses (disk full), or that a task which had been made ready is not there any more.
        """
        table = read_json(self.folder / "evals" / key / "work.json")
        if table is None:
            raise RunError(f"there is no work {key} in {self.folder}")
        work = Work.of(table)
        started = time.monotonic()
        process = os.getpid()
        try:
            task = self._task(work)
            begun()
            outcome = {"ok": True, **_outcome(work, task)}
        except (KeyboardInterrupt, Overdue):  # not the task's own
            raise
        except BaseException as error:
            if work.kind != PREPARE and work.task not in self._tasks:
                raise RunError(f"the task {work.task} cannot be built: {said(error)}") from error
            outcome = {"ok": False, **_failure(error)}
        finally:
            if os.getpid() != process:  # a child that the task forked, and that is not to go on as its parent
                os._exit(1)
        _conclude(self.folder, key, outcome, time.monotonic() - started)

    def _task(self, work: Work) -> Task:
        if work.task not in self._tasks:
            use_threads(work.threads)
            shared = self.folder / "tasks" / work.task
            shared.mkdir(parents=True, exist_ok=True)
            task = load(work.factory)(folder=shared, **work.options)
            _pin(task, shared / "task.toml")
            self._tasks[work.task] = task
        return self._tasks[work.task]


def load(factory: str) -> Any:
    """What `module:name` names."""
    module, colon, name = factory.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"a task's factory looks like package.module:function, got {factory!r}")
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the factory {factory!r} cannot be imported: {error}; its module must be on Python's path "
            f"({', '.join(filter(None, sys.path[:3]))}, …)"
        ) from error
    except AttributeError:
        raise ConfigError(f"the module {module!r} has no {name!r} (factory {factory!r})") from None
    return found


def _pin(task: Task, path: Path) -> None:
    """Write down what a task is, where it can tell; a task that was something else before is refused."""
    spec = getattr(task, "spec", None)
    if spec is None:
        return
    text = config.dump(spec)
    if not path.exists():
        write(path, text)
    elif path.read_text(encoding="utf-8") != text:
        raise ConfigError(
            f"the task is not what it was when the run began, see {path}; results of the two do not mix"
        )


def use_threads(count: int) -> None:
    """How many threads PyTorch may use, where a task has loaded it; nothing else here knows of it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def said(error: BaseException) -> str:
    """An error in a line."""
    text = str(error).strip() or "no message"
    if len(text) > SAID:
        text = f"{text[:SAID]} …"
    return text if isinstance(error, EvopruneError) else f"{type(error).__name__}: {text}"


def _outcome(work: Work, task: Task) -> Table:
    use_threads(work.threads)
    if work.kind == PREPARE:
        return {"accuracy": _plain(getattr(task.base(), "accuracy", None))}
    if work.kind == SCORE:
        return {"functions": [_kept_by(task, function) for function in work.functions]}
    accuracy = task.evaluate(Kept.of(work.kept), work.seed).accuracy
    # NumPy's and PyTorch's numbers are numbers, too.
    if not (isinstance(accuracy, SupportsFloat) and 0 <= float(accuracy) <= 1):
        raise ValueError(f"the task {work.task} gave the accuracy {accuracy!r}, expected 0 to 1")
    return {"accuracy": float(accuracy)}


def _kept_by(task: Task, function: str) -> Table:
    try:
        kept = task.kept(function)
        return Kept(kept.channels, tuple(kept.constant)).table()
    except Exception as error:
        return _failure(error)


def _failure(error: BaseException) -> Table:
    """What went wrong in a task; raised again where the machine refused."""
    if isinstance(error, RunError) or (isinstance(error, OSError) and error.errno in REFUSALS):
        raise error
    return {"error": _writable(said(error)), "traceback": _writable(traced(error))}


def traced(error: BaseException) -> str:
    """An error's traceback."""
    return "".join(traceback.format_exception(error))


def _writable(text: str) -> str:
    """Half a surrogate pair, as in the names of odd files, is nothing that can be written down."""
    return text.encode("utf-8", "backslashreplace").decode()


def _plain(value: Any) -> float | None:
    return float(value) if isinstance(value, SupportsFloat) and math.isfinite(float(value)) else None
