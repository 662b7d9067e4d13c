"""Whole evolutions on toy tasks: what they find, save, survive and write."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evoprune
import toys
from evoprune import functions, parse
from evoprune.errors import ConfigError, RunError
from evoprune.evolution.ledger import Ledger
from evoprune.evolution.search import BY_INDEX, SAME_CHANNELS, SAME_FUNCTION, Run
from evoprune.evolution.summary import run_functions, summary
from evoprune.expression.library import SOAP
from evoprune.runs import files, journal
from evoprune.runs.folder import RunFolder
from evoprune.runs.journal import comparable, read

SMALL = {
    "population": {
        "size": 12,
        "generations": 3,
        "soap": 5,
        "tournament": 3,
        "selected": 4,
        "children": 6,
        "immigrants": 2,
    },
    "run": {"executor": "inline"},
}


def two(**options: Any) -> dict[str, Any]:
    """Two toy tasks, a small population."""
    tasks = [
        {"name": "a", "factory": "toys:Layer", "options": options},
        {"name": "b", "factory": "toys:Layer", "options": {"seed": 1}},
    ]
    return {"tasks": tasks, **SMALL}


def evolved(tmp_path: Path, table: dict[str, Any] | None = None, **more: Any) -> Run:
    run = evoprune.evolve(table or two(), name="it", runs=tmp_path, **more)
    for _ in run:
        pass
    return run


def records(run: Run | RunFolder, event: str) -> list[dict[str, Any]]:
    folder = run.folder if isinstance(run, Run) else run
    return [record for record in read(folder.journal).records if record["event"] == event]


def lines(run: Run) -> list[str]:
    return comparable(read(run.folder.journal).records)


def test_what_it_took_to_make_tasks_ready_is_not_foretold_for_evaluations() -> None:
    places = [
        {"event": "prepared", "task": task, "index": i, "generation": -1, "accuracy": None}
        for i, task in enumerate("ab")
    ]
    times = [{"elapsed": 900.0}, {"elapsed": 1000.0}]
    evaluated = {
        "event": "evaluated",
        "task": "a",
        "kept": "k",
        "generation": 0,
        "index": 0,
        "elapsed": 1060.0,
    }
    ledger = Ledger.of([place | when for place, when in zip(places, times, strict=True)] + [evaluated])
    assert (ledger.ready, ledger.elapsed) == (1000.0, 1060.0)


def test_generations_are_what_the_settings_say(tmp_path: Path) -> None:
    run = evoprune.evolve(two(), name="it", runs=tmp_path)
    generations = list(run)
    assert [generation.number for generation in generations] == [0, 1, 2]
    first, second = (generation.members for generation in generations[:2])
    origins = Counter(one.individual.origin.split()[0].rstrip(",") for one in first)
    assert origins == {"soap": 5, "random": 7}
    origins = Counter(one.individual.origin.split()[0].rstrip(",") for one in second)
    assert origins["selected"] == 4
    assert origins["crossover"] + origins["mutation"] == 6
    assert origins["soap"] + origins["random"] == 2
    for one in second:
        for generation, index in one.individual.parents:
            assert generation == 0
            assert first[index].fitness >= min(each.fitness for each in first)
    assert generations[1].best.fitness == max(one.fitness for one in second)
    assert generations[1].median == np.median([one.fitness for one in second])


def test_what_is_bred_was_never_there_before(tmp_path: Path) -> None:
    run = evolved(tmp_path, overrides=["population.generations=6"])
    bred = [
        i.expr for i in run.ledger.born.values() if i.origin.startswith(("random", "crossover", "mutation"))
    ]
    assert len({expr.canonical_key for expr in bred}) == len(bred) > 30
    soap = {expr.canonical_key for name in SOAP if (expr := functions[name].expr) is not None}
    assert not soap & {expr.canonical_key for expr in bred}


@pytest.mark.parametrize("source", ["soap", "random", "both"])
def test_immigrants_come_from_where_the_settings_say(tmp_path: Path, source: str) -> None:
    settings = [
        "population.selected=1",
        "population.children=1",
        "population.immigrants=10",
        f"population.immigrants_from={source}",
    ]
    run = evolved(tmp_path, overrides=settings)
    later = [one.origin.split()[0] for place, one in run.ledger.born.items() if place[0] and place[1] >= 2]
    assert len(later) == 20
    assert set(later) == ({"soap", "random"} if source == "both" else {source})


def test_places_that_draw_the_same_get_different_functions(tmp_path: Path) -> None:
    """There are few functions of two nodes, so that places draw each other's."""
    small = ["population.soap=0", "population.generations=1", "variation.limits.max_size=2"]
    run = evolved(tmp_path, overrides=small)
    assert len({one.expr for one in run.ledger.born.values()}) == 12


