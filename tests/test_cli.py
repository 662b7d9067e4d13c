"""The command line, as far as it is the same for every command."""

from __future__ import annotations

import json

import pytest

from evoprune.cli import COMMANDS, FAILED, OK, USAGE, main


def test_without_a_command_it_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == OK
    shown = capsys.readouterr().out
    assert all(name in shown for group in COMMANDS.values() for name in group)


@pytest.mark.parametrize("name", [name for group in COMMANDS.values() for name in group])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == OK
    assert f"usage: evoprune {name}" in capsys.readouterr().out


def test_a_misspelt_command_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["function"]) == USAGE
    assert "Did you mean `evoprune functions`?" in capsys.readouterr().err


def test_an_unknown_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["functions", "--jsn"]) == USAGE
    assert "--json" in capsys.readouterr().err


def test_a_mistake_in_a_function_is_an_error_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["functions", "meang(F)"]) == FAILED
    shown = capsys.readouterr().err
    assert "did you mean mean_g?" in shown
    assert "^^^^^" in shown
    assert "Traceback" not in shown


def test_the_library_and_one_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["functions"]) == OK
    assert "xi_star_code" in capsys.readouterr().out
    assert main(["functions", "xi_star"]) == OK
    shown = capsys.readouterr().out
    for expected in ("rewards:", "LaTeX:", "tree:", "operands:", "└─ var_g", r"\frac"):
        assert expected in shown


def test_a_function_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["functions", "l1", "--json"]) == OK
    (function,) = json.loads(capsys.readouterr().out)
    assert function["text"] == "sum_g(abs(W_I))"
    assert function["operands"] == ["W_I"]
