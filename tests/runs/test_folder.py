"""A run's folder: made whole or not at all, held by one process, found by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evoprune import files
from evoprune.errors import RunError
from evoprune.runs import folder
from evoprune.runs.folder import Lock, RunFolder, create, find, is_locked, names, next_name


def made(runs: Path, name: str = "one") -> RunFolder:
    return create(runs, name, "seed = 0\n", {"event": "run", "generation": -1, "index": -1})


def test_a_taken_name_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    first = made(tmp_path)
    before = {path: path.read_bytes() for path in first.path.iterdir()}
    with pytest.raises(RunError, match=r"there is already a run 'one'.*evoprune resume one"):
        made(tmp_path)
    assert {path: path.read_bytes() for path in first.path.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"], "nothing is left lying about"


@pytest.mark.parametrize("name", ["", "../x", "a b", ".hidden", "-x", "a/b", "x" * 101])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="cannot be a run's name"):
        made(tmp_path, name)


def test_a_place_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunError, match=r"making the folder of the run 'one' in .*runs failed"):
        made(tmp_path / "runs")


def test_a_folder_that_cannot_be_written_to_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path)

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(folder, "write", refuse)
    with pytest.raises(RunError, match=r"trying out the run's folder .*Read-only file system"):
        run.exercise()


def test_runs_are_listed_and_found_by_name_or_path(tmp_path: Path) -> None:
    assert names(tmp_path) == []
    for number, name in enumerate(("b", "a")):
        os.utime(made(tmp_path, name).config, (number, number))
    assert names(tmp_path) == ["b", "a"], "the latest last"
    assert find(tmp_path, "a").path == find(Path("elsewhere"), str(tmp_path / "a")).path
    with pytest.raises(RunError, match=r"there is no run 'c'.*b, a"):
        find(tmp_path, "c")
    (tmp_path / "a" / "config.toml").unlink()
    assert names(tmp_path) == ["a", "b"], "a run that lacks something is listed all the same"
    (tmp_path / "odd" / "journal.jsonl").mkdir(parents=True)
    assert names(tmp_path) == ["a", "b"]


def test_a_place_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **more: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    for doing in (
        lambda: find(tmp_path, "it"),
        lambda: made(tmp_path, "it"),
        lambda: next_name(tmp_path, "it"),
    ):
        with pytest.raises(RunError, match="Permission denied"):
            doing()


def test_a_made_up_name_is_free(tmp_path: Path) -> None:
    assert next_name(tmp_path, "my file!") == "my-file-1"
    made(tmp_path, "demo-1")
    assert next_name(tmp_path, "demo") == "demo-2"


HOLDER = """
import sys
from pathlib import Path
from evoprune.runs.folder import Lock, RunFolder
lock = Lock(RunFolder(Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


def test_one_process_at_a_time_and_kill_minus_nine_lets_go(tmp_path: Path) -> None:
    run = made(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        assert is_locked(run)
        with pytest.raises(
            RunError, match=f"another process works on the run 'one' .process {holder.pid} on"
        ):
            Lock(run)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert not is_locked(run)
    lock = Lock(run)
    with pytest.raises(RunError, match=r"this process itself has the run 'one' open; close it"):
        Lock(run)
    lock.release()
    Lock(run).release()


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    files.write(path, "old")

    def fail(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        files.write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    """And nothing that a living process, or one of another machine, may be about to rename."""
    run = made(tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    here = os.uname().nodename
    left = run.path / f".hall_of_fame.txt.{here}-{dead.pid}.tmp"
    writing = run.path / f".hall_of_fame.txt.{here}-{os.getppid()}.tmp"
    elsewhere = run.path / f".hall_of_fame.txt.not-{here}-{dead.pid}.tmp"
    forgotten = run.path / f".result.json.not-{here}-{dead.pid}.tmp"
    for path in (left, writing, elsewhere, forgotten):
        path.write_text("half")
    os.utime(forgotten, (0, 0))
    Lock(run).release()
    assert [path.exists() for path in (left, writing, elsewhere, forgotten)] == [False, True, True, False]
