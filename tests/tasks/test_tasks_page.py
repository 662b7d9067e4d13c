"""docs/tasks.md names all there is, and its example runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from evoprune.tasks.finding import EMBEDDED, NAMED
from evoprune.tasks.recipes import Recipe
from evoprune.tasks.settings import task_tables

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "tasks.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    found: dict[str, object] = {}
    exec(code, found)
    assert 0.5 < found["result"].accuracy <= 1  # type: ignore[attr-defined]


def test_every_data_set_and_recipe_key_is_told() -> None:
    for name in [*EMBEDDED, *NAMED]:
        assert f"`{name}`" in TEXT
    for name in Recipe.__dataclass_fields__:
        assert f"`{name}`" in TEXT
    for toml in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL):
        for line in filter(None, toml.splitlines()):
            tomllib.loads(line)
    commands = re.findall(r"evoprune (?:train|prune|compare) ([a-z0-9_]+-[a-z0-9_]+)", TEXT)
    assert set(commands) <= set(task_tables())
