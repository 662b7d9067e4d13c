"""Work as SLURM jobs, through submitit: an array for everything that is handed in together.

    submit ─▶ "submitting" in the journal ─▶ sbatch ─▶ "submitted" with the job ids ─▶ evals/KEY/result.json

Jobs go on when their driver is gone; the next one finds them by what the journal says. What a job found out
is read from the run's folder, never from submitit's files.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from evoprune.errors import ConfigError, MissingExtraError, RunError
from evoprune.runs import queue
from evoprune.runs import work as works
from evoprune.runs.executors import LAST_WORDS, Say, interrupts_held, surroundings, times
from evoprune.runs.files import refusals_said
from evoprune.runs.job import REFUSED, Job
from evoprune.runs.journal import SUBMITTED, SUBMITTING, Journal

STEP = 0.1
"""Seconds between two looks for results."""

LOST = 3
"""At so many looks in a row, a job that SLURM does not know is lost, and one that ended well has no result:
accounts and shared disks take their time."""

ARRAY = 1_000
"""The most jobs in an array: one less than what SLURM takes unless told otherwise."""

COMPLETED = "COMPLETED"

PATIENCE = frozenset({"", "None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Cleaning"})
"""Why jobs wait as a matter of course."""

BUSY = re.compile(r"unable to contact|socket timed out|temporarily|try again|not responding", re.IGNORECASE)
"""What sbatch says where it may work later."""


@dataclass(frozen=True)
class Cluster:
    """What every SLURM job asks for."""

    partition: str = ""
    """Where it runs; empty: the cluster's default."""
    time: int = 240
    """Minutes. A job that needs more goes back into the queue and on from its last epoch."""
    gpus: int = 0
    """GPUs of a job; one, at least, where run.device is cuda."""
    cpus: int = 0
    """Cores of a job; 0: as many as run.threads."""
    memory: str = "8GB"
    """Of a job; empty: the cluster's default."""
    parallel: int = 100
    """The most jobs of an array that run at the same time."""
    requeues: int = 10
    """How often a job may go back into the queue (preempted, out of time, its node down)."""
    poll: float = 15.0
    """Seconds between two questions to SLURM how the jobs stand. Results are seen sooner."""
    setup: tuple[str, ...] = ()
    """Lines of shell before the work begins, like "module load cuda"."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of sbatch: {account = "lab", qos = "long", exclude = "node7"}."""

    def __post_init__(self) -> None:
        for name, least in (("time", 2), ("gpus", 0), ("cpus", 0), ("parallel", 1), ("requeues", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be {least} or more, got {getattr(self, name)}")
        if not self.poll > 0:
            raise ConfigError(f"poll must be above 0 seconds, got {self.poll:g}")
        for name in self.options:
            if name in (
                "array",
                "job-name",
                "job_name",
                "signal",
                "requeue",
                "no-requeue",
                "output",
                "error",
            ):
                raise ConfigError(f"options: {name!r} is for evoprune to set")

    def parameters(self, threads: int, name: str) -> dict[str, Any]:
        """As submitit takes them."""
        asked: dict[str, Any] = {
            "job_name": name,
            "time": self.time,
            "nodes": 1,
            "ntasks_per_node": 1,
            "cpus_per_task": self.cpus or threads,
            "array_parallelism": self.parallel,
            # SLURM may send the signal up to a minute early, and a short job should not get it at its start.
            "signal_delay_s": min(90, self.time * 60 // 4),
            "setup": [*_exports(threads), *self.setup],
            "additional_parameters": {"requeue": True, **self.options},
            # A step does not inherit it from its job (SLURM 22.05 to 23.02).
            "srun_args": [f"--cpus-per-task={self.cpus or threads}"],
        }
        if self.memory:
            asked["mem"] = self.memory
        if self.partition:
            asked["partition"] = self.partition
        if self.gpus > 0:
            asked["gpus_per_node"] = self.gpus
        return asked


@dataclass
class _Sent:
    job: str
    earlier: bool = False
    """Sent by an earlier driver."""
    state: queue.State = queue.State("PENDING")  # noqa: RUF009, it is frozen
    unclear: int = 0
    """At how many looks in a row it was unknown, or had ended well without a result."""


class Slurm:
    """Jobs of a cluster. One that ends without a result is submitted again, a bounded number of times."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        *,
        journal: Journal,
        threads: int,
        retries: int = 2,
        say: Say = lambda text: None,
    ) -> None:
        self._folder = folder.absolute()
        self._cluster = cluster
        self._journal = journal
        self._threads = threads
        self._retries = retries
        self._say = say
        self._submitit = submitit()
        self._sent: dict[str, _Sent] = {}
        self._waiting: list[str] = []
        self._failures: dict[str, int] = {}
        self._next_look = self._next_read = 0.0
        self._told: set[str] = set()
        self._earlier = self._jobs_of_earlier_drivers()

    def submit(self, keys: Sequence[str]) -> None:
        found = {key: self._earlier.pop(key) for key in keys if key in self._earlier}
        self._sent |= {key: _Sent(job, earlier=True) for key, job in found.items()}
        if found:
            self._say(f"{_jobs(found.values())} of an earlier driver: picked up")
        self._waiting += [key for key in keys if key not in found]
        self._send()

    @property
    def running(self) -> int:
        return sum(sent.state.name == "RUNNING" for sent in self._sent.values())

    def finished(self, timeout: float) -> list[str]:
        end = time.monotonic() + timeout
        while self._sent or self._waiting:
            if done := self._with_results():
                return done
            if time.monotonic() >= self._next_look:
                self._look()
                continue  # some may have ended without a result
            left = end - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(STEP, left))
        return []

    def close(self) -> None:
        live = [sent.job for sent in self._sent.values() if sent.state.live]
        if live:
            self._say(
                f"{_jobs(live)} left to go on; a resumed run picks up what they find. "
                f"To end them: scancel {' '.join(sorted({job.partition('_')[0] for job in live}))}"
            )
        self._sent.clear()
        self._waiting.clear()

    def _with_results(self) -> list[str]:
        """Those with a result by now; asked for less often where the disk takes long to answer."""
        begun = time.monotonic()
        if begun < self._next_read:
            return []
        done = [key for key in self._sent if works.result(self._folder, key) is not None]
        for key in done:
            del self._sent[key]
        self._next_read = time.monotonic() + 10 * (time.monotonic() - begun)
        return done

    def _jobs_of_earlier_drivers(self) -> dict[str, str]:
        """The last job of each key, by what the journal says; where a driver died before it learnt the ids,
        by the name that it gave the jobs."""
        names: dict[str, str] = {}
        handed_in: dict[str, Sequence[str]] = {}
        jobs: dict[str, Sequence[str]] = {}
        for record in self._journal.records:
            if record["event"] == SUBMITTING:
                handed_in[record["name"]] = record["keys"]
                names |= dict.fromkeys(record["keys"], record["name"])
            elif record["event"] == SUBMITTED:
                jobs[record["name"]] = record["jobs"]
        if nameless := set(names.values()) - jobs.keys():
            try:
                numbers = queue.numbers()
            except queue.Unreachable as error:
                raise RunError(f"SLURM does not tell which jobs of the run are there: {error}") from error
            jobs |= {name: _ids(numbers[name], len(handed_in[name])) for name in nameless if name in numbers}
        return {key: jobs[name][handed_in[name].index(key)] for key, name in names.items() if name in jobs}

    def _send(self) -> None:
        """Have the waiting keys become jobs; they go on waiting where SLURM is busy."""
        while self._waiting:
            keys = self._waiting[:ARRAY]
            name = f"evoprune-{self._folder.name}-{token_hex(4)}"
            self._record(SUBMITTING, name=name, keys=keys)
            try:
                jobs = self._sbatch(name, keys)
            except _Busy as error:
                self._say_once(
                    f"SLURM takes no jobs now, tried again every {self._cluster.poll:g} s: {error}"
                )
                self._next_look = time.monotonic() + self._cluster.poll
                return
            self._record(SUBMITTED, name=name, jobs=jobs)
            self._sent |= {key: _Sent(job) for key, job in zip(keys, jobs, strict=True)}
            del self._waiting[:ARRAY]
            self._next_look = time.monotonic() + self._cluster.poll

    def _sbatch(self, name: str, keys: Sequence[str]) -> list[str]:
        with refusals_said("writing SLURM jobs"):
            folder = self._folder / "slurm"
            folder.mkdir(exist_ok=True)
            executor = self._submitit.SlurmExecutor(folder, python=_quoted(sys.executable))
            executor.update_parameters(**self._cluster.parameters(self._threads, name))
            work = [Job(str(self._folder), key, self._cluster.requeues) for key in keys]
            try:
                with interrupts_held():
                    submitted = executor.submit_array(work)
            except OSError:
                raise
            except Exception as error:  # submitit's errors share no root
                said = _sbatch_said(error)
                if BUSY.search(said):
                    raise _Busy(said) from error
                raise RunError(
                    f"sbatch refused the jobs: {said}. What they ask for is in [slurm] of config.toml; "
                    "when the run is resumed, --set slurm.KEY=VALUE changes it"
                ) from error
        return [str(job.job_id) for job in submitted]

    def _look(self) -> None:
        """Ask SLURM how the jobs stand, and see to those that ended without a result."""
        self._next_look = time.monotonic() + self._cluster.poll
        if self._waiting:
            self._send()
        try:
            states = queue.states(sent.job for sent in self._sent.values())
        except queue.Unreachable as error:
            self._say_once(f"SLURM does not answer, asked again every {self._cluster.poll:g} s: {error}")
            return
        ended: dict[str, queue.State] = {}
        for key, sent in self._sent.items():
            state = states.get(sent.job)
            unclear = state is None or state.name == COMPLETED
            sent.unclear = sent.unclear + 1 if unclear else 0
            if unclear and sent.unclear < LOST:
                continue
            sent.state = state or queue.State("LOST")
            if not sent.state.live:
                ended[key] = sent.state
            elif "held" in sent.state.reason.lower():
                self._held(sent.job, sent.state.reason)
            elif sent.state.reason not in PATIENCE:
                self._say_once(f"SLURM lets jobs wait: {sent.state.reason}")
        # A job may have ended well between the last look for results and this one.
        for key in [key for key in ended if works.result(self._folder, key) is None]:
            self._failed(key, ended[key])
        self._send()

    def _held(self, job: str, reason: str) -> None:
        """A job that is held: somebody will have meant it, but where SLURM did it by itself."""
        if reason == queue.LAUNCH_FAILED:
            with suppress(queue.Unreachable):
                queue.release(job)
                self._say_once(f"SLURM held the job {job}, which did not start on a node; released")
                return
        self._say_once(f"SLURM holds the job {job} ({reason}); to let it run: scontrol release {job}")

    def _failed(self, key: str, state: queue.State) -> None:
        """A job ended without a result: once more with another one, if not too often."""
        sent = self._sent[key]
        if sent.earlier:  # that driver has told of it, or nobody was there to count
            self._say(f"{key}: its SLURM job {sent.job} ended as {state.name} meanwhile; handed in again")
            del self._sent[key]
            self._waiting.append(key)
            return
        words = self._last_words(sent.job)
        if state.code == REFUSED:
            raise RunError(
                f"working on {key} failed, in the SLURM job {sent.job}: {words or 'it left no word'}"
            )
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        told = f"{key}: its SLURM job {sent.job} ended as {state.name}"
        if words:
            told += f" (its last words: {words})"
        if failures <= self._retries:
            self._say(f"{told}; tried again, {failures} of {self._retries}")
            del self._sent[key]
            self._waiting.append(key)
            return
        # No number of a job in what goes into the journal: equal runs have equal ones.
        why = f"its SLURM job ended as {state.name}; given up after {times(failures)}"
        self._say(f"{told}; given up after {times(failures)}")
        with refusals_said(f"giving up {key}"):
            works.give_up(self._folder, key, why, f"the last words of the job {sent.job}:\n{words}")

    def _last_words(self, job: str) -> str:
        try:
            log = (self._folder / "slurm" / f"{job}_0_log.err").read_bytes()
        except OSError:
            return ""
        return log[-LAST_WORDS:].decode(errors="replace").strip()

    def _say_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)

    def _record(self, event: str, **what: Any) -> None:
        self._journal.append({"event": event, "generation": -1, "index": -1, **what})


class _Busy(Exception):
    """sbatch may work later."""


def _ids(number: str, count: int) -> list[str]:
    """The ids of the jobs of an array; one alone is no array."""
    return [number] if count == 1 else [f"{number}_{index}" for index in range(count)]


def _jobs(ids: Iterable[str]) -> str:
    ids = list(ids)
    return f"the SLURM job {ids[0]} is" if len(ids) == 1 else f"{len(ids)} SLURM jobs are"


def _exports(threads: int) -> list[str]:
    """What a job's process is to find in its environment."""
    return [f"export {name}={_quoted(value)}" for name, value in surroundings(threads).items()]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _sbatch_said(error: Exception) -> str:
    """What sbatch itself said, in what submitit says of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line.removeprefix("sbatch: error: ") for line in lines if line.startswith("sbatch: ")]
    return "; ".join(dict.fromkeys(told or lines or [type(error).__name__]))


def submitit() -> Any:
    """The library that submits jobs; raises where it or SLURM is not there."""
    try:
        import submitit as library
    except ImportError:
        raise MissingExtraError("the executor 'slurm'", "slurm") from None
    missing = [name for name in ("sbatch", "srun", "squeue", "scontrol") if shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"the executor 'slurm' needs SLURM's commands, but {', '.join(missing)} is not on the PATH of "
            f"{os.uname().nodename}: start the run where jobs can be submitted, or use the executor 'local'"
        )
    return library
