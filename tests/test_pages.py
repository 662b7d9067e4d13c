"""README and the pages of docs/: their code runs, their links lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
RUN = [ROOT / name for name in ("README.md", "docs/language.md", "docs/scoring.md")]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http:", "https:", "mailto:")):
            path, _, anchor = target.partition("#")
            found = (page.parent / path) if path else page
            assert found.exists(), f"{page.name} links to {target}"
            if anchor and found.suffix == ".md":
                titles = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
                assert anchor in slugs, f"{page.name} links to {target}"


def test_commands_in_the_pages_exist() -> None:
    from evoprune.cli import COMMANDS

    known = {name for group in COMMANDS.values() for name in group}
    for page in PAGES:
        for block in re.findall(r"```\w*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for name in re.findall(r"^\s*evoprune ([a-z]+)", block, re.MULTILINE):
                assert name in known, f"{page.name} shows `evoprune {name}`"


def test_the_table_of_scoring_is_what_the_benchmark_wrote() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "_scoring_table.py"))
    page = (ROOT / "docs" / "scoring.md").read_text(encoding="utf-8")
    assert made["with_table"](page) == page, "run `make docs`"
