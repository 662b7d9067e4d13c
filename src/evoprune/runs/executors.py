"""Where work is carried out: in this process, or in worker processes on this machine; `slurm` is a cluster's.

An executor is handed keys of work that is written down in the run's folder, and says which are finished. It
never carries a result: that is read from the folder. So work on a cluster can outlive its driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evoprune.allocator import ENVIRONMENT
from evoprune.errors import RunError
from evoprune.runs import work as works
from evoprune.runs.alarm import Overdue, alarm
from evoprune.runs.files import refusals_said
from evoprune.runs.worker import TELL_AND_END

Say = Callable[[str], None]

LAST_WORDS = 1_500
"""How many of the last bytes that a dead worker wrote are told."""

TELLING = 2.0
"""Seconds that a worker has to write down where it hangs."""

STARTING = 300.0
"""Seconds that a worker has beyond the time limit to import and build a task; then the limit counts."""


CENSUS = 1.0
"""Seconds of silence after which it is seen whether workers live: a dead one's child may hold a pipe open."""

LEAVING = 5.0
"""Seconds that a worker has to end once it has closed its pipe."""


class Executor(Protocol):
    """What a run asks of a place to work."""

    def submit(self, keys: Sequence[str]) -> None:
        """Have this work done, in this order; it is written down in the run's folder."""

    def finished(self, timeout: float) -> list[str]:
        """The keys that were finished since the last call, waiting up to so many seconds for a first one.

        Each has a result in the run's folder, be it that it failed. Raises RunError where work cannot be
        carried out for a reason that lies not in it (the disk is full).
        """

    @property
    def running(self) -> int:
        """How many pieces of work are being carried out now."""

    def close(self) -> None:
        """Stop. Unfinished work ends here, but for that on a cluster: it goes on without a driver."""


class Inline:
    """In this process, one after the other: for debugging, for tasks that are objects, and on one core."""

    def __init__(self, folder: Path, *, tasks: Mapping[str, works.Task] | None = None) -> None:
        self._folder = folder
        self._bench = works.Bench(folder, tasks)
        self._keys: deque[str] = deque()

    def submit(self, keys: Sequence[str]) -> None:
        self._keys.extend(keys)

    def finished(self, timeout: float) -> list[str]:
        if not self._keys:
            return []
        key = self._keys.popleft()
        limit = works.time_limit(self._folder, key)
        with refusals_said(f"working on {key}"):
            try:
                with alarm(limit) as set_alarm:
                    self._bench.carry_out(key, begun=set_alarm)
            except Overdue as overdue:
                works.give_up(self._folder, key, f"took longer than {limit:g} seconds", works.traced(overdue))
        return [key]

    @property
    def running(self) -> int:
        return min(1, len(self._keys))

    def close(self) -> None:
        self._keys.clear()


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    log: Path
    gpu: str
    heard: bytes = b""
    key: str | None = None
    limit: float | None = None
    deadline: float = float("inf")


