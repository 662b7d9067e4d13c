"""Killed at any moment and resumed: the same result as never killed, and nothing recorded evaluated twice."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import toys
from evoprune.runs.journal import comparable, read

KILLS = 24

CONFIG = """
seed = 3
tasks = [
  {name = "a", factory = "toys:Layer"},
  {name = "b", factory = "toys:Layer", options = {seed = 1}},
]
population = {size = 12, generations = 4, soap = 5, selected = 4, children = 6, immigrants = 2}
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A driver in a process group of its own, as a shell starts one."""
    return subprocess.Popen(
        [sys.executable, "-m", "evoprune.cli", *arguments],
        cwd=folder,
        env=toys.surroundings(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said.decode()


def folder_of(tmp_path: Path, executor: str) -> Path:
    (tmp_path / "toy.toml").write_text(CONFIG + f'run = {{executor = "{executor}", workers = 2}}\n')
    return tmp_path


def whole(folder: Path) -> tuple[list[str], Counter[str], str]:
    """The journal as it is compared, how often what was evaluated, and the hall of fame."""
    run = folder / "runs" / "it"
    begun = Counter(toys.calls(run))
    return comparable(read(run / "journal.jsonl").records), begun, (run / "hall_of_fame.csv").read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Counter[str], str]:
    folder = folder_of(tmp_path_factory.mktemp("undisturbed"), "inline")
    finish(start(folder, "evolve", "toy.toml", "--name", "it"))
    journal, begun, hall = whole(folder)
    assert len(begun) > 20 and set(begun.values()) == {1}, "no work is repeated"
    return journal, begun, hall


def test_several_workers_write_the_same_journal(
    tmp_path: Path, undisturbed: tuple[list[str], Counter[str], str]
) -> None:
    folder = folder_of(tmp_path, "local")
    finish(start(folder, "evolve", "toy.toml", "--name", "it"))
    assert whole(folder) == undisturbed


def evaluated(run: Path) -> set[str]:
    """The evaluations that are recorded, or have at least left their result."""
    done = {path.parent.name for path in run.glob("evals/*/result.json")}
    if (run / "journal.jsonl").exists():
        records = read(run / "journal.jsonl").records
        done |= {record["kept"] for record in records if record["event"] == "evaluated"}
    works = [json.loads((run / "evals" / key / "work.json").read_text()) for key in done]
    return {
        toys.call(work["task"], work["kept"]["channels"], work["seed"])
        for work in works
        if work["kind"] == "evaluate"
    }


def grown_to(journal: Path, size: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the journal has so many bytes; False where the process ended before."""
    while True:
        if journal.exists() and journal.stat().st_size >= size:
            return True
        if process.poll() is not None:
            return False
        select.select([], [], [], 0.0005)


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_killed_at_random_moments(
    tmp_path: Path, undisturbed: tuple[list[str], Counter[str], str], executor: str
) -> None:
    """The whole process group dies by SIGKILL once the journal has grown by a random number of bytes; half
    of the times its end is then torn off within the last growth, as a kill in the middle of a write would."""
    folder = folder_of(tmp_path, executor)
    journal = folder / "runs" / "it" / "journal.jsonl"
    rng = random.Random(f"kill {executor}")
    step = sum(map(len, undisturbed[0])) // KILLS
    run = folder / "runs" / "it"
    kills = torn = size = 0
    command = ["evolve", "toy.toml", "--name", "it"]
    for _ in range(3 * KILLS):
        recorded, begun_before = evaluated(run), Counter(toys.calls(run))
        process = start(folder, *command)
        alive = grown_to(journal, size + rng.randrange(1, 2 * step), process)
        if alive:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
        else:
            finish(process)
        assert not recorded & (Counter(toys.calls(run)) - begun_before).keys()
        if not alive:
            break
        command = ["resume", "it"]
        before, size = size, journal.stat().st_size
        if rng.random() < 0.5 and size - before > 1:
            # No further back than what was written since the last line: a torn write, not a lost one.
            lines = journal.read_bytes()
            last = lines[:-1].rfind(b"\n") + 1
            size = rng.randrange(max(before, last), size)
            os.truncate(journal, size)
            torn += 1
    else:
        finish(start(folder, *command))
    assert kills >= 20 and torn >= 5, (kills, torn)
    result, begun, hall = whole(folder)
    assert (result, hall) == (undisturbed[0], undisturbed[2])
    # What was begun and not yet written down when the kill came is begun again: once per worker and kill.
    assert set(begun) == set(undisturbed[1])
    assert sum(begun.values()) - len(begun) <= kills * (2 if executor == "local" else 1)
