"""The package as a whole: what it exports, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

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


def test_every_error_derives_from_one() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    assert len(kinds) > 10
    assert all(issubclass(each, errors.EvopruneError) for each in kinds)
    drawing = errors.__doc__ or ""
    assert all(each.__name__ in drawing for each in kinds)