def test_fitness_is_the_geometric_mean_of_what_the_tasks_gave(tmp_path: Path) -> None:
    run = evolved(tmp_path, two() | {"fitness": {"alpha": 0.3}})
    layers = {"a": toys.Layer(tmp_path / "x"), "b": toys.Layer(tmp_path / "x", seed=1)}
    (tmp_path / "x").mkdir()
    seeds = {w["task"]: w["seed"] for w in works(run) if w["kind"] == "evaluate"}
    for one in run.ledger.judged.values():
        text = str(one.individual.expr)
        accuracy = {
            name: layer.evaluate(layer.kept(text), seeds[name]).accuracy for name, layer in layers.items()
        }
        assert one.accuracies == accuracy
        assert one.fitness == pytest.approx(accuracy["a"] ** 0.3 * accuracy["b"] ** 0.7)


def works(run: Run) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in run.folder.evals.glob("*/work.json")]


def test_nothing_is_evaluated_twice_and_what_is_saved_is_told(tmp_path: Path) -> None:
    run = evolved(tmp_path)
    calls = toys.calls(run.folder.path)
    assert len(calls) == len(set(calls)) == len(run.ledger.outcomes)
    saved = Counter(why for one in records(run, "fitness") for why in one["saved"].values())
    evolved_for = [one for one in records(run, "evaluated") if one["generation"] >= 0]
    assert saved.total() + len(evolved_for) == 2 * 12 * 3, "every function on every task: done or saved"
    assert set(saved) <= {SAME_FUNCTION, SAME_CHANNELS, BY_INDEX}
    assert saved[SAME_FUNCTION] >= 2 * 4 * 2, "the selected stay, and are not evaluated again"
    assert saved[SAME_CHANNELS] > 0
    log = run.folder.log.read_text()
    assert f"{saved.total()} saved" in log
    for why, count in saved.items():
        assert f"{count} {why}" in log


def test_all_functions_get_the_same_seed_on_a_task(tmp_path: Path) -> None:
    run = evolved(tmp_path)
    seeds = {(work["task"], work["seed"]) for work in works(run) if work["kind"] == "evaluate"}
    assert len(seeds) == 2


def test_the_same_seed_gives_the_same_journal_and_another_another(tmp_path: Path) -> None:
    one, same, other = (
        evolved(tmp_path / name, overrides=[f"seed={seed}"]) for name, seed in (("a", 5), ("b", 5), ("c", 6))
    )
    assert lines(one) == lines(same)
    born = [[str(each.expr) for each in run.ledger.born.values()] for run in (one, other)]
    assert born[0] != born[1]


def test_a_run_that_is_left_is_gone_on_with(tmp_path: Path) -> None:
    whole = evolved(tmp_path / "whole")
    for generation in evoprune.evolve(two(), name="it", runs=tmp_path):
        if generation.number == 1:
            break
    run = evoprune.resume("it", runs=tmp_path)
    assert [generation.number for generation in run] == [2]
    assert lines(run) == lines(whole)
    assert len(toys.calls(run.folder.path)) == len(toys.calls(whole.folder.path))
    assert list(evoprune.resume("it", runs=tmp_path)) == [], "an ended run has nothing left to do"
    assert lines(run) == lines(whole)


def test_a_run_hands_out_one_generation_after_another(tmp_path: Path) -> None:
    whole = evolved(tmp_path / "whole")
    run = evoprune.evolve(two(), name="it", runs=tmp_path)
    assert next(run).number == 0
    assert summary(run.folder).state == "running", "it stays open in between"
    assert [generation.number for generation in run] == [1, 2]
    assert next(run, None) is None
    assert lines(run) == lines(whole)


