"""The page as a file: self-contained, escaped, and a formula that needs no script."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given

pytest.importorskip("plotly")
pytest.importorskip("matplotlib")

from evoprune.errors import RunError
from evoprune.expression.library import functions
from evoprune.expression.text import parse
from evoprune.expression.tree import Expr
from evoprune.report.figures import of_runs
from evoprune.report.mathml import mathml
from evoprune.report.page import embedded, page
from evoprune.report.reading import RunView, view
from evoprune.report.writing import report
from evoprune.runs.folder import RunFolder
from evoprune.runs.journal import line_of
from strategies import expressions

MARK = "<img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of scripts by their id or number."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] and self.tags[-1][0] == "script" and self.lasttag == "script":
            self.scripts[-1] += data
        self.text += data


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    return tags


def hostile(runs: Path, folder: Path) -> RunView:
    """A run whose name, note, errors and texts all hold markup."""
    path = folder / MARK
    shutil.copytree(runs / "failing", path)
    with (path / "journal.jsonl").open("ab") as file:
        note = {"event": "note", "generation": 1, "index": 1, "text": f"stopped </script>{MARK}"}
        file.write(line_of(note))
    run = view(RunFolder(path))
    judged = {
        place: replace(each, error=each.error and f"{MARK} {each.error}")
        for place, each in run.ledger.judged.items()
    }
    return replace(run, ledger=replace(run.ledger, judged=judged))


def test_nothing_is_loaded_from_elsewhere(plain: RunView) -> None:
    tags = parsed(page([plain]))
    for tag, attributes in tags.tags:
        assert tag not in ("iframe", "object", "embed", "img"), tag
        assert "src" not in attributes
        assert (attributes.get("href") or "data:").startswith("data:")
    assert len(tags.scripts) == 3


def test_markup_in_names_notes_and_errors_is_text(runs: Path, tmp_path: Path) -> None:
    run = hostile(runs, tmp_path)
    text = page([run, view(RunFolder(runs / "plain"))])
    tags = parsed(text)
    assert len(tags.scripts) == 3
    assert not [tag for tag, attributes in tags.tags if tag == "img" or "onerror" in attributes]
    assert (
        MARK in tags.text and f"{MARK} a: Zero" in tags.text and "</script><script>window.broken" in tags.text
    )
    data = json.loads(tags.scripts[1])
    assert data["points"]["runs"][0] == MARK
    assert "<" not in tags.scripts[1]


def test_embedded_json_is_the_data_and_cannot_leave_its_element() -> None:
    data = {"a": "</script><script>x</script><!-- \u2028", "b": [1.5, None]}
    text = embedded(data)
    assert json.loads(text) == data
    assert "<" not in text and "\u2028" not in text


def test_places_of_the_template_in_data_stay_text(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "{data}{plotly}"
    shutil.copytree(runs / "plain", path)
    tags = parsed(page([view(RunFolder(path))]))
    assert "{data}{plotly}" in tags.text


def test_what_the_page_tells(plain: RunView, runs: Path) -> None:
    best = plain.ledger.best()
    assert best is not None
    text = parsed(page([plain], ablation=True)).text
    expr = best.individual.expr
    for told in (
        str(expr),
        expr.latex(),
        expr.tree(),
        f"{100 * best.fitness:.2f}",
        "sym_div",
        "tournament = 3",
        platform.python_version(),
    ):
        assert told in text, told
    failing = parsed(page([view(RunFolder(runs / "failing"))])).text
    assert "the toy breaks on" in failing
    stopped = parsed(page([view(RunFolder(runs / "stopped"))])).text
    assert "stopped before its end" in stopped and "budget of 20 evaluations is used up" in stopped


def test_a_run_that_has_only_begun(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / "config.toml").write_bytes((runs / "plain" / "config.toml").read_bytes())
    first = (runs / "plain" / "journal.jsonl").read_bytes().splitlines(keepends=True)[0]
    (folder / "journal.jsonl").write_bytes(first)
    assert "No function has been judged yet" in page([view(RunFolder(folder))])


def test_the_same_run_gives_the_same_files(plain: RunView, tmp_path: Path) -> None:
    one, other = (report([plain], tmp_path / name, ablation=True) for name in ("one", "other"))
    assert [path.name for path in one.figures] == [path.name for path in other.figures]
    assert {path.stem for path in one.figures} == {
        "progress", "size", "usage", "diversity", "effort", "combination",
    }  # fmt: skip
    for a, b in zip((one.page, *one.figures), (other.page, *other.figures), strict=True):
        assert a.read_bytes() == b.read_bytes(), a.name
    for path in one.figures:
        head = path.read_bytes()[:300]
        assert head.startswith(b"\x89PNG") if path.suffix == ".png" else b"<svg" in head or b"<?xml" in head


def test_the_ten_runs_of_an_ablation(plain: RunView) -> None:
    """More runs than there are kinds of lines; two of one name, from different folders."""
    names = [*(f"run {number}" for number in range(8)), "twin", "twin"]
    many = [replace(plain, name=name) for name in names]
    assert len(of_runs(many, ablation=True)) == 2 + 4 * 10
    text = parsed(page(many, ablation=True)).text
    assert "run 0, run 1, run 2 and 7 other runs" in text
    assert text.count("functions judged") == 1, "a row for each, not tiles"
    assert sum(dict(a).get("class") == "whole" for t, a in parsed(page(many)).tags if t == "details") == 10
    few = [replace(plain, name=name) for name in ("one", "two")]
    assert '<details class="whole">' not in page(few)


def test_runs_that_are_not_judged_are_told_of_beside_the_ablation(plain: RunView) -> None:
    ledger = replace(plain.ledger, scores={k: v for k, v in plain.ledger.scores.items() if k[0] != "j"})
    text = parsed(page([plain, replace(plain, name="early", ledger=ledger)], ablation=True)).text
    assert "Not there, as they are not judged on j: early." in text


def test_names_that_no_font_has_and_that_legends_leave_out(
    plain: RunView, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    report([replace(plain, name="_under"), replace(plain, name="party \N{PARTY POPPER}")], tmp_path)
    assert not [each for each in recwarn if "Glyph" in str(each.message)]
    svg = (tmp_path / "figures" / "progress.svg").read_text()
    assert "_under" in svg


def test_a_place_that_cannot_be_written_to(plain: RunView, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"writing the report to .*file"):
        report([plain], tmp_path / "file")


def test_names_with_dollars_are_drawn_as_they_are(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "a$b_{c$"
    shutil.copytree(runs / "plain", path)
    report([view(RunFolder(path)), view(RunFolder(runs / "random"))], tmp_path / "out")


@given(expressions(10))
def test_every_formula_is_well_formed_mathml(expr: Expr) -> None:
    root = ElementTree.fromstring(mathml(expr))
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names <= {"math", "mrow", "mi", "mo", "mn", "mfrac", "msqrt", "msup", "msub"}
    for element in root.iter():
        if element.tag.endswith(("mfrac", "msup", "msub")):
            assert len(element) == 2


def test_mathml_sets_the_parentheses_of_the_latex() -> None:
    for text in (
        "mul(add(F, W), B)",
        "sq(sub(mean_g(F), mean_g(W)))",
        "sub(F, sub(W, B))",
        "sub(sub(F, W), B)",
    ):
        expr = parse(text)
        assert mathml(expr).count(">(<") == len(re.findall(r"\\left\(|[a-z]}_[gs]\(", expr.latex())), text


def test_numbers_and_signs_in_mathml_are_those_of_the_latex() -> None:
    assert "<mn>10</mn><mn>−4</mn>" in mathml(parse("ridge(mean_g(F))"))
    assert "<mn>1.5</mn><mo>⋅</mo>" in mathml(parse("ridge(mean_g(F), 1.5e-07)"))
    assert "<mn>0.05</mn>" in mathml(parse("ridge(mean_g(F), 0.05)"))
    assert "𝐈" in mathml(parse("sum_g(ridge(matmul(tran(W), W)))"))
    # A sign above a letter and a power beside it would read as one exponent.
    assert mathml(parse("sq(F+)")).count(">(<") == 1 and mathml(parse("sq(F)")).count(">(<") == 0


def test_the_library_in_mathml() -> None:
    for function in functions.values():
        if function.expr is not None:
            ElementTree.fromstring(mathml(function.expr))


@pytest.mark.parametrize("missing", ["plotly", "matplotlib"])
def test_a_missing_package_says_what_to_install(missing: str, runs: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        f"sys.modules['{missing}'] = None; sys.modules['{missing}.offline'] = None\n"
        f"sys.modules['{missing}.figure'] = None\n"
        "from evoprune.cli import main\n"
        f"sys.exit(main(['report', 'plain', '--runs', {str(runs)!r}, '--output', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'evoprune[report]'" in done.stderr and "Traceback" not in done.stderr


def test_reporting_needs_no_torch(runs: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom evoprune.cli import main\n"
        f"assert main(['report', 'plain', '--runs', {str(runs)!r}, '--output', {str(tmp_path)!r}]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
