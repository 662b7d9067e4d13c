"""The package as a whole: what it exports, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import evoprune
from evoprune import errors


def test_public_names_are_sorted_and_all_there() -> None:
    assert evoprune.__all__ == sorted(evoprune.__all__)
    assert set(evoprune._HOME) == set(evoprune.__all__)
    for name in evoprune.__all__:
        assert getattr(evoprune, name) is not None
        assert name in dir(evoprune)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match="it has EvopruneError"):
        evoprune.prone  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import evoprune",
        "import evoprune; evoprune.check(evoprune.parse('var_g(F+)')); evoprune.functions['di'].latex",
        "import evoprune.scoring.reference, evoprune.scoring.arrays",
        "from evoprune.cli import main; main(['--help'])",
        "from evoprune.cli import main; main(['functions', 'xi_star'])",
    ],
)
def test_torch_is_not_imported_where_it_is_not_needed(code: str) -> None:
    subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nassert 'torch' not in sys.modules"],
        check=True,
        capture_output=True,
    )


def _export(folder: Path) -> object:
    import torch

    network = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 1), torch.nn.Conv2d(4, 2, 1))
    return evoprune.prune(network, "l1", example_inputs=torch.ones(1, 1, 4, 4), ratio=0.5).export_onnx(folder)


@pytest.mark.parametrize(
    ("extra", "module", "use"),
    [
        ("data", "datasets", lambda folder: evoprune.Task.from_spec("lenet5-mnist").data),
        ("onnx", "onnx", _export),
        ("pandas", "pandas", lambda folder: evoprune.Scores({}, {}, 0, 0).to_pandas()),
        ("report", "matplotlib", lambda folder: import_module("evoprune.report.figures").plane()),
        ("sklearn", "sklearn", lambda folder: import_module("evoprune.integrations.sklearn")),
    ],
)
def test_what_needs_an_extra_says_which(
    extra: str,
    module: str,
    use: Callable[[Path], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("EVOPRUNE_DATA", raising=False)
    monkeypatch.delitem(sys.modules, "evoprune.integrations.sklearn", raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(errors.MissingExtraError, match=rf"pip install 'evoprune\[{extra}\]'"):
        use(tmp_path / "it")


@pytest.mark.parametrize("code", ["import evoprune", "from evoprune.cli import main; main(['--help'])"])
def test_nothing_slow_is_imported_before_it_is_asked_for(code: str) -> None:
    slow = ("numpy", "rich", "torch", "torch_pruning", "tyro")
    subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nassert not sys.modules.keys() & set({slow!r})"],
        check=True,
        capture_output=True,
    )


def test_every_error_derives_from_one() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    assert len(kinds) > 10
    assert all(issubclass(each, errors.EvopruneError) for each in kinds)
    drawing = errors.__doc__ or ""
    assert all(each.__name__ in drawing for each in kinds)
