"""The examples run from top to bottom, in a folder of their own, and leave nothing in the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "first_contact.ipynb"
SCRIPTS = {path.name: path for path in sorted(EXAMPLES.glob("*.py"))}

SAYS = {
    "01_score_a_layer.py": "the five most important channels",
    "02_prune_your_model.py": "saved in runs/examples/pruned, as ONNX too",
    "03_a_custom_task.py": "the best",
    "04_evolve_and_explain.py": "labels renumbered",
    "05_torch_pruning.py": "Torch-Pruning by xi_star",
    "06_scikit_learn.py": "best by cross-validation",
}


def test_every_script_is_numbered_and_tested() -> None:
    assert list(SCRIPTS) == list(SAYS)


@pytest.mark.heavy
@pytest.mark.parametrize("name", SAYS)
def test_a_script_runs(name: str, tmp_path: Path) -> None:
    for extra in ("sklearn", "onnxruntime", "matplotlib"):
        pytest.importorskip(extra)
    run = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPTS[name])],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert SAYS[name] in run.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}


def cells(kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_the_notebook_holds_no_outputs() -> None:
    for cell in cells("code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None


@pytest.mark.heavy
def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cell by cell in one namespace, as a kernel does it: nothing in it asks for more, such as magics.

    A real kernel would cost the development environment some twenty packages.
    """
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in cells("code"):
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    shown = capsys.readouterr().out
    for part in ("did you mean mean_g?", "pruned by xi_star", "retrained: ", "the best "):
        assert part in shown