class Local:
    """Spawned worker processes. One that dies or takes too long is replaced, and its work tried again.

    gpus: as CUDA_VISIBLE_DEVICES names them; each worker sees one, spread evenly.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int,
        threads: int,
        gpus: Sequence[str] = (),
        retries: int = 2,
        say: Say = lambda text: None,
    ) -> None:
        self._folder = folder
        self._count = workers
        self._threads = threads
        self._gpus = gpus
        self._retries = retries
        self._say = say
        self._keys: deque[str] = deque()
        self._failures: dict[str, int] = {}
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._done: list[str] = []
        self._number = 0

    def submit(self, keys: Sequence[str]) -> None:
        self._keys.extend(keys)
        self._hand_out()

    @property
    def running(self) -> int:
        return sum(worker.key is not None for worker in self._workers)

    def finished(self, timeout: float) -> list[str]:
        end = time.monotonic() + timeout
        while not self._done and self.running:
            now = time.monotonic()
            wake = min([end, *(worker.deadline for worker in self._workers)])
            heard = self._selector.select(max(0.0, min(wake, now + CENSUS) - now))
            for key, _ in heard:
                self._listen(key.data)
            for worker in list(self._workers):
                if worker.deadline <= time.monotonic():
                    _stop_telling(worker)
                    self._replace(worker, f"took longer than {worker.limit:g} seconds")
                elif not heard and worker.process.poll() is not None:
                    self._replace(worker, _ending(worker))
            self._hand_out()
            if time.monotonic() >= end:
                break
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        self._keys.clear()
        for worker in list(self._workers):
            self._end(worker)
        self._selector.close()

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.key is None and self._keys:
                self._start(worker)
        while self._keys and len(self._workers) < self._count:
            self._start(self._hire())

    def _start(self, worker: _Worker) -> None:
        key = self._keys.popleft()
        worker.key = key
        worker.limit = works.time_limit(self._folder, key)
        worker.deadline = _deadline(worker.limit, STARTING)
        assert worker.process.stdin is not None
        # A worker that has just died is noticed by its silence, in `_listen`.
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.write(f"{key}\n".encode())
            worker.process.stdin.flush()

    def _hire(self) -> _Worker:
        self._number += 1
        log = self._folder / "workers" / f"{os.getpid()}-{self._number}.log"
        environment = os.environ | surroundings(self._threads)
        gpu = ""
        if self._gpus:
            taken = Counter(worker.gpu for worker in self._workers)
            gpu = environment["CUDA_VISIBLE_DEVICES"] = min(self._gpus, key=lambda each: taken[each])
        with refusals_said("starting a worker"):
            log.parent.mkdir(exist_ok=True)
            with log.open("wb") as file:
                process = subprocess.Popen(
                    [sys.executable, "-m", "evoprune.runs.worker", str(self._folder.absolute())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env=environment,
                    bufsize=0,
                    # Ctrl-C is for the driver; and whatever a task starts ends with its worker.
                    process_group=0,
                )
        worker = _Worker(process, log, gpu)
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        self._workers.append(worker)
        return worker

    def _listen(self, worker: _Worker) -> None:
        """Read what a worker said, or that it is gone."""
        assert worker.process.stdout is not None
        piece = os.read(worker.process.stdout.fileno(), 65536)
        if not piece:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(LEAVING)
            self._replace(worker, _ending(worker))
            return
        *lines, worker.heard = (worker.heard + piece).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if answer["says"] == "begun":
                worker.deadline = _deadline(worker.limit)
            elif answer["says"] == "done":
                worker.key, worker.deadline = None, float("inf")
                self._done.append(answer["key"])
            else:
                raise RunError(f"working on {answer['key']} failed: {answer['why']}")

    def _replace(self, worker: _Worker, why: str) -> None:
        """A worker failed: end it, and try its work again with another, if not too often."""
        key = worker.key
        self._end(worker)
        if key is None:
            return
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        if works.result(self._folder, key) is not None:  # it fell over after its work was done
            self._done.append(key)
        elif failures <= self._retries:
            self._say(f"{key}: {why}; tried again, {failures} of {self._retries}")
            self._keys.appendleft(key)
        else:
            self._say(f"{key}: {why}; given up after {times(failures)}")
            with refusals_said(f"giving up {key}"):
                works.give_up(
                    self._folder, key, f"{why}; given up after {times(failures)}", _last_words(worker)
                )
            self._done.append(key)

    def _end(self, worker: _Worker) -> None:
        assert worker.process.stdin is not None and worker.process.stdout is not None
        self._workers.remove(worker)
        self._selector.unregister(worker.process.stdout)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        for pipe in (worker.process.stdin, worker.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


def gpus_here() -> tuple[str, ...]:
    """The GPUs of this machine that may be used, as CUDA_VISIBLE_DEVICES names them."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        try:
            command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
            allowed = ",".join(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            )
        except (OSError, subprocess.CalledProcessError):
            return ()
    return tuple(filter(None, (each.strip() for each in allowed.split(","))))


def surroundings(threads: int) -> dict[str, str]:
    """What the process of a worker or a job is to find in its environment."""
    return {
        # A task's module is found where the driver finds it.
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        **{name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()},
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
    }


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits meanwhile, and does not reach processes that are started."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def times(attempts: int) -> str:
    """A number of attempts, in words."""
    return "one attempt" if attempts == 1 else f"{attempts} attempts"


def _deadline(limit: float | None, more: float = 0.0) -> float:
    return float("inf") if limit is None else time.monotonic() + limit + more


def _stop_telling(worker: _Worker) -> None:
    """End a worker in a way that has it write down where it is."""
    worker.process.send_signal(TELL_AND_END)
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.process.wait(TELLING)


def _ending(worker: _Worker) -> str:
    """How a worker ended."""
    code = worker.process.returncode
    if code is None:
        return "its worker closed its pipe, and did not end"
    if code < 0:
        name = signal.Signals(-code).name
        how = f"its worker was ended by {name}"
        if name == "SIGKILL":
            how += " (out of memory?)"
        return how
    return f"its worker ended with exit code {code}"


def _last_words(worker: _Worker) -> str:
    """The end of what a worker wrote: its traceback, if it could still write one."""
    try:
        words = worker.log.read_bytes()[-LAST_WORDS:].decode(errors="replace").strip()
    except OSError:
        return ""
    return f"the last words of its worker:\n{words}" if words else ""
