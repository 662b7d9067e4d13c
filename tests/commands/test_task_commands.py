"""`evoprune tasks`, `train`, `prune` and `compare`, as a user runs them."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import evoprune
from evoprune import config
from evoprune.cli import FAILED, USAGE, main
from evoprune.networks import digits_net
from evoprune.tasks.settings import settings, task_tables

QUICK = ["--set", "base.epochs=1", "--set", "recipe.epochs=1"]

MODULE = """
from torch import nn

def small(outputs=10):
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(24, outputs),
    )
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


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What a command prints for programs: one JSON document, whatever it says besides."""
    return json.loads(run(capsys, *arguments, "--json"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = USAGE) -> str:
    """What a command that fails says; never a traceback."""
    assert main(list(arguments)) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


def test_tasks_lists_every_task_with_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "tasks")
    for name in task_tables():
        assert name in out
    lenet = next(line for line in out.splitlines() if line.startswith("lenet5-mnist"))
    for part in ("LeNet5", "mnist", "keep 5-12-160-40", "300 epochs × 200", "2.29M", "431k", "7.6% / 2.0%"):
        assert part in lenet


def test_a_task_is_shown_as_toml_that_makes_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "tasks", "vgg16-cifar10")
    assert settings(config.parse(out)) == settings("vgg16-cifar10")
    (told,) = run_json(capsys, "tasks", "vgg16-cifar10")
    assert told["cut"]["kept"]["features.0"] == 40
    assert told["after"]["macs"] / told["before"]["macs"] == pytest.approx(0.369, abs=5e-4)


def test_train_keeps_the_base_for_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "train", "digits", "--set", "base.epochs=2")
    assert "digits_net, 38,330 parameters" in out
    assert "validation:" in out and "test:" in out and "of 359 images" in out
    assert run(capsys, "train", "digits", "--set", "base.epochs=2") == out
    told = run_json(capsys, "train", "digits", "--set", "base.epochs=2")
    assert told["parameters"] == 38_330 and told["test"]["images"] == 359
    assert f"test: {told['test']['top1']:.2%}" in out and told["folder"] in out
    scores = run_json(capsys, "score", "digits", "--set", "base.epochs=2", "--functions", "l1")
    assert len(scores["scores"]["l1"]["0"]) == 16
    (base,) = Path("runs/tasks/digits").glob("base-*")
    assert [path.name for path in base.iterdir()] == ["base.safetensors"]
    assert str(base) in out


def test_train_takes_a_recipe_by_name_or_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text('like = "digits-base"\nepochs = 1\nbatch_size = 50\n')
    assert "trained: 1 epochs × 50" in run(capsys, "train", "digits", "--recipe", "mine.toml")


def test_prune_prints_the_papers_row_and_saves(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = run(capsys, "prune", "digits", "--function", "xi_star", "--flops", "0.56", "--retrain",
              "--output", "pruned", *QUICK)  # fmt: skip
    header, _, row = out.splitlines()[out.splitlines().index("") + 1 :][:3]
    for name in ("Network", "Method", "Test Acc (%)", "Acc ↓ (%)", "FLOPs", "Pruned (%)", "Parameters"):
        assert name in header
    assert "Top-5" not in header
    assert "digits_net" in row and "xi_star" in row and "→" in row
    assert abs(float(row.split()[-3]) - 56) <= 0.5
    told = run_json(capsys, "prune", "digits", "--flops", "0.56", "--retrain", *QUICK)
    assert f"→ {told['accuracy'] * 100:.2f}" in row and len(told["kept"]["0"]) < 16
    network = evoprune.load_pruned(digits_net, "pruned")
    assert network(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_prune_takes_a_text_and_judges_without_retraining(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "prune", "digits", "--function", "count_s(F)", "--ratio", "0.5", *QUICK)
    assert "8 of 16" in out and "after retraining" not in out
    assert "cut by index, as the function scores all channels alike: 0, 3, 8" in out


def test_compare_writes_its_table_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["compare", "digits", "--functions", "l1", "tp_l2", "--seeds", "2", *QUICK]
    out = run(capsys, *line)
    for name in ("l1", "tp_l2", "mean_activation", "random", "Δ to l1", "p (Holm)"):
        assert name in out
    with Path("runs/tasks/digits/compare/summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and {row["seeds"] for row in rows} == {"2"}
    with Path("runs/tasks/digits/compare/items.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8
    results = sorted(Path("runs").rglob("test.json"))
    stamps = [path.stat().st_mtime_ns for path in results]
    assert run(capsys, *line) == out
    told = run_json(capsys, *line)
    assert {row["function"] for row in told["rows"]} == {row["function"] for row in rows}
    assert told["reference"] == "l1" and told["seeds"] == [0, 1]
    assert [path.stat().st_mtime_ns for path in results] == stamps


def test_a_network_of_ones_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my_networks.py").write_text(MODULE)
    own = ["--model", "my_networks:small", "--data", "digits"]
    assert "small, 322 parameters" in run(capsys, "train", *own, *QUICK)
    (base,) = Path("runs/tasks/small-digits").glob("base-*/base.safetensors")
    given = [*own, "--weights", str(base)]
    out = run(capsys, "train", *given)
    assert f"nothing to train: the weights are those of {base}; they have seen" in out
    assert "test:" in out and "validation:" not in out and "kept in" not in out
    assert "validation" not in json.loads(run(capsys, "train", *given, "--json"))
    out = run(capsys, "prune", *given, "--function", "l1", "--ratio", "0.5", "--retrain", *QUICK)
    assert "3 of 6" in out and "small" in out
    assert "random" in run(capsys, "compare", *given, "--functions", "l1", "--seeds", "1", *QUICK)
    assert "judge on test" in refused(capsys, "prune", *given, "--on", "validation", code=FAILED)
    monkeypatch.delitem(sys.modules, "my_networks")


def test_a_task_file_finds_its_network_beside_the_user(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("beside_me.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(Path.cwd()))])
    text = config.dump({**config.to_table(settings("digits")), "network": "beside_me:small"})
    Path("mine.toml").write_text(text)
    (told,) = run_json(capsys, "tasks", "mine.toml")
    assert told["before"]["parameters"] == 322
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(Path.cwd())])
    monkeypatch.delitem(sys.modules, "beside_me")
    assert "small, 322 parameters" in run(capsys, "train", "mine.toml", *QUICK)
    monkeypatch.delitem(sys.modules, "beside_me")


def test_weights_may_lie_at_any_path(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path('it\'s "here"') / "w.pt"
    path.parent.mkdir()
    torch.save(digits_net().state_dict(), path)
    assert f"the weights are those of {path};" in run(capsys, "train", "digits", "--weights", str(path))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train digit", "Did you mean 'digits'"),
        ("train", "give a TASK, or --model"),
        ("train digits --model x:y", "give a TASK, or --model"),
        ("train --model x:y", "--model needs --data"),
        ("train --model nowhere:net --data digits", "there is no module 'nowhere'"),
        ("train digits --data mnist", "go with --model"),
        ("train digits --set base.epoch=1", "Did you mean 'epochs'"),
        ("train digits --set base.epochs", "recipe.epochs=5"),
        ("train digits --recipe nothing", "no recipe"),
        ("train digits --device gpu", "cpu, cuda"),
        ("train digits --device cuda:7", "this machine has"),
        ("train digits --threads 0", "--threads must be 1"),
        ("train digits --weights none.pt", "no file of weights none.pt"),
        ("prune digits --function xi_str", "did you mean xi_star"),
        ("prune digits --function sum_g(F", "inside sum_g"),
        ("prune digits --function tp_lamb", "Did you mean 'tp_lamp'"),
        ("prune digits --flops 0.5 --ratio 0.5", "not ratio and flops"),
        ("prune digits --flops 1.5", "flops is the share"),
        ("prune digits --ignore nine", "unknown site 'nine'"),
        ("prune digits --seed -1", "--seed must be 0 or more, got -1"),
        ("train digits --set base_seed=-1", "base_seed must be 0 or more, got -1"),
        ("train digits --set data.split_seed=-1", "split_seed must be 0 or more, got -1"),
        ("prune digits --normalise none", "go with --model"),
        ("compare digits --functions xi_str", "did you mean xi_star"),
        ("compare digits --seeds 0", "--seeds must be 1"),
        ("tasks digit", "Did you mean 'digits'"),
        ("prune --model a --data digits", "package.module:factory"),
    ],
)
def test_a_mistake_is_answered_with_what_would_do(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = FAILED if "none.pt" in line else USAGE
    assert says in refused(capsys, *line.split(), code=code)
    assert not Path("runs").exists(), "nothing was trained for it"


def test_a_training_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    diverging = ["--set", "base.rate=1e30", "--set", "base.schedule=constant"]
    err = refused(capsys, "train", "digits", *diverging, code=FAILED)
    assert "the loss is" in err and "learning rate of 1e+30" in err


def test_interrupted_is_told_and_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evoprune.tasks.progress import TrainingProgress

    with monkeypatch.context() as patch:

        def interrupt(self: object, epoch: int, step: int, means: object) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

        patch.setattr(TrainingProgress, "step", interrupt)
        assert main(["train", "digits", "--set", "base.epochs=3"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert main(["train", "digits", "--set", "base.epochs=3"]) == 0
    assert "goes on after epoch 1 of 3" in capsys.readouterr().err
