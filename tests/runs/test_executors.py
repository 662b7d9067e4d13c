"""What every executor must do, and what workers do when tasks misbehave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import toys
from evoprune.errors import ConfigError, RunError
from evoprune.runs import work as works
from evoprune.runs.executors import Executor, Inline, Local, gpus_here
from evoprune.runs.journal import Journal
from evoprune.runs.slurm import Cluster, Slurm
from evoprune.runs.work import EVALUATE, PREPARE, SCORE, Work

KEEPS = [{"first": [0, 1, index], "second": [2, 3, 4]} for index in (2, 3, 4, 5)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("evals", "tasks"):
        (tmp_path / name).mkdir()
    (tmp_path / "journal.jsonl").touch()
    return tmp_path


@pytest.fixture(
    params=["inline", "one worker", "two workers", pytest.param("slurm", marks=pytest.mark.heavy)]
)
def executor(request: pytest.FixtureRequest, folder: Path) -> Iterator[Executor]:
    made: Executor
    if request.param == "inline":
        made = Inline(folder)
    elif request.param == "slurm":
        request.getfixturevalue("slurm")
        journal = Journal(folder / "journal.jsonl")
        request.addfinalizer(journal.close)
        made = Slurm(folder, Cluster(memory="1GB", poll=0.5), journal=journal, threads=1, retries=1)
    else:
        made = Local(folder, workers=1 if request.param == "one worker" else 2, threads=1, retries=1)
    yield made
    made.close()


def evaluation(number: int = 0, limit: float | None = None, **options: object) -> Work:
    kept = {"channels": KEEPS[number], "constant": []}
    return Work(EVALUATE, "toy", "toys:Layer", options, kept=kept, seed=5, limit=limit)


def done(executor: Executor, folder: Path, *wanted: Work) -> dict[str, works.Table]:
    """Have work done; the results by key, in the order in which they came."""
    executor.submit([works.order(folder, work) for work in wanted])
    results: dict[str, works.Table] = {}
    while len(results) < len(wanted):
        for key in executor.finished(60):
            result = works.result(folder, key)
            assert result is not None
            results[key] = result
    assert executor.running == 0
    return results


def test_every_executor_gives_the_same_results(executor: Executor, folder: Path) -> None:
    wanted = [evaluation(number) for number in range(4)]
    wanted += [Work(SCORE, "toy", "toys:Layer", functions=("var_g(F+)", "slice(B)", "count_g(F)"))]
    wanted += [Work(PREPARE, "toy", "toys:Layer")]
    results = done(executor, folder, *wanted)
    toy = toys.Layer(folder / "tasks" / "toy")
    for work in wanted[:4]:
        expected = toy.evaluate(works.Kept.of(work.kept), 5).accuracy
        assert results[work.key]["accuracy"] == expected
    scored = results[wanted[4].key]["functions"]
    assert scored[0]["channels"] == {
        site: list(kept) for site, kept in toy.kept("var_g(F+)").channels.items()
    }
    assert scored[0]["constant"] == []
    assert scored[2]["constant"] == ["first", "second"]
    assert results[wanted[5].key]["accuracy"] == 0.95
    assert len(toys.calls(folder)) == 8, "each once, and those of this test"


def test_work_is_done_in_the_order_given(folder: Path) -> None:
    wanted = [evaluation(number) for number in (2, 0, 3, 1)]
    for executor in (Inline(folder), Local(folder, workers=1, threads=1)):
        assert list(done(executor, folder, *wanted)) == [work.key for work in wanted]
        executor.close()


@pytest.mark.parametrize("trouble", ["raise", "exit", "stop"])
def test_a_task_that_raises_is_a_result_with_its_traceback(
    executor: Executor, folder: Path, trouble: str
) -> None:
    good, bad = evaluation(), evaluation(1, trouble=trouble, every=1)
    other = Work(EVALUATE, "other", "toys:Layer", kept=good.kept)
    results = done(executor, folder, bad, other)
    assert results[other.key]["ok"]
    assert not results[bad.key]["ok"]
    assert "the toy" in results[bad.key]["error"]
    assert "in evaluate" in results[bad.key]["traceback"]


def test_an_accuracy_that_is_none_is_a_failure(executor: Executor, folder: Path) -> None:
    work = Work(EVALUATE, "toy", "toys:nan_task", kept=evaluation().kept)
    assert "gave the accuracy nan, expected 0 to 1" in done(executor, folder, work)[work.key]["error"]


def test_one_function_that_fails_leaves_the_others_scored(executor: Executor, folder: Path) -> None:
    functions = ("mean_g(F)", "prod_g(outprod(sq(sq(sq(outprod(F, F)))), F))", "no function", "std_g(F)")
    work = Work(SCORE, "toy", "toys:Layer", functions=functions)
    scored = done(executor, folder, work)[work.key]["functions"]
    assert ["error" in each for each in scored] == [False, False, True, False]


def test_a_task_that_hangs_is_given_up_after_its_time(executor: Executor, folder: Path) -> None:
    good, bad = evaluation(0, limit=30), evaluation(1, limit=0.2, trouble="hang", every=1)
    slow = Work(EVALUATE, "slow", "toys:Layer", bad.options, kept=bad.kept, limit=0.2)
    results = done(executor, folder, slow, Work(EVALUATE, "good", "toys:Layer", kept=good.kept, limit=30))
    assert "took longer than 0.2 seconds" in results[slow.key]["error"]
    assert "in _trouble" in results[slow.key]["traceback"], "where it hung"
    assert sum(result["ok"] for result in results.values()) == 1


def test_a_full_disk_is_no_failure_of_the_function(executor: Executor, folder: Path) -> None:
    work = evaluation(trouble="disk full", every=1)
    with pytest.raises(RunError, match="No space left on device"):
        done(executor, folder, work)
    assert works.result(folder, work.key) is None


def test_a_factory_that_is_not_there_is_told(executor: Executor, folder: Path) -> None:
    work = Work(PREPARE, "toy", "no_such_module:Task")
    assert "No module named 'no_such_module'" in done(executor, folder, work)[work.key]["error"]


# Worker processes


@pytest.mark.parametrize(
    ("trouble", "why"), [("die once", "SIGKILL"), ("exit once", "exit code 0"), ("crash once", "SIGSEGV")]
)
def test_a_dead_worker_is_replaced_and_its_work_tried_again(folder: Path, trouble: str, why: str) -> None:
    told: list[str] = []
    executor = Local(folder, workers=2, threads=1, retries=1, say=told.append)
    wanted = [evaluation(number, trouble=trouble, every=1) for number in range(4)]
    results = done(executor, folder, *wanted)
    executor.close()
    assert all(result["ok"] for result in results.values())
    assert len(told) == 4 and all(why in each and "tried again, 1 of 1" in each for each in told)


@pytest.mark.parametrize("trouble", ["deaf", "freeze"])
def test_a_worker_that_answers_nothing_is_replaced_after_its_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr("evoprune.runs.executors.TELLING", 0.05)
    executor = Local(folder, workers=1, threads=1, retries=1)
    bad = evaluation(1, limit=0.2, trouble=trouble, every=1)
    good = Work(EVALUATE, "good", "toys:Layer", kept=bad.kept, limit=30)
    results = done(executor, folder, bad, good)
    executor.close()
    assert "took longer than 0.2 seconds; given up after 2 attempts" in results[bad.key]["error"]
    assert results[good.key]["ok"]


def test_a_workers_children_neither_outlive_it_nor_hide_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evoprune.runs.executors.CENSUS", 0.01)
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("TOY_PIPE", str(pipe))
    executor = Local(folder, workers=1, threads=1, retries=0)
    work = evaluation(trouble="leave a child", every=1)
    executor.submit([works.order(folder, work)])
    with pipe.open("rb") as reading:
        assert reading.readline() == b"child\n"
        assert executor.finished(60) == [work.key]
        assert reading.read() == b"", "this would wait for ever if the child lived on"
    result = works.result(folder, work.key)
    assert result is not None and "SIGKILL" in result["error"]
    executor.close()


def test_work_that_always_kills_its_worker_is_given_up(folder: Path) -> None:
    executor = Local(folder, workers=1, threads=1, retries=2)
    bad, good = (
        evaluation(1, trouble="die", every=1),
        Work(EVALUATE, "good", "toys:Layer", kept=evaluation().kept),
    )
    results = done(executor, folder, bad, good)
    executor.close()
    assert "given up after 3 attempts" in results[bad.key]["error"]
    assert results[good.key]["ok"]


def test_the_last_words_of_a_worker_are_told(folder: Path) -> None:
    executor = Local(folder, workers=1, threads=1, retries=0)
    work = Work(PREPARE, "toy", "toys:last_words")
    result = done(executor, folder, work)[work.key]
    executor.close()
    assert result["error"] == "its worker ended with exit code 3; given up after one attempt"
    assert "these are my last words" in result["traceback"]


@pytest.mark.parametrize("trouble", ["crash", "hang"])
def test_where_a_worker_crashed_or_hung_is_told(folder: Path, trouble: str) -> None:
    executor = Local(folder, workers=1, threads=1, retries=0)
    work = evaluation(limit=0.2, trouble=trouble, every=1)
    trace = done(executor, folder, work)[work.key]["traceback"]
    executor.close()
    assert "toys.py" in trace and "in _trouble" in trace


def test_threads_reach_the_worker(folder: Path) -> None:
    executor = Local(folder, workers=1, threads=3)
    work = Work(SCORE, "toy", "toys:environment", functions=("F",), threads=3)
    (scored,) = done(executor, folder, work)[work.key]["functions"]
    executor.close()
    assert scored["channels"]["OMP_NUM_THREADS"] == [3]


def test_each_worker_has_a_gpu_to_itself(folder: Path) -> None:
    executor = Local(folder, workers=2, threads=1, gpus=("5", "7"))
    wanted = [Work(SCORE, name, "toys:environment", functions=("F",)) for name in ("a", "b")]
    results = done(executor, folder, *wanted)
    executor.close()
    seen = [results[work.key]["functions"][0]["channels"]["CUDA_VISIBLE_DEVICES"] for work in wanted]
    assert sorted(seen) == [[5], [7]]


def test_gpus_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 3")
    assert gpus_here() == ("1", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_here() == ()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus_here() == ()
    lists_two = tmp_path / "nvidia-smi"
    lists_two.write_text("#!/bin/sh\necho 0\necho 1\n")
    lists_two.chmod(0o755)
    assert gpus_here() == ("0", "1")


DRIVER = """
import sys, threading
from pathlib import Path
from evoprune.runs.executors import Local
executor = Local(Path(sys.argv[1]), workers=2, threads=1)
executor.submit(sys.argv[2:])
executor.finished(60)
"""


def test_workers_end_with_their_driver(folder: Path) -> None:
    """A pipe that hanging workers hold open is at its end once they are gone: no pids to poll."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    keys = [works.order(folder, evaluation(number, trouble="hang", every=1)) for number in range(2)]
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), *keys],
        env=toys.surroundings(TOY_PIPE=str(pipe)),
    )
    with pipe.open("rb") as reading:
        assert [reading.readline() for _ in range(2)] == [b"hanging\n"] * 2
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        assert reading.read() == b"", "this would wait for ever if a worker lived on"


def test_outside_the_main_thread_a_limit_needs_workers(folder: Path) -> None:
    caught: list[Exception] = []

    def work() -> None:
        try:
            done(Inline(folder), folder, evaluation(limit=1.0))
        except ConfigError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "executor 'local'" in str(caught[0])


def test_the_key_is_what_decides_the_result(folder: Path) -> None:
    same: list[Callable[[], Work]] = [
        lambda: Work(EVALUATE, "toy", "x:y", kept={"channels": KEEPS[0], "constant": ["first"]}, seed=5),
        lambda: Work(EVALUATE, "toy", "x:z", threads=2, kept={"channels": KEEPS[0], "constant": []}, seed=5),
    ]
    assert len({make().key for make in same}) == 1
    other = [
        Work(EVALUATE, "toy", "x:y", kept={"channels": KEEPS[1], "constant": []}, seed=5),
        Work(EVALUATE, "toy", "x:y", kept={"channels": KEEPS[0], "constant": []}, seed=6),
        Work(EVALUATE, "yot", "x:y", kept={"channels": KEEPS[0], "constant": []}, seed=5),
    ]
    assert len({work.key for work in other} | {same[0]().key}) == 4
