"""What surrounds evaluations: workers beside each other, the driver's share of the time, dispatch at scale.

    python benchmarks/bench_executors.py [--parts workers driver scale] [--json FILE]

workers   the same evaluations of the demo's tasks with one worker and with two, one thread each, alternating
          in rounds of a generation's size; workers are warm, so that what is compared is work
driver    a generation of the demo with 40 functions on two workers: the share of its time in which the driver
          does anything but wait for evaluations, and its processor time, waiting included
scale     1,000 functions on 500 worker processes of this machine, whose evaluations sleep for 5 to 30
          seconds: beside a perfect scheduler, which hands them out in the same order in no time

All three take about nine minutes on two cores, and want them for themselves.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import evoprune
from evoprune.evolution.search import Run
from evoprune.runs import work as works
from evoprune.runs.executors import Local
from evoprune.runs.work import EVALUATE, PREPARE, SCORE, Work

sys.path.insert(0, str(Path(__file__).parent))  # workers find the sleepers

NAMED = "evoprune.tasks.task:named"
TASKS = ("digits", "shapes")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "executors.json")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    given = parser.parse_args()
    known: dict[str, Any] = json.loads(given.json.read_text()) if given.json.exists() else {}
    for part in given.parts:
        with tempfile.TemporaryDirectory() as folder:
            known[part] = PARTS[part](Path(folder)) | {
                "cores": len(os.sched_getaffinity(0)),
                "date": time.strftime("%Y-%m-%d"),
            }
    given.json.write_text(json.dumps(known, indent=2) + "\n")


# --- two workers beside one ------------------------------------------------------------------------------


def workers(folder: Path, rounds: int = 2, of_a_round: int = 24) -> dict[str, float]:
    """Evaluations per minute with one worker and with two."""
    for name in ("evals", "tasks"):
        (folder / name).mkdir()
    places = {count: Local(folder, workers=count, threads=1) for count in (1, 2)}
    done(places[2], folder, [Work(PREPARE, task, NAMED, {"name": task}) for task in TASKS])
    fresh = evaluations(folder, places[1])
    for count, executor in places.items():  # every worker builds both tasks
        done(executor, folder, itertools.islice(fresh, 4 * count))
    seconds = dict.fromkeys(places, 0.0)
    for _ in range(rounds):
        for count, executor in places.items():
            begun = time.monotonic()
            done(executor, folder, itertools.islice(fresh, of_a_round))
            seconds[count] += time.monotonic() - begun
    for executor in places.values():
        executor.close()
    rates = {count: 60 * rounds * of_a_round / spent for count, spent in seconds.items()}
    ratio = rates[2] / rates[1]
    print(f"evaluations per minute: one worker {rates[1]:.1f}, two workers {rates[2]:.1f}, ratio {ratio:.2f}")
    return {"one_per_minute": rates[1], "two_per_minute": rates[2], "ratio": ratio}


def evaluations(folder: Path, executor: Local) -> Iterator[Work]:
    """Evaluations of channels drawn at random, of each task in turn; none is there twice."""
    rng = np.random.default_rng(0)
    shapes = {}
    for task in TASKS:
        scored = done(executor, folder, [Work(SCORE, task, NAMED, {"name": task}, functions=("l1",))])
        kept = scored[0]["functions"][0]["channels"]
        shapes[task] = {site: (max(channels) + 1, len(channels)) for site, channels in kept.items()}
    for number in itertools.count():
        task = TASKS[number % len(TASKS)]
        channels = {
            site: sorted(rng.permutation(of)[:count].tolist()) for site, (of, count) in shapes[task].items()
        }
        yield Work(EVALUATE, task, NAMED, {"name": task}, kept={"channels": channels, "constant": []}, seed=1)


def done(executor: Local, folder: Path, wanted: Iterable[Work]) -> list[works.Table]:
    """Have work done; the results in the order asked for."""
    keys = [works.order(folder, work) for work in wanted]
    executor.submit(keys)
    left = len(keys)
    while left:
        left -= len(executor.finished(60))
    results = [works.result(folder, key) for key in keys]
    assert all(result is not None and result["ok"] for result in results), results
    return [result for result in results if result is not None]


# --- the driver's share ----------------------------------------------------------------------------------


class Measured(Local):
    """Workers, with a note of the time spent waiting for them and handing out to them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.waited = 0.0
        self.dispatches: list[float] = []

    def finished(self, timeout: float) -> list[str]:
        with added_to(self, "waited"):
            return super().finished(timeout)

    def _start(self, worker: Any) -> None:
        begun = time.perf_counter()
        super()._start(worker)
        self.dispatches.append(time.perf_counter() - begun)


