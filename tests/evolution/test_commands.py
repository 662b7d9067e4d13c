"""The commands as a person uses them: evolve, interrupt, resume, list."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import toys
from evoprune.cli import FAILED, INTERRUPTED, OK, USAGE, main
from evoprune.evolution.watching import Lines, Status, duration
from evoprune.runs.journal import comparable, read

TESTS = Path(__file__).parent.parent

CONFIG = """
tasks = [{{name = "a", factory = "toys:Layer", options = {{{options}}}}}]
population = {{size = 8, generations = 3, soap = 3, selected = 2, children = 4, immigrants = 2}}
"""

Evoprune = Callable[..., int]


@pytest.fixture
def evoprune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evoprune:
    """The command line in a folder of its own, with a configuration `toy.toml`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TESTS))
    (tmp_path / "toy.toml").write_text(CONFIG.format(options=""))
    return lambda *arguments: main([str(each) for each in arguments])


def test_from_a_file_to_the_best_function(
    evoprune: Evoprune, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evoprune("evolve", "toy.toml", "--name", "it", "--workers", 2) == OK
    said = capsys.readouterr()
    assert "The fittest" in said.out and "The best beside SOAP" in said.out
    assert "run:   runs/it (all generations are judged)" in said.out
    assert "next:  evoprune" in said.out
    assert said.err.count("generation ") == 3, "plain lines where there is no terminal"

    assert evoprune("runs") == OK
    listed = capsys.readouterr().out
    assert "it  ended" in listed and "3/3" in listed
    assert evoprune("runs", "it") == OK
    shown = capsys.readouterr().out
    assert "generations: 3 of 3 judged" in shown and "The fittest of every size" in shown
    assert evoprune("runs", "--json") == OK
    (told,) = json.loads(capsys.readouterr().out)
    assert told["state"] == "ended" and told["function"] in shown

    assert evoprune("functions", "--run", "it") == OK
    assert "best 1 " in (bred := capsys.readouterr().out) and told["function"] in bred
    assert evoprune("functions", "--run", "it", "--json") == OK
    assert json.loads(capsys.readouterr().out)[0]["text"] == told["function"]

    assert evoprune("resume", "it") == OK
    assert "The best beside SOAP" in capsys.readouterr().out
    assert evoprune("resume", "it", "--json") == OK
    ended = json.loads(capsys.readouterr().out)
    assert ended["function"] == told["function"] and ended["ended"] == "all generations are judged"
    assert evoprune("evolve", "--list", "--json") == OK
    assert "demo" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["evolve"], "give a configuration file, or --preset with one of combination"),
        (["evolve", "none.toml"], "there is no configuration file none.toml"),
        (["evolve", "dmeo"], "there is no configuration file or preset 'dmeo'. Did you mean 'demo'?"),
        (["evolve", "--preset", "dmeo"], "there is no preset 'dmeo'. Did you mean 'demo'?"),
        (["evolve", "toy.toml", "--name", "a/b"], "cannot be a run's name"),
        (["evolve", "toy.toml", "--set", "population.size=9"], "which must be the size, 9"),
        (["evolve", "toy.toml", "--set", "tasks.0.factory=nowhere:it"], "No module named 'nowhere'"),
        (["evolve", "toy.toml", "--runs", "toy.toml"], "making the folder of the run"),
        (["resume", "it"], "there is no run 'it'; runs in"),
        (["runs", "it"], "there is no run 'it'; runs in"),
    ],
)
def test_mistakes_are_told_in_a_line(
    evoprune: Evoprune, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    tried = says in ("making the folder of the run", "No module named 'nowhere'")
    assert evoprune(*arguments) == (FAILED if tried else USAGE)
    said = capsys.readouterr().err
    assert says in said and "Traceback" not in said


def test_a_taken_name_and_a_fresh_one(evoprune: Evoprune, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--set", "population.generations=1", "--executor", "inline"]
    assert evoprune("evolve", "toy.toml", "--name", "it", *short) == OK
    assert evoprune("evolve", "toy.toml", "--name", "it", *short) == USAGE
    assert "there is already a run 'it' in runs; go on with it: evoprune resume it" in capsys.readouterr().err
    for number in (1, 2):
        assert evoprune("evolve", "toy.toml", *short) == OK
        assert f"runs/toy-{number}" in capsys.readouterr().out


def test_a_run_that_broke_or_used_up_its_budget_says_how_it_goes_on(
    evoprune: Evoprune, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toy.toml").write_text(CONFIG.format(options='trouble = "disk full until"'))
    elsewhere = ["--runs", "my runs", "--executor", "inline"]
    assert evoprune("evolve", "toy.toml", "--name", "it", *elsewhere) == FAILED
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "to go on: evoprune resume it --runs 'my runs'" in said
    (tmp_path / "my runs" / "it" / "tasks" / "a" / "space").touch()
    assert evoprune("resume", "it", *elsewhere, "--set", "budget.evaluations=5") == OK
    assert "next:  evoprune resume it --set budget.evaluations=10 --runs 'my runs'" in capsys.readouterr().out
    assert evoprune("resume", "it", "--set", "budget.evaluations=10", *elsewhere) == OK
    assert "the budget of 10 evaluations is used up" in capsys.readouterr().out


def test_presets_are_listed(evoprune: Evoprune, capsys: pytest.CaptureFixture[str]) -> None:
    assert evoprune("evolve", "--list") == OK
    assert "demo  " in capsys.readouterr().out
    assert evoprune("runs") == OK
    assert "there are no runs in" in capsys.readouterr().out


def test_a_damaged_run_does_not_hide_the_others(
    evoprune: Evoprune, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("good", "bad"):
        assert evoprune("evolve", "toy.toml", "--name", name, "--executor", "inline") == OK
    journal = tmp_path / "runs" / "bad" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"prepared", b"perpared", 1))
    capsys.readouterr()
    assert evoprune("runs") == OK
    listed = capsys.readouterr().out
    assert "good  ended" in listed and "damaged: line 2" in listed
    assert evoprune("resume", "bad") == FAILED
    assert "line 2 of" in capsys.readouterr().err


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_control_c_ends_cleanly_and_the_run_goes_on_to_the_same_end(
    evoprune: Evoprune, tmp_path: Path, executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C reaches the whole process group while an evaluation waits on a pipe."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "toy.toml").write_text(CONFIG.format(options='trouble = "wait", every = 1'))
    process = subprocess.Popen(
        [sys.executable, "-m", "evoprune.cli", "evolve", "toy.toml", "--name", "it", "--executor", executor],
        env=toys.surroundings(TOY_PIPE=str(tmp_path / "pipe")),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Opening for writing waits until an evaluation opens for reading: it has begun, and waits for an end.
    with (tmp_path / "pipe").open("w"):
        os.killpg(process.pid, signal.SIGINT)
        if executor == "local":
            out, err = process.communicate(timeout=60)
    if executor == "inline":  # the running evaluation is waited for
        out, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, err
    assert "next:  evoprune resume it" in out and "Traceback" not in err + out
    assert "once more stops at once" in err
    log = (tmp_path / "runs" / "it" / "log.txt").read_text()
    assert "interrupted" in log

    assert evoprune("resume", "it", "--executor", "inline") == OK
    (tmp_path / "toy.toml").write_text(CONFIG.format(options=""))
    assert evoprune("evolve", "toy.toml", "--name", "whole", "--executor", "inline") == OK
    journals = [
        comparable(read(tmp_path / "runs" / name / "journal.jsonl").records) for name in ("it", "whole")
    ]
    assert journals[0] == journals[1]


def test_a_second_control_c_does_not_wait(evoprune: Evoprune, tmp_path: Path) -> None:
    """An evaluation in the process itself hangs; it is left, and how to go on is said."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "toy.toml").write_text(CONFIG.format(options='trouble = "wait", every = 1'))
    process = subprocess.Popen(
        [sys.executable, "-m", "evoprune.cli", "evolve", "toy.toml", "--name", "it", "--executor", "inline"],
        env=toys.surroundings(TOY_PIPE=str(tmp_path / "pipe")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with (tmp_path / "pipe").open("w"):
        process.send_signal(signal.SIGINT)
        while "once more" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert "next:  evoprune resume it" in err and "Traceback" not in err + out
    assert evoprune("resume", "it", "--executor", "inline") == OK


def test_the_driver_needs_no_torch(evoprune: Evoprune, tmp_path: Path) -> None:
    code = (
        "import sys; from evoprune.cli import main\n"
        "assert main(['evolve', 'toy.toml', '--executor', 'inline']) == 0\n"
        "assert main(['runs']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=toys.surroundings(),
        capture_output=True,
    )


def test_a_picture_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(CONFIG.format(options="seconds = 0.02"))
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "evoprune.cli", "evolve", "toy.toml", "--workers", "1"],
        cwd=tmp_path,
        env=toys.surroundings(TERM="xterm", COLUMNS="100"),
        stdout=subprocess.DEVNULL,
        stderr=slave,
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        shown += piece
    os.close(master)
    assert process.wait(timeout=60) == OK
    text = shown.decode()
    for part in ("generation", "1 of 3", "median", "running", "saved so far", "evaluations"):
        assert part in text
    assert "\x1b[" in text, "drawn in place"


def test_plain_lines_come_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("evoprune.evolution.watching.time.monotonic", lambda: clock[0])
    lines = Lines()
    status = Status("it", 1, 25, 0.9, None, "var_g(F)", 3, 8, 2, 5, 61.0, 7300.0)
    for clock[0] in (1.0, 29.0, 31.0, 32.0, 70.0):
        lines.show(status)
    said = capsys.readouterr().err
    assert said.count("\n") == 2
    assert "generation 2 of 25: best 90.00, median –; evaluations: 3 of 8 done, 2 running, 5 saved" in said
    assert "1 min 01 s gone, 2 h 01 min left" in said
    assert duration(59.4) == "59 s"