def test_a_loop_that_fails_closes_the_run(tmp_path: Path) -> None:
    run = evoprune.evolve(two(), name="it", runs=tmp_path)
    with pytest.raises(ZeroDivisionError) as caught:
        for generation in run:
            generation.number / 0
    assert caught.traceback, "which is still there, as in a notebook"
    assert [generation.number for generation in evoprune.resume("it", runs=tmp_path)] == [1, 2]


def test_two_runs_in_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    whole = [evolved(tmp_path / "whole" / str(seed), overrides=[f"seed={seed}"]) for seed in (1, 2)]
    runs = [
        evoprune.evolve(two(), name=f"run-{seed}", runs=tmp_path, overrides=[f"seed={seed}"])
        for seed in (1, 2)
    ]
    for _ in zip(*runs, strict=True):
        pass
    assert [lines(run) for run in runs] == [lines(run) for run in whole]


def test_an_ended_run_can_be_given_more_generations(tmp_path: Path) -> None:
    whole = evolved(tmp_path / "whole", overrides=["population.generations=4"])
    evolved(tmp_path)
    run = evoprune.resume("it", runs=tmp_path, overrides=["population.generations=4"])
    assert [generation.number for generation in run] == [3]
    assert [one.individual.expr for one in run.ledger.judged.values()] == [
        one.individual.expr for one in whole.ledger.judged.values()
    ]
    assert "generations = 4" in run.folder.config.read_text()
    assert summary(run.folder).state == "ended"


def test_constant_functions_share_one_cut_and_bred_ones_are_refused(tmp_path: Path) -> None:
    """Two seeds of one's own that are constant: cut by index, evaluated once; no bred tree is."""
    run = evolved(tmp_path, seeds=["count_g(F)", "sum_g(W)"])
    judged = run.ledger.judged
    assert judged[0, 0].accuracies == judged[0, 1].accuracies
    saved = {(one["generation"], one["index"]): one["saved"] for one in records(run, "fitness")}
    assert saved[0, 1] == {"a": BY_INDEX, "b": BY_INDEX}
    assert "is cut by index everywhere, where count_g(F) is constant" in run.folder.log.read_text()
    for one in judged.values():
        if not one.individual.origin.startswith(("seed", "soap", "selected")):
            scores = [run.ledger.scores[task, one.individual.expr.canonical_key] for task in ("a", "b")]
            assert not all(score.everywhere for score in scores)


