"""What tasks of one's own do that nobody thought of: other kinds of numbers, reading, forking, odd texts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import toys
from evoprune.runs import work as works
from evoprune.runs.executors import Executor, Inline, Local
from evoprune.runs.work import EVALUATE, Work

KEPT = {"channels": {"first": [0, 1, 2], "second": [2, 3, 4]}, "constant": []}


class Odd(toys.Layer):
    """A task that does what its options name before it judges."""

    def evaluate(self, kept: toys.Kept, seed: int) -> toys.Judged:
        return ODD[self.trouble](super().evaluate(kept, seed))


def reading(judged: toys.Judged) -> toys.Judged:
    input()
    return judged


def forking(judged: toys.Judged) -> toys.Judged:
    """The child comes back as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        os.fork()
    return judged


def unwritable(judged: toys.Judged) -> toys.Judged:
    raise FileNotFoundError("no image \udcff.png\x00")


def endless(judged: toys.Judged) -> toys.Judged:
    raise ValueError("x" * 100_000)


ODD: dict[str, Callable[[toys.Judged], toys.Judged]] = {
    "": lambda judged: judged,
    "numpy": lambda judged: toys.Judged(np.float32(0.5)),  # type: ignore[arg-type]
    "tensor": lambda judged: toys.Judged(np.array(0.25)),  # type: ignore[arg-type]
    "text": lambda judged: toys.Judged("0.5"),  # type: ignore[arg-type]
    "reading": reading,
    "forking": forking,
    "unwritable": unwritable,
    "endless": endless,
}


@pytest.fixture(params=["inline", "local"])
def outcome(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """What comes of an evaluation by a task that does something odd, and of a plain one after it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    for name in ("evals", "tasks"):
        (tmp_path / name).mkdir()
    executor: Executor = Inline(tmp_path)
    if request.param == "local":
        executor = Local(tmp_path, workers=1, threads=1, retries=0)

    def evaluated(trouble: str) -> works.Table:
        wanted = [
            Work(EVALUATE, name, "test_odd_tasks:Odd", {"trouble": how}, kept=KEPT, limit=20.0)
            for name, how in (("odd", trouble), ("plain", ""))
        ]
        executor.submit([works.order(tmp_path, work) for work in wanted])
        finished: list[str] = []
        while len(finished) < 2:
            finished += executor.finished(60)
        assert finished == [work.key for work in wanted]
        assert executor.finished(0.2) == [], "nothing is finished twice"
        odd, plain = (works.result(tmp_path, work.key) for work in wanted)
        assert odd is not None and plain is not None and plain["ok"]
        return odd

    evaluated.local = request.param == "local"  # type: ignore[attr-defined]
    yield evaluated
    executor.close()


@pytest.mark.parametrize(("trouble", "accuracy"), [("numpy", 0.5), ("tensor", 0.25)])
def test_other_libraries_numbers_are_numbers(
    outcome: Callable[[str], works.Table], trouble: str, accuracy: float
) -> None:
    assert outcome(trouble)["accuracy"] == accuracy


@pytest.mark.parametrize(
    ("trouble", "says"),
    [("text", "gave the accuracy '0.5'"), ("unwritable", r"no image \udcff.png"), ("endless", "xxx …")],
)
def test_every_failure_can_be_written_down(
    outcome: Callable[[str], works.Table], trouble: str, says: str
) -> None:
    result = outcome(trouble)
    assert not result["ok"] and says in result["error"]
    assert len(result["error"]) < 3000


def test_a_task_that_reads_finds_no_input(outcome: Callable[[str], works.Table]) -> None:
    """Neither the driver's orders nor an endless wait."""
    assert "E" in outcome("reading")["error"]


def test_ctrl_c_does_not_reach_workers_not_even_while_they_start(tmp_path: Path) -> None:
    """A terminal sends it to a group of processes; theirs are others than the driver's."""
    for name in ("evals", "tasks"):
        (tmp_path / name).mkdir()
    executor = Local(tmp_path, workers=1, threads=1, retries=0)
    work = Work(EVALUATE, "plain", "toys:Layer", kept=KEPT)
    executor.submit([works.order(tmp_path, work)])
    assert os.getpgid(executor._workers[0].process.pid) != os.getpgrp()
    assert executor.finished(60) == [work.key]
    executor.close()


def test_a_child_that_a_task_forked_does_not_go_on_as_a_worker(outcome: Callable[[str], works.Table]) -> None:
    if outcome.local:  # type: ignore[attr-defined]  # nobody forks pytest
        assert outcome("forking")["ok"]
