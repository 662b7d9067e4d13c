"""What is told of a run, as data, held against the journal."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from evoprune.errors import RunError
from evoprune.evolution.settings import Fitness
from evoprune.evolution.starting import resume
from evoprune.expression.library import SOAP
from evoprune.report import charts, reading, summaries
from evoprune.report.reading import RunView, view, views
from evoprune.runs.folder import Lock, RunFolder
from evoprune.runs.journal import Record


def records_of(run: RunView, event: str) -> list[Record]:
    return [record for record in run.records if record["event"] == event]


def test_the_progress_is_that_of_the_journal(plain: RunView) -> None:
    found = summaries.progress(plain)
    high = 0.0
    assert found.generations == tuple(range(5))
    for generation, best, top in zip(found.generations, found.best, found.top, strict=True):
        fitness = sorted(
            (r["fitness"] for r in records_of(plain, "fitness") if r["generation"] == generation),
            reverse=True,
        )
        high = max(high, fitness[0])
        assert best == high
        assert top == fitness[2]  # three of twelve are a quarter
    assert found.best[-1] == plain.ledger.generations[-1]["best"]


def test_the_best_so_far_never_falls(small: RunView) -> None:
    found = summaries.progress(small)
    fitness = [
        max(r["fitness"] for r in records_of(small, "fitness") if r["generation"] == g) for g in range(12)
    ]
    assert fitness != sorted(fitness)  # or there is nothing to see
    assert list(found.best) == [max(fitness[: g + 1]) for g in range(12)]


def test_the_front_grows_in_size_and_fitness(plain: RunView) -> None:
    front = summaries.front(plain)
    sizes = [each.individual.expr.size for each in front]
    fitness = [each.fitness for each in front]
    assert sizes == sorted(set(sizes)) and fitness == sorted(set(fitness))
    best = plain.ledger.best()
    assert best is not None and fitness[-1] == best.fitness
    for each in plain.judged:
        smaller = [f.fitness for f in front if f.individual.expr.size <= each.individual.expr.size]
        assert max(smaller) >= each.fitness


def test_failed_functions_are_not_the_fittest_of_their_size(runs: Path) -> None:
    failing = view(RunFolder(runs / "failing"))
    assert any(each.error for each in failing.judged)
    assert not any(each.error for each in summaries.of_sizes(failing))
    (hall,) = [chart for chart in charts.by_size(failing)["traces"] if chart["role"] == "dot"]
    assert min(hall["y"]) > 0


def test_failed_evaluations_do_not_flatten_the_others(runs: Path, plain: RunView) -> None:
    failing = view(RunFolder(runs / "failing"))
    fitness = [each.fitness for each in failing.judged if not each.error]
    found = summaries.window([plain, failing])
    assert found is not None and summaries.window([plain]) is None
    low, high = found
    assert 0 < low < min(fitness) and max(fitness) < high
    assert charts.progress([failing])["layout"]["yaxis"]["range"][0] > 0


def test_failed_rivals_are_told_of(runs: Path) -> None:
    failing = view(RunFolder(runs / "failing"))
    found = summaries.soap_table(failing)
    assert found is not None
    assert found.csv() == (failing.path / "comparison.csv").read_text()
    failed = [row for row in found.rows if not row.accuracies]
    assert failed and all(row.fitness == 0 for row in failed)


def test_ancestors_are_told_apart_by_their_origin(plain: RunView, tangled: RunView) -> None:
    best = plain.ledger.best()
    assert best is not None
    _, *traces = charts.ancestry(plain, best.individual.place)["traces"]
    members = summaries.ancestry(plain, best.individual.place).members
    assert {trace["name"] for trace in traces} == {summaries.origin(one) for one in members}
    assert sum(len(trace["x"]) for trace in traces) == len(members)
    written = {text for trace in traces for text in trace["text"]}
    assert f"{100 * best.fitness:.1f}" in written and all("text" in trace["mode"] for trace in traces)
    _, *traces = charts.ancestry(tangled, tangled.judged[-1].individual.place)["traces"]
    assert all(trace["mode"] == "markers" for trace in traces), "labels would hide each other"


def test_one_generation_is_seen(runs: Path, plain: RunView) -> None:
    ledger = replace(plain.ledger, judged={p: j for p, j in plain.ledger.judged.items() if p[0] == 0})
    for trace in charts.progress([replace(plain, ledger=ledger)])["traces"]:
        assert len(trace["x"]) == 1 and "markers" in trace["mode"]


def test_runs_that_lie_over_each_other_are_told_apart(plain: RunView) -> None:
    many = [replace(plain, name=f"run {number}") for number in range(10)]
    traces = charts.progress(many)["traces"]
    assert len({(trace["role"], trace["line"]["dash"]) for trace in traces}) == len(traces) == 20
    assert [trace["name"] for trace in traces if trace["showlegend"]] == [run.name for run in many]


def test_the_ancestry_reaches_those_without_parents(plain: RunView) -> None:
    best = plain.ledger.best()
    assert best is not None
    found = summaries.ancestry(plain, best.individual.place)
    places = {one.place for one in found.members}
    assert all(parent in places and child in places for parent, child in found.edges)
    assert all(one.origin != "selected" for one in found.members)
    assert found.members[-1].expr == best.individual.expr
    with_parents = {child for _, child in found.edges}
    for one in found.members:
        assert (one.place in with_parents) == bool(one.parents)
    assert all(parent[0] < child[0] for parent, child in found.edges)
    assert found.complete


def test_of_very_many_ancestors_the_nearest_are_told_of(tangled: RunView) -> None:
    best = tangled.judged[-1]
    found = summaries.ancestry(tangled, best.individual.place)
    assert len(found.members) == summaries.ANCESTORS and not found.complete
    assert found.members[-1] == best.individual
    reached = {parent for parent, _ in found.edges}
    assert all(one.place in reached for one in found.members[:-1])


def test_usage_counts_functions_not_nodes(plain: RunView) -> None:
    found = summaries.usage(plain)
    texts = [r["text"] for r in records_of(plain, "born") if r["generation"] == 2]
    row = found.shares[found.names.index("W_I")]
    assert row[2] == pytest.approx(sum("W_I" in text for text in texts) / len(texts))
    assert all(0 < max(row) <= 1 for row in found.shares)


def test_diversity(plain: RunView) -> None:
    found = summaries.diversity(plain)
    first = [each.individual.expr for each in plain.judged if each.individual.generation == 0]
    assert found.functions[0] == len({expr.canonical_key for expr in first}) / 12
    assert all(0 < cuts <= share <= 1 for cuts, share in zip(found.cuts, found.functions, strict=True))
    assert found.size[0] == sum(expr.size for expr in first) / 12


def test_what_was_retrained_and_what_was_saved_is_everything(plain: RunView) -> None:
    found = summaries.effort(plain)
    assert sum(found.retrained) + found.finale == len(plain.ledger.outcomes)
    told = Counter({reason: sum(counts) for reason, counts in found.saved.items()})
    assert told == plain.ledger.savings
    for number, generation in enumerate(found.generations):
        saved = sum(counts[number] for counts in found.saved.values())
        assert found.retrained[number] + saved == 2 * 12, generation


def test_the_table_beside_soap_is_that_of_the_run(plain: RunView) -> None:
    found = summaries.soap_table(plain)
    assert found is not None
    assert found.csv() == (plain.path / "comparison.csv").read_text()
    assert {row.name for row in found.rows} == {"the best", *SOAP}


def test_schemes_need_judges(plain: RunView, runs: Path) -> None:
    judge, found = summaries.schemes([plain])
    (only,) = found
    assert (judge, only.combine, only.alpha) == ("j", "geometric", 0.5)
    assert only.accuracy == summaries.verdicts(plain)["j"]
    weighted = replace(plain, settings=replace(plain.settings, fitness=Fitness("arithmetic", alpha=0.3)))
    _, found = summaries.schemes([plain, weighted])
    assert [(each.combine, each.alpha) for each in found] == [("arithmetic", 0.3), ("geometric", 0.5)]
    with pytest.raises(RunError, match="'random' has none"):
        summaries.schemes([plain, view(RunFolder(runs / "random"))])


def test_states(runs: Path) -> None:
    found = {name: view(RunFolder(runs / name)).state for name in ("plain", "failing", "stopped")}
    assert found == {"plain": "ended", "failing": "ended", "stopped": "stopped"}
    lock = Lock(RunFolder(runs / "stopped"))
    try:
        assert view(RunFolder(runs / "stopped")).state == "running"
    finally:
        lock.release()
    with pytest.raises(RunError, match="named twice"):
        views(runs, ["plain", str(runs / "plain")])


def test_a_run_named_by_where_one_is(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs / "plain")
    (found,) = views(Path("runs"), ["."])
    assert found.name == "plain"


def test_a_run_that_ends_while_it_is_read_was_not_stopped(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs / "plain", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    whole = folder.journal.read_bytes()
    folder.journal.write_bytes(whole[: len(whole) // 2])
    lock = Lock(folder)
    real = reading.read

    def ends_now(journal: Path) -> object:
        found = real(journal)
        lock.release()
        return found

    monkeypatch.setattr(reading, "read", ends_now)
    assert view(folder).state == "running"


def test_a_resumed_run_is_told_of_as_one_never_stopped(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "stopped", tmp_path / "stopped")
    with resume("stopped", runs=tmp_path, overrides=["budget.evaluations=10000"]) as run:
        for _ in run:
            pass
    resumed, whole = view(RunFolder(tmp_path / "stopped")), view(RunFolder(runs / "plain"))
    assert resumed.state == "ended"
    assert any("budget" in note for note in resumed.notes)
    assert summaries.progress(resumed) == summaries.progress(whole)
    assert summaries.usage(resumed) == summaries.usage(whole)
    assert summaries.effort(resumed).saved == summaries.effort(whole).saved
    ours, theirs = summaries.soap_table(resumed), summaries.soap_table(whole)
    assert ours is not None and theirs is not None and ours.rows == theirs.rows


def test_a_run_cut_off_anywhere_can_be_told_of(runs: Path, tmp_path: Path) -> None:
    whole = (runs / "plain" / "journal.jsonl").read_bytes()
    folder = tmp_path / "cut"
    folder.mkdir()
    (folder / "config.toml").write_bytes((runs / "plain" / "config.toml").read_bytes())
    for part in (0.02, 0.1, 0.33, 0.5, 0.77, 0.999):
        (folder / "journal.jsonl").write_bytes(whole[: int(part * len(whole))])
        run = view(RunFolder(folder))
        assert run.state == "stopped"
        summaries.progress(run)
        summaries.soap_table(run)
        summaries.effort(run)
        json.dumps(charts.points([run]), allow_nan=False)


def test_points_are_columns_of_equal_length(plain: RunView, runs: Path) -> None:
    other = view(RunFolder(runs / "failing"))
    found = charts.points([plain, other])
    count = len(plain.judged) + len(other.judged)
    columns = ("run", "generation", "index", "text", "fitness", "origin", "parents", "size", "accuracies")
    assert {len(found[name]) for name in columns} == {count}
    third = plain.judged[3]
    assert found["texts"][found["text"][3]] == str(third.individual.expr)
    assert found["fitness"][3] == pytest.approx(third.fitness, abs=1e-8)  # or the page rounds to other digits
    failed = [each for each in (*plain.judged, *other.judged) if each.error]
    assert len(found["failed"]) == len(failed) > 0
    assert any("the toy breaks" in error for error in found["errors"])


def test_every_chart_is_one_that_plotly_takes(plain: RunView) -> None:
    graph = pytest.importorskip("plotly.graph_objects")
    best = plain.ledger.best()
    assert best is not None
    drawn = [
        charts.progress([plain]), charts.by_size(plain), charts.ancestry(plain, best.individual.place),
        charts.usage(plain), charts.diversity(plain), charts.effort(plain), charts.cost(plain),
        charts.ablation([plain]),
    ]  # fmt: skip
    for chart in drawn:
        ours = ("role", "texts")  # what the page reads, and takes off before it draws
        traces = [{k: v for k, v in trace.items() if k not in ours} for trace in chart["traces"]]
        graph.Figure(data=traces, layout=chart["layout"])
        assert all(math.isfinite(v) for t in traces for v in t["y"] if isinstance(v, float))
