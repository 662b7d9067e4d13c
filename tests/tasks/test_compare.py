"""Comparisons: who is compared with whom, on what, and what the numbers are."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest

from evoprune.errors import ConfigError, ExpressionError
from evoprune.tasks.compare import compare
from evoprune.tasks.paired import holm, paired_p
from evoprune.tasks.results import Kept, Result, aligned, paper_row, short
from evoprune.tasks.settings import settings
from evoprune.tasks.task import named

BASE = Result(
    on="test",
    seed=0,
    accuracy=0.9,
    top5=0.99,
    accuracy_cut=0.2,
    top5_cut=0.5,
    accuracy_base=0.95,
    top5_base=1.0,
    images=1000,
    macs=76_000,
    macs_base=1_000_000,
    parameters=20_000,
    parameters_base=1_000_000,
    epochs=3,
    loss=0.1,
)


class Known:
    """A task whose accuracies are known: by function and seed."""

    name = "known"
    settings = settings("digits")

    def __init__(self, accuracies: dict[str, list[float]]) -> None:
        self.accuracies = accuracies
        self.asked: list[tuple[str, int, str]] = []
        self._by_key: dict[str, str] = {}

    def kept(self, function: str, *, seed: int = 0) -> Kept:
        number = list(self.accuracies).index(function)
        kept = Kept({"conv": (number,)}, constant=("conv",) if function == "bn_scale" else ())
        self._by_key[kept.key] = function
        return kept

    def evaluate(self, kept: Kept, seed: int, *, on: str, watcher: object) -> Result:
        function = self._by_key[kept.key]
        self.asked.append((function, seed, on))
        accuracy = self.accuracies[function][seed]
        return dataclasses.replace(BASE, seed=seed, accuracy=accuracy, accuracy_cut=accuracy / 2)


ACCURACIES = {
    "xi_star": [0.90, 0.92, 0.91],
    "l1": [0.88, 0.91, 0.88],
    "bn_scale": [0.91, 0.92, 0.92],
    "mean_activation": [0.85, 0.80, 0.83],
    "random": [0.5, 0.7, 0.6],
}


def test_every_function_meets_every_seed_and_two_are_always_there() -> None:
    task = Known(ACCURACIES)
    result = compare(task, ["xi_star", "l1", "bn_scale"], range(3))  # type: ignore[arg-type]
    assert sorted(task.asked) == sorted((name, seed, "test") for name in ACCURACIES for seed in range(3))
    assert [row.function for row in result.rows] == ["bn_scale", "xi_star", "l1", "mean_activation", "random"]
    again = compare(Known(ACCURACIES), ["random", "xi_star", "random"], [0, 1])  # type: ignore[arg-type]
    assert [item.function for item in again.items[:3]] == ["random", "xi_star", "mean_activation"]


def test_numbers_are_paired_with_the_first_function() -> None:
    result = compare(Known(ACCURACIES), ["xi_star", "l1", "bn_scale"], range(3))  # type: ignore[arg-type]
    differences = {
        name: [a - b for a, b in zip(values, ACCURACIES["xi_star"], strict=True)]
        for name, values in ACCURACIES.items()
        if name != "xi_star"
    }
    corrected = holm({name: paired_p(values) for name, values in differences.items()})
    for row in result.rows:
        values = ACCURACIES[row.function]
        assert row.accuracy == pytest.approx(np.mean(values))
        assert row.deviation == pytest.approx(np.std(values, ddof=1))
        assert row.cut == pytest.approx(np.mean(values) / 2)
        if row.function == "xi_star":
            assert row.difference is row.p is None
        else:
            assert row.difference == pytest.approx(np.mean(differences[row.function]))
            assert row.p == corrected[row.function]
    stats = pytest.importorskip("scipy.stats")
    plain = stats.ttest_rel(ACCURACIES["l1"], ACCURACIES["xi_star"]).pvalue
    assert paired_p(differences["l1"]) == pytest.approx(float(plain))


def test_the_table_and_both_csv_files_say_the_same() -> None:
    result = compare(Known(ACCURACIES), ["xi_star", "l1", "bn_scale"], range(3))  # type: ignore[arg-type]
    text = str(result)
    assert "known: accuracy on 1,000 test images, base 95.00%; 92.4% of FLOPs and 98.0% of parameters" in text
    assert "91.67 ± 0.58" in text and "bn_scale at 1 sites" in text
    rows = list(csv.DictReader(io.StringIO(result.csv())))
    assert [row["function"] for row in rows] == [row.function for row in result.rows]
    assert float(rows[0]["accuracy"]) == result.rows[0].accuracy
    items = list(csv.DictReader(io.StringIO(result.items_csv())))
    assert len(items) == 15
    of_l1 = [float(item["accuracy"]) for item in items if item["function"] == "l1"]
    assert of_l1 == ACCURACIES["l1"]


def test_one_seed_has_no_p_value() -> None:
    result = compare(Known(ACCURACIES), ["xi_star"], [0])  # type: ignore[arg-type]
    assert all(row.p is None for row in result.rows)
    assert "nothing to test" in str(result) and "±" not in str(result)


def test_a_comparison_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    def task() -> object:
        changes = {"base": {"epochs": 1}, "recipe": {"epochs": 1}}
        return named("digits", folder=tmp_path, **changes)  # type: ignore[arg-type]

    started: list[str] = []

    class Watcher:
        def __init__(self, title: str, *, stop: bool) -> None:
            self.title, self.stop = title, stop

        def start(self, *_: object) -> None:
            started.append(self.title)

        def step(self, epoch: int, step: int, means: object) -> None:
            if self.stop and len(started) == 3:
                raise KeyboardInterrupt

        def epoch(self, *_: object) -> None:
            pass

    def run(*, stop: bool) -> object:
        return compare(task(), ["l1"], range(2), watch=lambda title: Watcher(title, stop=stop))  # type: ignore[arg-type, return-value]

    with pytest.raises(KeyboardInterrupt):
        run(stop=True)
    assert started == ["l1, seed 0", "mean_activation, seed 0", "random, seed 0"]
    started.clear()
    first = run(stop=False)
    assert started == ["random, seed 0", "l1, seed 1", "mean_activation, seed 1", "random, seed 1"]
    started.clear()
    assert run(stop=False) == first
    assert not started


def test_what_cannot_be_compared_is_refused_before_anything_runs() -> None:
    task = Known(ACCURACIES)
    with pytest.raises(ExpressionError, match="did you mean xi_star"):
        compare(task, ["l1", "xi_str"], [0])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one function and one seed"):
        compare(task, [], [0])  # type: ignore[arg-type]
    task.settings = settings("digits", cut={"ratio": 0.5, "scope": "global"})
    with pytest.raises(ConfigError, match=r"same number of channels at every site.*cut\.scope = 'site'"):
        compare(task, ["l1"], [0])  # type: ignore[arg-type]
    assert not task.asked


def test_the_papers_row() -> None:
    row = paper_row("LeNet5", "xi_star", BASE, top5=False, retrained=True).splitlines()
    assert row[0].split("  ")[0].strip() == "Network"
    cells = [cell.strip() for cell in row[2].split("  ") if cell.strip()]
    assert cells == ["LeNet5", "xi_star", "95.00 → 90.00", "5.00", "76.0k", "92.4", "20.0k", "98.0"]
    wide = paper_row("ResNet", "l1", BASE, top5=True, retrained=False)
    assert "Top-5" in wide and "100.00 → 50.00" in wide and "95.00 → 20.00" in wide


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (8492, "8.49k"),
        (174_800, "175k"),
        (1_460_000, "1.46M"),
        (15_000_000, "15.0M"),
        (7_740_000_000, "7.74B"),
        (12, "12"),
    ],
)
def test_large_numbers_are_written_as_in_the_paper(count: int, text: str) -> None:
    assert short(count) == text


def test_columns_are_aligned() -> None:
    lines = aligned(["name", "n"], [["a", "1"], ["long", "123"]]).splitlines()
    assert lines == ["name    n", "────  ───", "a       1", "long  123"]
