"""`evoprune report`, `explain`, `select` and `plot`, as a user runs them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import evoprune
from evoprune.cli import FAILED, USAGE, main

pytest.importorskip("matplotlib")

TOY = """
seed = 1
tasks = [{name = "a", factory = "toys:Layer"}, {name = "b", factory = "toys:Layer", options = {seed = 1}}]
judges = [{name = "j", factory = "toys:Layer", options = {seed = 2}}]
population = {size = 12, generations = 2, soap = 10, selected = 3, children = 7, immigrants = 2}
run = {executor = "inline"}
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = USAGE) -> str:
    assert main(list(arguments)) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


def test_reports_of_one_and_of_several_runs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("toy.toml").write_text(TOY)
    run(capsys, "evolve", "toy.toml", "--name", "one", "--set", "fitness.alpha=0.3")
    run(capsys, "evolve", "toy.toml", "--name", "two", "--set", "fitness.combine=arithmetic")
    told = run(capsys, "report", "one")
    assert "one: ended, best" in told
    assert Path("runs/one/report/report.html").is_file()
    facts = json.loads(run(capsys, "report", "one", "--json"))
    assert facts["runs"][0]["state"] == "ended" and Path(facts["page"]).is_file()
    assert Path("runs/one/report/figures/progress.svg").is_file()
    run(capsys, "resume", "one")  # a report in its folder does not disturb a run
    run(capsys, "report", "one", "runs/two", "--ablation", "--output", "both")
    names = {path.name for path in Path("both/figures").iterdir()}
    assert {"progress.png", "combination.svg", "size-one.png", "size-two.png"} <= names
    assert "there is no run 'three'" in refused(capsys, "report", "three")
    assert "named twice" in refused(capsys, "report", "one", "one")


def test_a_damaged_journal_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    Path("toy.toml").write_text(TOY)
    run(capsys, "evolve", "toy.toml", "--name", "one")
    journal = Path("runs/one/journal.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b'"accuracy": 0.', b'"accuracy": 9.', 1))
    assert "is damaged" in refused(capsys, "report", "one", code=FAILED)


def test_explaining_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, "explain", "abs(div(var_g(F-), ridge(var_g(F+), 0.05)))")
    for part in (
        r"\frac", "└─", "moments with squares of F, each class", "labels renumbered",
        "simplified, with the same scores: div(var_g(F-), ridge(var_g(F+), 0.05))", "--statistics",
    ):  # fmt: skip
        assert part in told, part
    facts = json.loads(run(capsys, "explain", "abs(var_g(F+))", "--json"))
    assert facts["simplified"] == "var_g(F+)" and facts["operands"] == ["F+"]
    assert {"change": "labels renumbered", "verdict": "same"}.items() <= facts["invariances"][2].items()
    told = run(capsys, "explain", "mmd")
    assert "single images" not in told or "sample" in told
    assert "parameters alone" in run(capsys, "explain", "l1")


def test_correlations_on_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 12, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(12, 3),
    )  # fmt: skip
    images, labels = torch.randn(60, 1, 6, 6), torch.arange(60) % 3
    statistics = evoprune.gather(network, ["fdr", "abs_snr", "sym_div"], (images, labels))
    statistics.save("statistics")
    told = run(capsys, "explain", "fdr", "--statistics", "statistics")
    rows = {line.split()[0]: line for line in told.splitlines() if line.startswith("  ")}
    assert float(rows["abs_snr"].split()[1]) > 0.9  # one is nearly a power of the other
    assert "it reads W_I" in rows["l1"] and "fdr" not in rows
    scores = evoprune.score(network, ["fdr", "sym_div"], (images, labels))
    (site,) = scores.sites
    from scipy.stats import spearmanr

    expected = spearmanr(scores["fdr"][site], scores["sym_div"][site]).statistic
    assert float(rows["sym_div"].split()[1]) == pytest.approx(expected, abs=6e-4)
    facts = json.loads(run(capsys, "explain", "fdr", "--statistics", "statistics", "--json"))
    assert facts["correlations"]["sym_div"]["mean"] == pytest.approx(expected)
    assert "W_I" in facts["correlations"]["l1"]["reason"]
    assert "cannot be scored" in refused(capsys, "explain", "l1", "--statistics", "statistics")