def test_what_is_constant_on_every_task_is_bred_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On these tasks every function without a W_I is constant."""
    kept = toys.Layer.kept

    def constant(layer: toys.Layer, function: str) -> toys.Kept:
        return kept(layer, function if "W_I" in function else "count_g(F)")

    monkeypatch.setattr(toys.Layer, "kept", constant)
    run = evolved(tmp_path)
    bred = [i for i in run.ledger.born.values() if i.origin.startswith(("random", "crossover", "mutation"))]
    assert bred and all("W_I" in str(one.expr) for one in bred)
    assert "constant on every task" in run.folder.log.read_text()


def test_seeds_of_ones_own_are_there_once_and_are_bred_from(tmp_path: Path) -> None:
    run = evolved(tmp_path, seeds=["xi_star", parse("mean_g(sq(F))"), "mean_g(add(F, W_I))"])
    first = [run.ledger.born[0, index] for index in range(12)]
    assert [str(one.expr) for one in first[:3]] == [
        functions["xi_star"].text,
        "mean_g(sq(F))",
        "mean_g(add(F, W_I))",
    ]
    assert first[0].origin == "seed xi_star"
    with pytest.raises(ConfigError, match="'random' is not an expression"):
        evoprune.evolve(two(), name="other", runs=tmp_path, seeds=["random"])


def test_the_hall_of_fame_is_written_after_every_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    evaluate = toys.Layer.evaluate

    def looking(layer: toys.Layer, kept: toys.Kept, seed: int) -> toys.Judged:
        with (tmp_path / "it" / "hall_of_fame.csv").open() as file:
            seen.append(len(list(csv.DictReader(file))))
        return evaluate(layer, kept, seed)

    monkeypatch.setattr(toys.Layer, "evaluate", looking)
    run = evolved(tmp_path)
    assert seen[0] == 0 and len(set(seen[:20])) > 5
    with run.folder.hall_of_fame_csv.open() as file:
        rows = list(csv.DictReader(file))
    fittest = [row for row in rows if row["list"] == "fittest"]
    best = max(run.ledger.judged.values(), key=lambda one: one.fitness)
    assert float(fittest[0]["fitness"]) == best.fitness
    assert [float(row["fitness"]) for row in fittest] == sorted(
        (float(row["fitness"]) for row in fittest), reverse=True
    )
    sizes = {int(row["size"]): float(row["fitness"]) for row in rows if row["list"] == "of size"}
    for one in run.ledger.judged.values():
        assert sizes[one.individual.expr.size] >= one.fitness
    assert str(parse(fittest[0]["function"])) in run.folder.hall_of_fame.read_text()
    labels = {label: text for label, text, _ in run_functions("it", tmp_path)}
    assert labels["best 1"] == fittest[0]["function"]


def test_the_best_is_compared_with_all_of_soap(tmp_path: Path) -> None:
    run = evolved(tmp_path)
    assert run.comparison is not None
    assert {row.name for row in run.comparison.rows} == {"the best", *SOAP}
    layer = toys.Layer(tmp_path)
    seed = next(work["seed"] for work in works(run) if work["task"] == "a" and work["kind"] == "evaluate")
    for row in run.comparison.rows:
        assert row.accuracies["a"] == layer.evaluate(layer.kept(row.function), seed).accuracy
    assert run.folder.comparison_csv.read_text() == run.comparison.csv()


def test_judges_see_the_winner_only(tmp_path: Path) -> None:
    judge = {"name": "judge", "factory": "toys:Layer", "options": {"seed": 9}}
    run = evolved(tmp_path, two() | {"judges": [judge]})
    assert run.comparison is not None
    assert len((run.folder.tasks / "judge" / "calls.txt").read_text().splitlines()) == 1
    assert 0 < (run.comparison.verdicts["judge"] or 0) < 1


def test_a_task_of_weight_zero_is_never_asked(tmp_path: Path) -> None:
    run = evolved(tmp_path, two() | {"fitness": {"alpha": 0.0}})
    assert not (run.folder.tasks / "a").exists()
    assert "a has the weight 0 and is left out" in run.folder.log.read_text()
    assert all(one.fitness == one.accuracies["b"] for one in run.ledger.judged.values())


# When things go wrong


def test_a_failed_evaluation_gets_fitness_0_with_its_traceback_in_the_log(tmp_path: Path) -> None:
    run = evolved(tmp_path, two(trouble="raise"))
    failed = [one for one in run.ledger.judged.values() if one.error]
    assert failed and all(
        one.fitness == 0 and "ZeroDivisionError: the toy breaks" in one.error for one in failed
    )
    assert {one.fitness > 0 for one in run.ledger.judged.values()} == {True, False}
    log = run.folder.log.read_text()
    assert "Traceback" in log and "in evaluate" in log
    assert run.ended == "all generations are judged"
    assert len(toys.calls(run.folder.path)) == len(set(toys.calls(run.folder.path))), "nor tried again"


def test_a_hanging_evaluation_gets_fitness_0(tmp_path: Path) -> None:
    run = evolved(tmp_path, two(trouble="hang", every=50), overrides=["run.time_limit=0.1"])
    failed = [one for one in run.ledger.judged.values() if one.error]
    assert failed and all("took longer than 0.1 seconds" in one.error for one in failed)


def test_workers_that_die_are_replaced_and_the_result_is_the_same(tmp_path: Path) -> None:
    calm = evolved(tmp_path / "calm")
    overrides = ["run.executor=local", "run.workers=2"]
    stormy = evolved(tmp_path, two(trouble="die once", every=3), overrides=overrides)
    assert [one.fitness for _, one in sorted(calm.ledger.judged.items())] == [
        one.fitness for _, one in sorted(stormy.ledger.judged.items())
    ]
    assert "tried again" in stormy.folder.log.read_text()


def test_a_function_that_is_not_finite_is_never_evaluated(tmp_path: Path) -> None:
    """A seed of one's own gets fitness 0 and is told; what is bred is turned down before any retraining."""
    bad = "prod_g(" + "sq(" * 12 + "ridge(F, 10)" + ")" * 13
    run = evolved(tmp_path, seeds=[bad])
    assert run.ledger.judged[0, 0].fitness == 0
    assert "not finite" in run.ledger.judged[0, 0].error
    assert "cannot use prod_g(" in run.folder.log.read_text()


