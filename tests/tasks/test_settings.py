"""Settings of tasks: those of the package, files, changes, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoprune import config
from evoprune.errors import ConfigError
from evoprune.tasks.cutting import costs
from evoprune.tasks.recipes import recipe
from evoprune.tasks.settings import Cut, Settings, changed, settings, task_tables
from evoprune.tasks.task import named

ALL = list(task_tables())


def test_the_tasks_of_the_issue_are_there() -> None:
    assert ALL == [
        "lenet5-mnist",
        "vgg16-cifar10",
        "resnet20-cifar10",
        "resnet56-cifar10",
        "lenet5-fashion_mnist",
        "resnet38-cifar100",
        "resnet18-imagenet",
        "digits",
        "shapes",
    ]


@pytest.mark.parametrize("name", ALL)
def test_every_task_survives_its_own_toml(name: str, tmp_path: Path) -> None:
    one = settings(name)
    (tmp_path / "task.toml").write_text(config.dump(one))
    assert settings(tmp_path / "task.toml") == one
    assert settings(config.to_table(one)) == one


PAPER = {  # shares of FLOPs and parameters that go, in percent, and how near we must be
    "lenet5-mnist": (92.4, 98.0, 0.05),
    "vgg16-cifar10": (63.0, 63.7, 0.1),
    "resnet38-cifar100": (54.7, 52.4, 0.3),
    "resnet18-imagenet": (36.4, None, 0.5),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_published_cuts_cost_what_was_published(name: str) -> None:
    task = named(name)
    before, after = costs(task.untrained(), task.example(), task.settings.cut)
    flops, parameters, near = PAPER[name]
    assert 100 * (1 - after[0] / before[0]) == pytest.approx(flops, abs=near)
    if parameters is not None:
        assert 100 * (1 - after[1] / before[1]) == pytest.approx(parameters, abs=near)


def test_a_recipe_is_named_or_starts_from_another() -> None:
    table = changed("digits", {"recipe": {"like": "lenet5-short", "epochs": 3}})
    made = settings(table).recipe
    assert made.epochs == 3
    assert made.rate == recipe("lenet5-short").rate
    assert settings("digits", recipe="lenet5-short").recipe == recipe("lenet5-short")
    assert settings("digits", ["recipe=lenet5-short", "base.epochs=1"]).recipe == recipe("lenet5-short")
    assert settings("digits", ["base.epochs=1"]).base.epochs == 1


def test_changes_are_laid_over_tables_and_replace_the_rest() -> None:
    one = settings(changed("lenet5-mnist", {"data": {"images": 500}, "recipe": {"epochs": 2}}))
    assert (one.data.name, one.data.images) == ("mnist", 500)
    assert (one.recipe.epochs, one.recipe.weight_decay) == (2, 7e-5)
    assert settings(changed("digits", {"recipe": "shapes"})).recipe == recipe("shapes")


def test_a_recipe_file_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('like = "digits"\nepochs = 2\n')
    assert settings("digits", recipe=str(path)).recipe.epochs == 2


@pytest.mark.parametrize(
    ("task", "overrides", "says"),
    [
        ("digit", [], "Did you mean 'digits'"),
        ("nowhere.toml", [], "there is no configuration file nowhere.toml"),
        ("digits", ["recipe=lenet5-shrt"], "Did you mean 'lenet5-short'"),
        ("digits", ["recipe.like=lenet5-shrt"], r"recipe.like: .*'lenet5-short'"),
        ("digits", ["cut.ratio=1.5"], r"cut: ratio is the share that goes, in \[0, 1\), got 1.5"),
        ("digits", ["cut.flops=0.5"], "exactly one of ratio, kept, flops, params; got ratio and flops"),
        ("digits", ["cut.ratio="], "got none"),
        ("digits", ["cut.scope=all"], "'site', 'global'"),
        ("digits", ["network=evoprune.networks"], "package.module:factory"),
        ("digits", ["name=../x"], "a folder's"),
        ("digits", ["data.nam=x"], "data: there is no key 'nam'"),
        ("digits", ["recipe.rate=-1"], "recipe: rate must be above 0"),
        ("lenet5-mnist", ["cut.kept.conv1=0"], "kept.conv1 must be 1 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(task: str, overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        settings(task, overrides)


def test_cuts_are_told_in_a_few_words() -> None:
    assert Cut(kept={"a": 5, "b": 12}).described() == "keep 5-12"
    assert Cut(ratio=0.4).described() == "40% of channels"
    assert Cut(flops=0.562, selection=True).described() == "56.2% of FLOPs, by selection"
    assert isinstance(settings("digits"), Settings)