@contextmanager
def added_to(place: object, name: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    setattr(place, name, getattr(place, name) + time.monotonic() - begun)


def measured(run: Run) -> Measured:
    """The executor of a run, measured from now on."""
    executor = run._executor
    assert isinstance(executor, Local)
    executor.__class__ = Measured
    assert isinstance(executor, Measured)
    executor.waited, executor.dispatches = 0.0, []
    return executor


def driver(folder: Path) -> dict[str, float]:
    """The share of a generation's time that is not waiting, with the demo's tasks and 40 functions."""
    # The first generation is of SOAP's ten functions only: it builds the tasks, and is not counted.
    population = {"size": 40, "generations": 2, "soap": 40, "selected": 10, "children": 24, "immigrants": 6}
    run = evoprune.evolve(
        {"population": population, "run": {"workers": 2, "threads": 1}}, preset="demo", runs=folder
    )
    executor = measured(run)
    generations = iter(run)
    next(generations)
    evaluations_before = len(run.ledger.outcomes)
    begun, processor, executor.waited = time.monotonic(), time.process_time(), 0.0
    next(generations)
    seconds = time.monotonic() - begun
    result = {
        "share": 1 - executor.waited / seconds,
        "processor_share": (time.process_time() - processor) / seconds,
        "seconds_of_a_generation": seconds,
        "evaluations": len(run.ledger.outcomes) - evaluations_before,
    }
    run.close()
    print(
        f"driver: {result['share']:.2%} of a generation of {seconds:.0f} seconds, 40 functions, "
        f"{result['evaluations']} evaluations; processor time {result['processor_share']:.2%}"
    )
    return result


# --- a thousand functions on five hundred workers --------------------------------------------------------

SIZE, WORKERS, SHORTEST, LONGEST = 1_000, 500, 5.0, 30.0


def scale(folder: Path) -> dict[str, float]:
    """The second generation of an evolution, whose workers are warm from the first."""
    table = {
        "tasks": [
            {
                "name": "sleep",
                "factory": "sleepers:Sleeper",
                "options": {"shortest": SHORTEST, "longest": LONGEST},
            }
        ],
        "population": {
            "size": SIZE,
            "generations": 2,
            "soap": 0,
            "selected": 1,
            "children": SIZE - 1,
            "immigrants": 0,
        },
        "run": {"workers": WORKERS},
    }
    run = evoprune.evolve(table, runs=folder)
    executor = measured(run)
    times = run.folder.tasks / "sleep"
    generations = iter(run)
    next(generations)
    for path in times.glob("*.times"):
        path.unlink()
    executor.dispatches.clear()
    submitted: list[float] = []
    original = executor.submit

    def submit(keys: Sequence[str]) -> None:
        submitted.append(time.monotonic())
        original(keys)

    executor.submit = submit  # type: ignore[method-assign]
    begun = time.monotonic()
    next(generations)
    ended = time.monotonic()
    spans = sorted(tuple(map(float, path.read_text().split())) for path in times.glob("*.times"))
    perfect = makespan([end - start for start, end in spans])
    bound = max(sum(end - start for start, end in spans) / WORKERS, max(end - start for start, end in spans))
    taken = ended - submitted[-1]
    result = {
        "evaluations": len(spans),
        "seconds": taken,
        "perfect": perfect,
        "of_perfect": perfect / taken,
        "of_lower_bound": bound / taken,
        "breeding_before": submitted[-1] - begun,
        "dispatch_mean_ms": 1e3 * statistics.mean(executor.dispatches),
        "dispatch_p99_ms": 1e3 * statistics.quantiles(executor.dispatches, n=100)[-1],
        "dispatch_most_ms": 1e3 * max(executor.dispatches),
    }
    run.close()
    print(
        f"scale: {len(spans)} evaluations on {WORKERS} workers in {taken:.1f} s; a perfect scheduler takes "
        f"{perfect:.1f} s: {perfect / taken:.1%} (no order can do better than {bound:.1f} s)"
    )
    print(
        f"dispatch: mean {result['dispatch_mean_ms']:.3f} ms, 99 % below {result['dispatch_p99_ms']:.3f} ms"
    )
    return result


def makespan(lengths: Iterable[float]) -> float:
    """How long a perfect scheduler takes: each begins, in this order, the moment that a worker is free."""
    free = [0.0] * WORKERS
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


PARTS = {"workers": workers, "driver": driver, "scale": scale}

if __name__ == "__main__":
    main()
