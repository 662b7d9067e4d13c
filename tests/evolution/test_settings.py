"""The configuration of an evolution: what is wrong is refused with what would be right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evoprune import config
from evoprune.errors import ConfigError
from evoprune.evolution.settings import Fitness, TaskChoice, build, presets, rebuilt, table

ONE = {"tasks": [{"name": "digits"}]}
TWO = {"tasks": [{"name": "digits"}, {"name": "shapes"}]}


@pytest.mark.parametrize("name", list(presets()))
def test_settings_survive_their_file(name: str, tmp_path: Path) -> None:
    settings = build(table(preset=name))
    path = tmp_path / "config.toml"
    path.write_text(config.dump(settings))
    assert rebuilt(path, []) == settings


@pytest.mark.parametrize(
    ("source", "overrides", "says"),
    [
        ({}, [], "'tasks' is missing"),
        ({"tasks": []}, [], "at least one is needed"),
        (ONE, ["populaton.size=3"], "Did you mean 'population'"),
        (ONE, ["population.sise=3"], "Did you mean 'size'"),
        (ONE, ["population.size=30"], "10 \\+ 24 \\+ 6 = 40, which must be the size, 30"),
        (ONE, ["population.soap=41"], "too few for 41 of SOAP"),
        (ONE, ["population.tournament=0"], "tournament must be at least 1"),
        (ONE, ["population.immigrants_from=nowhere"], "'both', 'soap', 'random'"),
        (ONE, ['population.seeds=["var_g(F"]'], "var_g"),
        (ONE, ["fitness.combine=harmonic"], "'geometric', 'arithmetic'"),
        (ONE, ["fitness.alpha=0.5"], "alpha is for two tasks, there are 1"),
        (TWO, ["fitness.alpha=1.5"], "alpha is from 0 to 1"),
        (TWO, ["fitness.weights=[1.0]"], "2 tasks need 2 weights, got 1"),
        (TWO, ["fitness.weights=[0.5, 0.6]"], "sum to 1"),
        (TWO, ["fitness.weights=[0.5, 0.5]", "fitness.alpha=0.5"], "not both"),
        ({"tasks": [{"name": "a"}, {"name": "a"}]}, [], "'a' is there twice"),
        ({"tasks": [{"name": "../a"}]}, [], "letters, digits"),
        (ONE, ["run.time_limit=-1"], "time_limit must be above 0"),
        (ONE, ["run.threads=-1"], "threads must be 0 or more"),
        (ONE, ["variation.mutation=2"], "variation: mutation is a probability"),
        (ONE, ["variation.limits.max_size=1"], "variation.limits: a function has at least 2 nodes"),
        (ONE, ["budget.evaluations=0"], "evaluations must be above 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(source: dict, overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(source, overrides)


def test_a_file_says_what_differs_from_its_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "paper"\npopulation.generations = 3\nseed = 7\n')
    mine, paper = build(table(path)), build(table(preset="paper"))
    assert (mine.population.generations, mine.seed, mine.tasks) == (3, 7, paper.tasks)
    assert mine.population.children == 24
    assert build(table({"population": {"generations": 3}, "seed": 7}, preset="paper")) == mine
    with pytest.raises(ConfigError, match=r"there is no preset 'papr'. Did you mean 'paper'"):
        table(preset="papr")
    with pytest.raises(ConfigError, match=r"give a configuration file or a preset: .*demo"):
        table()


def test_weights() -> None:
    assert build(TWO).weights() == {"digits": 0.5, "shapes": 0.5}
    assert build(TWO, ["fitness.alpha=0.3"]).weights() == {"digits": 0.3, "shapes": 0.7}
    assert build(TWO, ["fitness.alpha=1"]).weights() == {"digits": 1.0}
    three = {"tasks": [*TWO["tasks"], {"name": "lenet5-mnist"}]}
    assert build(three).weights() == pytest.approx(dict.fromkeys(("digits", "shapes", "lenet5-mnist"), 1 / 3))
    assert build(three, ["fitness.weights=[0.2, 0.8, 0]"]).weights() == {"digits": 0.2, "shapes": 0.8}
    assert Fitness().of_tasks(1) == (1.0,)


def test_what_results_depend_on_cannot_be_changed_later(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(config.dump(build(TWO)))
    for override in (
        "seed=4",
        "fitness.alpha=0.1",
        "run.threads=2",
        "population.size=3",
        "variation.mutation=1",
    ):
        with pytest.raises(ConfigError, match="cannot be changed in a run that has begun"):
            rebuilt(path, [override])
    later = rebuilt(path, ["run.workers=7", "budget.seconds=5", "population.generations=99"])
    assert (later.run.workers, later.budget.seconds, later.population.generations) == (7, 5.0, 99)


def test_the_configuration_in_the_docs_is_one() -> None:
    page = Path(__file__).parents[2] / "docs" / "evolving-your-own-functions.md"
    texts = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(texts) == 2
    settings = build(table(config.parse(texts[0])))
    assert (settings.fitness.alpha, settings.budget.patience, len(settings.tasks)) == (0.3, 5, 2)
    assert build(table(config.parse(texts[1]))).tasks[0].factory == "my_tasks:Mine"


@pytest.mark.parametrize(
    ("overrides", "threads"),
    [
        ([], 1),
        (["run.threads=0"], 1),
        (["run.threads=0", "run.workers=2"], 4),
        (["run.threads=0", "run.executor=inline"], 8),
        (["run.threads=0", "run.executor=slurm", "slurm.cpus=6"], 6),
        (["run.threads=0", "run.device=cuda"], 2),
        (["run.threads=3", "run.workers=2"], 3),
    ],
)
def test_threads_left_to_the_machine_are_its_cores_divided_between_workers(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], threads: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert build(ONE, overrides).settled().run.threads == threads


def test_there_is_a_worker_for_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3")
    run = build(ONE, ["run.device=cuda"]).run
    assert (run.workers_here(), run.gpus_here()) == (3, ("0", "2", "3"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="this machine shows no GPU"):
        run.workers_here()


def test_a_device_reaches_the_tasks_of_the_package_only() -> None:
    assert TaskChoice("digits").source("cuda")[1] == {"name": "digits", "device": "cuda"}
    assert TaskChoice("digits", options={"device": "cpu"}).source("cuda")[1]["device"] == "cpu"
    assert TaskChoice("own", "a:b", {"x": 1}).source("cuda") == ("a:b", {"x": 1})
