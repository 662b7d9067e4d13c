"""The presets: what they set is what the paper says, and each runs from end to end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evoprune import config
from evoprune.evolution.settings import Settings, build, presets, table
from evoprune.evolution.starting import evolve
from evoprune.tasks.task import Task, named

TESTS = Path(__file__).parent.parent
COMBINATIONS = [name for name in presets() if name.startswith("combination-")]
STEPS = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 8, "scoring_images": 16, "recalibrate": 0}


def preset(name: str) -> Settings:
    return build(table(preset=name))


def test_the_presets_are_all_there_and_say_what_they_are() -> None:
    assert {"demo", "laptop", "paper", "random-start", "imagenet", "combination"} <= presets().keys()
    assert {"one-task-lenet5-mnist", "one-task-vgg16-cifar10"} <= presets().keys()
    assert len(COMBINATIONS) == 10
    assert all(about for about in presets().values())
    assert len(set(presets().values())) == len(presets())


def test_the_paper_as_published() -> None:
    paper = preset("paper")
    population, variation = paper.population, paper.variation
    assert (population.size, population.generations, population.soap) == (40, 25, 20)
    assert (population.tournament, population.selected) == (4, 10)
    assert (population.children, population.immigrants, population.immigrants_from) == (24, 6, "both")
    assert (variation.mutation, variation.crossover) == (0.75, 0.75)
    assert (variation.min_height, variation.max_height) == (0, 4)
    assert paper.fitness.combine == "geometric"
    assert paper.weights() == {"lenet5-mnist": 0.5, "vgg16-cifar10": 0.5}
    assert not variation.limits.order_dependent


def test_the_defaults_are_the_papers() -> None:
    paper = preset("paper")
    plain = build({"tasks": [{"name": "lenet5-mnist"}, {"name": "vgg16-cifar10"}]})
    assert (plain.population, plain.variation, plain.fitness) == (
        paper.population,
        paper.variation,
        paper.fitness,
    )


def test_the_ablations_differ_from_the_paper_in_what_they_ablate() -> None:
    paper, random = preset("paper"), preset("random-start")
    assert (random.population.soap, random.population.immigrants_from) == (0, "random")
    assert random.tasks == paper.tasks and random.population.size == 40
    assert preset("imagenet").weights() == {"resnet18-imagenet": 1.0}
    assert preset("one-task-lenet5-mnist").weights() == {"lenet5-mnist": 1.0}
    assert preset("imagenet").population == paper.population


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_combination_runs(name: str) -> None:
    _, scheme, alpha = name.split("-")
    chosen = preset(name)
    population = chosen.population
    assert (population.size, population.soap, population.generations) == (15, 10, 10)
    assert (population.tournament, population.selected) == (3, 5)
    assert (population.children, population.immigrants) == (10, 0)
    assert (chosen.fitness.combine, chosen.fitness.alpha) == (scheme, float(alpha))
    assert [judge.name for judge in chosen.judges] == ["resnet38-cifar100"]
    weights = {"lenet5-mnist": float(alpha), "vgg16-cifar10": 1 - float(alpha)}
    assert chosen.weights() == {task: weight for task, weight in weights.items() if weight}


@pytest.mark.heavy
@pytest.mark.parametrize("name", list(presets()))
def test_every_preset_runs_from_end_to_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_data: Path, made: dict[str, Any]
) -> None:
    """Two steps per epoch, on synthetic data in the real layout; everything else as it is set.

    Most presets are about the same two tasks. What such a task makes once for a run (its trained base
    network, its statistics, and with them what DI keeps of VGG-16, which takes a quarter of a minute) is
    made once for all of them. Retrainings are done anew, but for those of the ten combination runs: these
    differ in how they weigh accuracies, and share the tasks' folders, where what one has retrained is found.
    """
    monkeypatch.setenv("EVOPRUNE_DATA", str(small_data))

    def shared(folder: Path, **options: Any) -> Task:
        if name in COMBINATIONS:
            folder = small_data.with_name("combinations") / options["name"]
        task = named(folder=folder, **options)
        return replace(task, _made=made.setdefault(config.dump(task.spec), {}))

    monkeypatch.setattr("evoprune.tasks.task.named", shared)
    changes = table(preset=name)
    for task in [*changes["tasks"], *changes.get("judges", ())]:
        options = task.setdefault("options", {})
        for recipe in ("recipe", "base"):
            options[recipe] = {**options.get(recipe, {}), **STEPS}
        # Large maps make large scatter matrices: of gigabytes at 224×224.
        if task["name"] == "resnet18-imagenet":
            options["data"] = {"image_size": 32, "workers": 0, "validation": 0.1}
        if task["name"] == "resnet20-cifar10":
            options["data"] |= {"image_size": 16}
    size = 4
    population = {"size": size, "generations": 2, "tournament": 2}
    population |= {"selected": 1, "children": 2, "immigrants": 1}
    if not changes["population"].get("immigrants", 1):
        population |= {"children": 3, "immigrants": 0}
    population["soap"] = min(1, changes["population"].get("soap", 1))
    changes["population"] |= population
    # With this seed no tree copies a wide layer's weights for every channel, which takes half a minute.
    run = evolve(changes, name="it", runs=tmp_path, overrides=["run.executor=inline", "seed=1"])
    generations = list(run)
    assert len(generations) == 2 and all(len(each.members) == size for each in generations)
    assert run.ended == "all generations are judged"
    errors = {one.error for generation in generations for one in generation.members if one.error}
    assert not errors
    assert run.comparison is not None and len(run.comparison.rows) == 11
    assert set(run.comparison.verdicts) == {judge["name"] for judge in changes.get("judges", ())}
    assert all(accuracy is not None for accuracy in run.comparison.verdicts.values())


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """What tasks make once, by their settings."""
    return {}


@pytest.fixture(scope="module")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All data sets of the presets, small, in the layouts of the hub."""
    sys.path.insert(0, str(TESTS / "tasks"))
    import layouts

    return layouts.everything(tmp_path_factory.mktemp("data"))
