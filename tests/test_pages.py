"""README and the pages of docs/: their code runs, their commands are calls, their links lead somewhere."""

from __future__ import annotations

import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evoprune.cli import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(DOCS.glob("*.md"))
HOMES = {name: home for group in COMMANDS.values() for name, (home, _) in group.items()}

# page → the script that writes it, whole or in part
GENERATED = {
    "operators.md": "_operators.py",
    "api.md": "_api.py",
    "command-line.md": "_commands.py",
    "reproducing-the-paper.md": "_reproducing.py",
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


# Their code is run by tests of their own, beside those of the part; the page of the API shows signatures.
ELSEWHERE = ("pruning-your-network.md", "feature-selection.md", "tasks.md", "api.md")
RUN = [page for page in PAGES if blocks(page, "python") and page.name not in ELSEWHERE]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _evolve_in_seconds(monkeypatch)
    code = compile("\n".join(blocks(page, "python")), str(page), "exec", dont_inherit=True)
    exec(code, {"__name__": "__main__"})


def _evolve_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the preset `demo`, which takes minutes; here it is four functions on one task."""
    import evoprune

    small = {"size": 5, "tournament": 2, "soap": 2, "selected": 1, "children": 2, "immigrants": 2}
    whole = evoprune.evolve

    def evolve(*arguments: Any, overrides: Any = (), **options: Any) -> Any:
        smaller = [f"population.{name}={value}" for name, value in small.items()]
        smaller += ["run.executor=inline", "fitness.weights=[1, 0]"]
        smaller += ["tasks.0.options={base={epochs=1}, recipe={epochs=1}}"]
        return whole(*arguments, overrides=[*overrides, *smaller], **options)

    monkeypatch.setattr(evoprune, "evolve", evolve)


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


def test_the_index_has_every_page_and_example() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index
    for example in [*ROOT.glob("examples/*.py"), *ROOT.glob("examples/*.ipynb")]:
        assert f"(../examples/{example.name})" in index


def lines(page: Path) -> Iterator[str]:
    """The command lines on a page: in its blocks, and whole ones in its sentences."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page, ""):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("evoprune "):
                yield line
    for line in re.findall(r"`(evoprune [a-z]+ [^`…]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_calls(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command is there, takes these options, and values such as these."""
    from evoprune.commands._parsing import parse

    for line in lines(page):
        _, name, *arguments = shlex.split(line.replace("…", ""), comments=True)
        assert name in HOMES, f"{page.name} shows {line}"
        if "--help" in arguments:
            continue
        if ">" in arguments:
            arguments = arguments[: arguments.index(">")]
        try:
            parse(name, HOMES[name], arguments)
        except SystemExit:
            pytest.fail(f"{page.name} shows {line}\n{capsys.readouterr().err}")


def test_the_settings_of_the_pages_are_settings() -> None:
    from evoprune.evolution.settings import build, table

    page = DOCS / "evolving-your-own-functions.md"
    for toml in blocks(page, "toml"):
        build(table(tomllib.loads(toml), None if "extends" in toml else "demo"))


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.heavy] * ("paper" in each)) for each in GENERATED]
)
def test_a_generated_page_is_as_its_script_writes_it(name: str) -> None:
    made = runpy.run_path(str(DOCS / GENERATED[name]))["page"]()
    assert made == (DOCS / name).read_text(encoding="utf-8"), "run `make docs`"


@pytest.mark.parametrize("name", sorted(path.name for path in (DOCS / "results").glob("*.txt")))
def test_results_are_quoted_as_they_were_written(name: str) -> None:
    written = (DOCS / "results" / name).read_text(encoding="utf-8").strip()
    assert any(f"```\n{written}\n```" in page.read_text(encoding="utf-8") for page in PAGES)


def test_the_table_of_scoring_is_what_the_benchmark_wrote() -> None:
    made = runpy.run_path(str(DOCS / "_scoring_table.py"))
    page = (DOCS / "scoring.md").read_text(encoding="utf-8")
    assert made["with_table"](page) == page, "run `make docs`"