def test_correlations_on_a_task(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = run(capsys, "tasks", "digits").replace("epochs = 20", "epochs = 1")
    Path("quick.toml").write_text(table)
    told = run(capsys, "explain", "l1", "--task", "quick.toml")
    rows = {
        line.split()[0]: line.split() for line in told.splitlines() if "…" in line and line.startswith("  ")
    }
    assert float(rows["l2"][1]) > 0.8
    assert len(rows) == 9


@pytest.mark.parametrize("name", evoprune.functions)
def test_everything_in_the_library_can_be_explained(capsys: pytest.CaptureFixture[str], name: str) -> None:
    function = evoprune.functions[name]
    told = run(capsys, "explain", name)
    facts = json.loads(run(capsys, "explain", name, "--json"))
    assert name in told and function.rewards in told and function.text in told
    assert facts["rewards"] == function.rewards and facts["group"] == function.group
    if function.expr is None:
        assert "drawn from a seed" in told and "invariances" not in facts
    else:
        assert "invariances, tried" in told and "simplified:" in told
        assert {each["verdict"] for each in facts["invariances"]} <= {"same", "scaled", "ranked", "changed"}


def test_explaining_a_function_that_overflows(capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, "explain", "prod_g(ridge(F, 100.0))")
    assert "invariances, not tried: " in told and "not finite" in told and "simplified:" in told
    facts = json.loads(run(capsys, "explain", "prod_g(ridge(F, 100.0))", "--json"))
    assert "not finite" in facts["invariances"]["reason"]


def test_explaining_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert "a score is a scalar" in refused(capsys, "explain", "mean_s(F)")
    assert "not both" in refused(capsys, "explain", "l1", "--task", "digits", "--statistics", "x")
    assert "did you mean xi_star" in refused(capsys, "explain", "xi_sta")


def test_selecting_pixels_of_digits(capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, "select", "digits", "--functions", "xi_star", "di", "var_g(F+)", "--keep", "20")
    assert "20 of 64 pixels stay" in told
    folder = Path("select-digits")
    assert (folder / "selection.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "selection.svg").is_file()
    with (folder / "selection.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for function in ("xi_star", "di", "var_g(F+)"):
        own = [row for row in rows if row["function"] == function]
        scores = np.array([float(row["score"]) for row in own])
        kept = [i for i, row in enumerate(own) if row["kept"] == "1"]
        assert len(own) == 64 and kept == sorted(np.argsort(-scores, kind="stable")[:20].tolist())


def test_selecting_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert "come from no layer" in refused(capsys, "select", "digits", "--functions", "l1")
    assert "whole number from 1 to 64" in refused(capsys, "select", "digits", "--keep", "65")
    assert "whole number from 1 to 64" in refused(capsys, "select", "digits", "--keep", "0")
    Path("file").touch()
    refused(capsys, "select", "digits", "--output", "file", code=FAILED)
    assert "xi_star" not in capsys.readouterr().out, "refused before anything is scored"


def test_a_function_that_scores_all_pixels_alike_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, "select", "digits", "--functions", "count_g(F)", "fdr", "--images", "100")
    assert [("all alike" in line) for line in told.splitlines() if "mean value" in line] == [True, False]


ITEMS = "function,seed,kept,on,accuracy,accuracy_base,macs,macs_base\n"


def comparison(folder: str, macs: int, accuracies: dict[str, list[float]], base: float = 0.9) -> None:
    rows = [
        f"{name},{seed},x,test,{accuracy},{base},{macs},1000\n"
        for name, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]
    Path(folder).mkdir()
    (Path(folder) / "items.csv").write_text(ITEMS + "".join(rows))


def test_accuracy_against_flops(capsys: pytest.CaptureFixture[str]) -> None:
    from evoprune.report.comparing import curves

    comparison("a", 700, {"l1": [0.8, 0.82], "xi_star": [0.85, 0.85]})
    comparison("b", 400, {"l1": [0.6, 0.7], "xi_star": [0.7, 0.8]})
    found = curves([Path("a"), Path("b")])
    assert list(found.of) == ["xi_star", "l1"] and found.base == 0.9
    assert [point.flops for point in found.of["l1"]] == [0.4, 0.7]
    cheap = found.of["l1"][0]
    assert (cheap.accuracy, cheap.seeds) == (pytest.approx(0.65), 2)
    assert cheap.deviation == pytest.approx(0.1 / 2**0.5)
    told = run(capsys, "plot", "a", "b", "--output", "out/figure")
    assert "xi_star: 75.00% at 40%, 85.00% at 70%" in told
    assert Path("out/figure.png").is_file() and Path("out/figure.svg").is_file()
    comparison("c", 400, {"l1": [0.6]}, base=0.8)
    assert "one network on one split" in refused(capsys, "plot", "a", "c", code=FAILED)
    assert "cannot be read" in refused(capsys, "plot", "nowhere", code=FAILED)


@pytest.mark.parametrize(
    "row", ["l1,0,x,test,half,0.9,10,100", "l1,0,x,test,0.5,0.9,10,0", "l1,0", "l1,0,x,test,nan,0.9,1,10"]
)
def test_comparisons_that_compare_did_not_write(capsys: pytest.CaptureFixture[str], row: str) -> None:
    Path("bad").mkdir()
    (Path("bad") / "items.csv").write_text(f"{ITEMS}l1,0,x,test,0.5,0.9,10,100\n{row}\n")
    assert "line 3 is not as evoprune compare writes it" in refused(capsys, "plot", "bad", code=FAILED)


def test_bars_at_a_single_cost_stand_beside_each_other(tmp_path: Path) -> None:
    from evoprune.report.comparing import curves, figure

    comparison("a", 700, {"l1": [0.8, 0.82], "l2": [0.8, 0.82], "xi_star": [0.85, 0.85]})
    (axes,) = figure(curves([Path("a")])).axes
    places = [container.lines[0].get_xdata()[0] for container in axes.containers]
    assert len({round(float(place), 6) for place in places}) == 3
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["70.0"]


@pytest.mark.real
def test_mnist_selected_as_in_the_paper(capsys: pytest.CaptureFixture[str], real_data: Path) -> None:
    told = run(capsys, "select", "mnist", "--functions", "xi_star", "di")
    means = {line.split(":")[0].strip(): float(line.split("stays ")[1].split(",")[0])
             for line in told.splitlines() if "mean value" in line}  # fmt: skip
    assert means["xi_star"] > means["di"]  # it keeps pixels with higher means
