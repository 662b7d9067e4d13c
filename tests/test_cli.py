"""The command line, as far as it is the same for every command."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evoprune.cli import BROKEN_PIPE, COMMANDS, FAILED, OK, USAGE, main
from evoprune.commands._parsing import parse, told
from evoprune.errors import TrainingError

HOMES = {name: home for group in COMMANDS.values() for name, (home, _) in group.items()}

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let the command `functions` do nothing but raise."""

    def fail(error: BaseException) -> None:
        def table() -> str:
            print("progress", file=sys.stderr)
            raise error

        monkeypatch.setattr("evoprune.commands.functions.table", table)

    return fail


def test_without_a_command_it_lists_them_and_what_to_do_next(capsys: Capture) -> None:
    assert main([]) == OK
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in HOMES)
    assert all(len(line) <= 80 for line in shown.splitlines())
    commands = re.findall(r"^(?:Next:)? +evoprune (.*?)   ", shown, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        name, *arguments = shlex.split(command)
        parse(name, HOMES[name], arguments)


@pytest.mark.parametrize("name", HOMES)
def test_the_help_of_a_command_teaches(name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == OK
    shown = capsys.readouterr().out
    assert f"usage: evoprune {name}" in shown
    limits = {"usage:": 100, "  evoprune": 100}  # a terminal breaks these; breaks of ours could not be copied
    for line in shown.splitlines():
        assert len(line) <= next((limit for start, limit in limits.items() if line.startswith(start)), 80)
    for wrong in ("None", "STR", "default: False", "default: '')", "default: )"):
        assert wrong not in shown
    assert main(["help", name]) == OK
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("name", HOMES)
def test_the_examples_of_a_command_are_calls_of_it(name: str) -> None:
    _, examples = told(importlib.import_module(f"evoprune.commands.{HOMES[name]}").main, width=80)
    lines = examples.replace("\\\n", " ").splitlines()[1:]
    assert any(line.startswith(f"  evoprune {name}") for line in lines)
    for line in lines:
        program, command, *arguments = shlex.split(line.partition(" > ")[0])
        assert program == "evoprune"
        parse(command, HOMES[command], arguments)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("function", "Did you mean `evoprune functions`?"),
        ("--verson", "there is no option '--verson'"),
        ("functions --jsn", "--json"),
        ("prune digits --on tset", "did you mean 'test'?"),
        ("prune digits --flops half", "expected a number, got 'half'"),
        ("prune digits --flops nan", "expected a finite number"),
        ("prune digits --seed 1.5", "expected a whole number, got '1.5'"),
        ("prune digits --selection yes", "expected true or false, got 'yes'"),
        ("evolve --executor loacl", "did you mean 'local'?"),
        ("select digits --images some", "expected a whole number or one of 'all', got 'some'"),
        ("select", "DATA"),
        ("functions xi_star l1", "l1"),
        ("functions xi_star --run it", "not both"),
        ("score digits --functions", "at least one function"),
    ],
)
def test_wrong_usage_is_answered_with_what_would_do(
    line: str, says: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(line.split()) == USAGE
    shown = capsys.readouterr()
    assert says in shown.err and shown.out == ""
    assert "Traceback" not in shown.err and "<class" not in shown.err


def test_a_mistake_in_a_function_is_an_error_without_traceback(capsys: Capture) -> None:
    assert main(["functions", "meang(F)"]) == USAGE
    shown = capsys.readouterr().err
    assert "did you mean mean_g?" in shown
    assert "^^^^^" in shown
    assert "Traceback" not in shown


def test_the_library_and_one_function(capsys: Capture) -> None:
    assert main(["functions"]) == OK
    assert "xi_star_code" in capsys.readouterr().out
    assert main(["functions", "xi_star"]) == OK
    shown = capsys.readouterr().out
    for expected in ("rewards:", "LaTeX:", "tree:", "operands:", "└─ var_g", r"\frac"):
        assert expected in shown


def test_a_function_as_json(capsys: Capture) -> None:
    assert main(["functions", "l1", "--json"]) == OK
    (function,) = json.loads(capsys.readouterr().out)
    assert function["text"] == "sum_g(abs(W_I))"
    assert function["operands"] == ["W_I"]


def test_quiet_says_errors_only(failing: Callable[[BaseException], None], capsys: Capture) -> None:
    failing(TrainingError("it went wrong"))
    assert main(["functions", "--quiet"]) == FAILED
    assert capsys.readouterr().err == "evoprune functions: it went wrong\n"


def test_verbose_says_versions_seconds_and_tracebacks(
    failing: Callable[[BaseException], None], capsys: Capture
) -> None:
    assert main(["functions", "l1", "--verbose"]) == OK
    shown = capsys.readouterr()
    assert "torch" in shown.err and "took" in shown.err
    assert main(["functions", "l1"]) == OK
    assert capsys.readouterr() == (shown.out, "")
    failing(TrainingError("it went wrong"))
    assert main(["functions", "--verbose"]) == FAILED
    assert "Traceback" in capsys.readouterr().err


def test_an_unforeseen_error_says_where_its_traceback_is(
    failing: Callable[[BaseException], None], capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(ZeroDivisionError("by nothing"))
    assert main(["functions"]) == FAILED
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: by nothing" in shown and "Traceback" not in shown
    (file,) = tmp_path.iterdir()
    assert str(file) in shown and "Traceback" in file.read_text()


def test_a_file_that_cannot_be_written_is_told_in_a_line(
    failing: Callable[[BaseException], None], capsys: Capture
) -> None:
    failing(PermissionError(13, "Permission denied", "scores.csv"))
    assert main(["functions"]) == FAILED
    assert "evoprune functions: Permission denied: scores.csv\n" in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "evoprune.cli", "functions"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == BROKEN_PIPE


def test_a_terminal_that_cannot_write_a_letter_is_no_error() -> None:
    command = [sys.executable, "-m", "evoprune.cli", "functions", "ridge(W_I, 0.5)"]
    ascii = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=ascii, capture_output=True, check=True)
    assert done.stderr == b""
    assert b"W_I" in done.stdout


@pytest.mark.parametrize("line", ["functions", "evolve --list", "tasks"])
def test_lists_fit_a_narrow_terminal_and_keep_a_line_each_elsewhere(
    line: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(line.split()) == OK
    whole = capsys.readouterr().out
    assert max(map(len, whole.splitlines())) > 80
    monkeypatch.setattr("evoprune.commands._showing.width", lambda: 80)
    assert main(line.split()) == OK
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 80
    assert set(re.findall(r"[\w.-]+", whole)) <= set(re.findall(r"[\w.-]+", narrow))