def test_what_its_tasks_cannot_score_is_bred_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks turn down every tree with a W_I in it, unless it is a clone."""
    kept = toys.Layer.kept
    soap = {functions[name].text for name in SOAP}

    def picky(layer: toys.Layer, function: str) -> toys.Kept:
        if "W_I" in function and function not in soap:
            raise evoprune.EvopruneError("no W_I, please")
        return kept(layer, function)

    monkeypatch.setattr(toys.Layer, "kept", picky)
    run = evolved(tmp_path)
    assert not any(one.error for one in run.ledger.judged.values())
    assert not [t for i in run.ledger.born.values() if "W_I" in (t := str(i.expr)) and t not in soap]
    assert "turned down before any retraining" in run.folder.log.read_text()
    first = next(
        record for record in records(run, "scored") if any("error" in f for f in record["functions"])
    )
    turned_down = {parse(f["text"]).canonical_key for f in first["functions"] if "error" in f}
    assert turned_down <= Ledger.of([first]).drawn.keys(), "it is not drawn again in a later generation"


def test_a_task_that_cannot_be_made_ready_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    table = two()
    table["tasks"][1]["factory"] = "toys:missing"
    with pytest.raises(RunError, match="the task b cannot be made ready: the module 'toys' has no 'missing'"):
        evolved(tmp_path, table)
    assert records(RunFolder(tmp_path / "it"), "born") == []
    with pytest.raises(RunError, match="cannot be made ready"):
        list(evoprune.resume("it", runs=tmp_path))  # tried again, not remembered


@pytest.mark.parametrize("executor", ["inline", "local"])
def test_a_full_disk_stops_the_run_and_it_can_be_resumed(tmp_path: Path, executor: str) -> None:
    """The 'disk' is full once: after it was emptied, the run goes on to what it would have been."""
    whole = evolved(tmp_path / "whole")
    table = two(trouble="disk full until", every=2)
    with pytest.raises(RunError, match="No space left on device"):
        evolved(tmp_path, table, overrides=[f"run.executor={executor}"])
    assert not any(one["fitness"] == 0 for one in records(RunFolder(tmp_path / "it"), "fitness"))
    (tmp_path / "it" / "tasks" / "a" / "space").touch()
    run = evoprune.resume("it", runs=tmp_path)
    list(run)
    assert lines(run) == lines(whole)


def test_a_journal_that_cannot_be_written_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evolved(tmp_path / "whole")
    pwrite, left = journal.os.pwrite, [20]

    def filling(file: int, data: bytes, offset: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return pwrite(file, data, offset)

    monkeypatch.setattr(journal.os, "pwrite", filling)
    with pytest.raises(RunError, match=r"journal .* cannot be written: No space left"):
        evolved(tmp_path)
    monkeypatch.undo()
    run = evoprune.resume("it", runs=tmp_path)
    list(run)
    assert lines(run) == lines(whole)


def test_every_file_is_tried_before_the_first_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(path: Path, content: object, **more: object) -> None:
        if "hall_of_fame" in path.name:
            raise OSError(30, "Read-only file system", str(path))
        write(path, content, **more)  # type: ignore[arg-type]

    write = files.write
    monkeypatch.setattr("evoprune.runs.folder.write", refusing)
    with pytest.raises(RunError, match=r"Read-only file system.*hall_of_fame"):
        evolved(tmp_path)
    assert toys.calls(tmp_path / "it") == []


def test_a_run_is_open_once(tmp_path: Path) -> None:
    run = evoprune.evolve(two(), name="it", runs=tmp_path)
    generations = iter(run)
    next(generations)
    with pytest.raises(RunError, match="this process itself has the run 'it' open"):
        evoprune.resume("it", runs=tmp_path)
    assert summary(run.folder).state == "running"
    run.close()
    assert summary(run.folder).state == "stopped"
    with pytest.raises(RunError, match=r"the run is closed; go on with it by evoprune.resume\('it'\)"):
        list(run)


def test_a_torn_last_line_is_dropped_and_said(tmp_path: Path) -> None:
    whole = evolved(tmp_path)
    expected = lines(whole)
    with whole.folder.journal.open("ab") as file:
        file.write(b'{"event": "fitness", "gen')
    run = evoprune.resume("it", runs=tmp_path)
    list(run)
    assert "the end of the journal was torn (25 bytes), and is dropped" in run.folder.log.read_text()
    assert lines(run) == expected


def test_a_journal_torn_in_its_first_line_is_begun_anew(tmp_path: Path) -> None:
    whole = evolved(tmp_path)
    expected, done = lines(whole), toys.calls(whole.folder.path)
    os.truncate(whole.folder.journal, 100)
    run = evoprune.resume("it", runs=tmp_path)
    assert len(list(run)) == 3
    assert lines(run) == expected
    assert toys.calls(run.folder.path) == done, "finished evaluations are found in their files"


def test_what_is_no_journal_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    run = evolved(tmp_path, overrides=["budget.evaluations=3"])
    run.folder.journal.write_bytes(b"\0" * 4096)
    with pytest.raises(RunError, match="is not a journal, or its beginning is damaged"):
        evoprune.resume("it", runs=tmp_path)
    assert run.folder.journal.read_bytes() == b"\0" * 4096


def test_what_was_kept_is_asked_for_again_where_its_record_is_gone(tmp_path: Path) -> None:
    whole = evolved(tmp_path / "whole")
    run = evolved(tmp_path, overrides=["budget.evaluations=13"])
    done = Counter(toys.calls(run.folder.path))
    shutil.rmtree(run.folder.evals)
    again = evoprune.resume("it", runs=tmp_path, overrides=["budget.evaluations="])
    list(again)
    assert lines(again) == lines(whole)
    assert not done & (Counter(toys.calls(run.folder.path)) - done), "what is recorded is not done again"
    assert "is gone: " in run.folder.log.read_text()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seed = 0", "seed = 4", "seed was 0 and is 4"),
        ("tournament = 3", "tournament = 2", "population.tournament was 3 and is 2"),
        (
            'combine = "geometric"',
            'combine = "geometric"\nalpha = 0.3',
            "fitness.alpha was not set and is 0.3",
        ),
        ("seed = 1", "seed = 2", "tasks.1.options.seed was 1 and is 2"),
    ],
)
def test_a_configuration_that_was_edited_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    run = evolved(tmp_path, overrides=["budget.evaluations=13"])
    text = run.folder.config.read_text()
    assert old in text
    run.folder.config.write_text(text.replace(old, new))
    with pytest.raises(RunError, match=f"was changed since the run began.*{re.escape(says)}"):
        evoprune.resume("it", runs=tmp_path)
    run.folder.config.write_text(text.replace("evaluations = 13", "evaluations = 14"))
    evoprune.resume("it", runs=tmp_path).close()  # no result depends on it


def test_what_is_recorded_needs_no_files(tmp_path: Path) -> None:
    run = evoprune.evolve(two(), name="it", runs=tmp_path)
    next(iter(run))
    run.close()
    for work in run.folder.evals.glob("*"):
        for path in work.iterdir():
            path.unlink()
        work.rmdir()
    again = evoprune.resume("it", runs=tmp_path)
    assert [generation.number for generation in again] == [1, 2], "what is recorded is not needed any more"


# Stopping early


def test_a_budget_of_evaluations_is_kept_to_and_can_be_raised(tmp_path: Path) -> None:
    whole = evolved(tmp_path / "whole")
    run = evolved(tmp_path, overrides=["budget.evaluations=13"])
    assert run.ended == "the budget of 13 evaluations is used up"
    assert len(toys.calls(run.folder.path)) == 13
    assert summary(run.folder).state == "stopped"
    run = evoprune.resume("it", runs=tmp_path, overrides=["budget.evaluations="])
    list(run)
    assert lines(run) == lines(whole)


def test_a_budget_of_time_counts_what_was_used_before(tmp_path: Path) -> None:
    run = evolved(tmp_path, two(seconds=0.01), overrides=["budget.seconds=0.4"])
    assert run.ended == "the budget of 0 s is used up"
    done = len(toys.calls(run.folder.path))
    again = evoprune.resume("it", runs=tmp_path)
    list(again)
    assert len(toys.calls(run.folder.path)) == done
    more = evoprune.resume("it", runs=tmp_path, overrides=["budget.seconds=60"])
    list(more)
    assert more.ended == "all generations are judged"


def test_time_that_others_take_between_generations_is_not_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped, monotonic = [0.0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + skipped[0])
    run = evoprune.evolve(two(), name="it", runs=tmp_path, overrides=["budget.seconds=60"])
    skipped[0] += 1000
    for _ in run:
        skipped[0] += 1000
    assert run.ended == "all generations are judged"
    assert summary(run.folder).seconds < 60


def test_patience_and_a_fitness_that_is_enough_end_a_run(tmp_path: Path) -> None:
    overrides = ["population.generations=60", "budget.patience=3"]
    patient = evolved(tmp_path / "patient", overrides=overrides)
    assert patient.ended == "3 generations brought no better best"
    bests = [record["best"] for record in records(patient, "generation")]
    assert bests[-1] == bests[-4] and all(a < b for a, b in zip(bests[:-4:3], bests[3:-3:3], strict=False))
    assert patient.comparison is not None, "it has ended, not stopped"
    easy = evolved(tmp_path / "easy", overrides=["budget.fitness=0.4"])
    assert easy.ended == "the best has reached 40.00"
    assert len(easy.ledger.generations) == 1


@pytest.mark.parametrize(
    ("bests", "enough"), [([1, 1], False), ([1, 2, 2], False), ([1, 1, 1], True), ([1, 2, 2, 2], True)]
)
def test_patience_counts_generations_without_a_better_best(
    tmp_path: Path, bests: list[float], enough: bool
) -> None:
    with evoprune.evolve(two(), name="it", runs=tmp_path, overrides=["budget.patience=2"]) as run:
        run.ledger.generations = [{"best": best} for best in bests]
        assert bool(run._enough()) == enough


def test_a_run_that_has_ended_early_stays_ended_when_it_is_resumed(tmp_path: Path) -> None:
    overrides = ["population.generations=60", "budget.patience=3"]
    whole = evolved(tmp_path, overrides=overrides)
    expected, ended = lines(whole), whole.folder.journal.read_bytes()
    assert len(whole.ledger.generations) > 1
    assert list(evoprune.resume("it", runs=tmp_path)) == []
    assert whole.folder.journal.read_bytes() == ended
    # Killed between the last generation's record and the end, it ends after the same generation.
    kept = ended[: ended.rindex(b'{"event": "end"')]
    whole.folder.journal.write_bytes(kept)
    again = evoprune.resume("it", runs=tmp_path)
    assert list(again) == []
    assert lines(again) == expected
    assert summary(again.folder).state == "ended"
    fewer = evoprune.resume("it", runs=tmp_path, overrides=["population.generations=2"])
    assert list(fewer) == []
    assert summary(fewer.folder).state == "ended"


def test_a_run_is_stopped_from_outside_and_goes_on(tmp_path: Path) -> None:
    whole = evolved(tmp_path / "whole")
    run = evoprune.evolve(two(), name="it", runs=tmp_path)
    for generation in run:
        if generation.number == 0:
            run.stop("enough for today")
    assert run.ended == "enough for today"
    assert "enough for today" in run.folder.log.read_text()
    again = evoprune.resume("it", runs=tmp_path)
    list(again)
    assert lines(again) == lines(whole)


# Tasks of one's own


def test_tasks_can_be_objects(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    tasks = {"mine": toys.Layer(tmp_path / "mine")}
    run = evoprune.evolve({"population": SMALL["population"]}, name="it", runs=tmp_path, tasks=tasks)
    assert next(iter(run)).best.fitness > 0
    run.close()
    with pytest.raises(ConfigError, match=r"mine were given as objects; give them again"):
        evoprune.resume("it", runs=tmp_path)
    again = evoprune.resume("it", runs=tmp_path, tasks=tasks)
    assert len(list(again)) == 2
    with pytest.raises(ConfigError, match="cannot be sent to other processes"):
        evoprune.evolve({}, runs=tmp_path, tasks=tasks, overrides=["run.executor=local"])


def test_a_task_that_was_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    run = evoprune.evolve(two(), name="it", runs=tmp_path)
    next(iter(run))
    run.close()
    pinned = run.folder.tasks / "a" / "task.toml"
    pinned.write_text(pinned.read_text().replace("0", "7"))
    with pytest.raises(RunError, match="is not what it was when the run began"):
        list(evoprune.resume("it", runs=tmp_path))
