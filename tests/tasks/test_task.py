"""Tasks: rebuilt from their spec, the base trained once, cuts by function, evaluations that resume."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch_pruning
from torch import nn
from torch.nn import functional

import evoprune
from evoprune import config
from evoprune.errors import (
    ConfigError,
    DataError,
    ExpressionError,
    SavedFileError,
    SiteError,
    TrainingError,
)
from evoprune.integrations.torch_pruning import importance_scores
from evoprune.networks import digits_net
from evoprune.tasks.batches import Batches
from evoprune.tasks.cutting import kept_by, surgeon_of
from evoprune.tasks.results import Kept, Result
from evoprune.tasks.store import read_weights, write_tensors
from evoprune.tasks.task import Task, named
from evoprune.tasks.training import Epoch, state_key

QUICK = {"recipe": {"epochs": 2}, "base": {"epochs": 2}}


def quick(folder: Path | None = None, **changes: object) -> Task:
    return named("digits", folder=folder, **{**QUICK, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the base network of `quick()`."""
    path = tmp_path_factory.mktemp("task")
    quick(path).base()
    return path


@pytest.mark.parametrize("name", ["digits", "shapes"])
def test_train_cut_and_retrain_in_under_a_minute(name: str, tmp_path: Path) -> None:
    started = time.monotonic()
    task = named(name, folder=tmp_path, base={"steps_per_epoch": 25}, recipe={"steps_per_epoch": 15})
    base, kept = task.base(), task.kept("xi_star")
    result = task.evaluate(kept, 0)
    assert time.monotonic() - started < 60
    assert base.accuracy is not None and base.accuracy > 0.3
    assert 0.2 < result.accuracy <= 1
    assert result.macs < 0.3 * result.macs_base
    assert any(isinstance(module, nn.BatchNorm2d) for module in base.network.modules())


# --- the base network -------------------------------------------------------------------------------------


class Count:
    """Counts the epochs that are trained; can stop the training in the middle of one."""

    def __init__(self, stop_at: tuple[int, int] | None = None) -> None:
        self.epochs = 0
        self.stop_at = stop_at

    def start(self, done: int, epochs: int, steps: int) -> None:
        pass

    def step(self, epoch: int, step: int, means: Callable[[], tuple[float, float]]) -> None:
        if (epoch, step) == self.stop_at:
            raise KeyboardInterrupt

    def epoch(self, number: int, result: Epoch) -> None:
        self.epochs += 1


def test_the_base_is_trained_once_and_shared_through_the_folder(tmp_path: Path) -> None:
    first, again = Count(), Count()
    one = quick(tmp_path).base(first)
    two = quick(tmp_path).base(again)
    assert (first.epochs, again.epochs) == (2, 0)
    assert state_key(one.network) == state_key(two.network) == state_key(quick().base().network)
    assert one.accuracy == two.accuracy
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["base.safetensors"]


def test_another_base_recipe_seed_or_data_has_another_base(folder: Path) -> None:
    tasks = [
        quick(folder),
        quick(folder, base={"epochs": 3}),
        quick(folder, base_seed=1),
        quick(folder, data={"images": 500}),
    ]
    assert len({task.base_folder for task in tasks}) == 4
    assert quick(folder, recipe={"epochs": 9}).base_folder == tasks[0].base_folder


def test_a_training_that_diverges_in_its_last_step_gives_nothing(tmp_path: Path) -> None:
    wild = {"optimizer": "sgd", "rate": 1e38, "epochs": 1, "steps_per_epoch": 1, "schedule": "constant"}
    for _ in range(2):
        with pytest.raises(TrainingError, match=r"after 1 epochs with a learning rate of up to 1e\+38"):
            quick(tmp_path, base=wild).base()
    task = quick(tmp_path, recipe=wild)
    with pytest.raises(TrainingError, match="outputs that are not finite"):
        task.evaluate(task.kept("l1"), 0)


def test_worker_processes_are_no_part_of_a_base_network(tmp_path: Path) -> None:
    assert quick(tmp_path, data={"workers": 5}).base_folder == quick(tmp_path).base_folder
    assert quick(tmp_path, data={"split_seed": 5}).base_folder != quick(tmp_path).base_folder


def test_a_base_training_that_was_stopped_goes_on(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path).base(Count(stop_at=(1, 4)))
    rest = Count()
    assert state_key(quick(tmp_path).base(rest).network) == state_key(quick(folder).base().network)
    assert rest.epochs == 1


def test_validation_images_are_in_neither_training_nor_scoring() -> None:
    task = quick(recipe={"scoring_images": 200})
    validation = {image.numpy().tobytes() for image in task.data.validation.images}
    for split in (task.data.train, task.scoring):
        assert not validation & {image.numpy().tobytes() for image in split.images}
    assert len(task.scoring) == 200
    counts = torch.bincount(task.scoring.labels)
    assert counts.max() - counts.min() <= 3, "stratified"


def test_a_base_of_other_images_is_refused(folder: Path, tmp_path: Path) -> None:
    base = quick(folder).base_folder
    assert base is not None
    weights = read_weights(base / "base.safetensors")
    other = tmp_path / base.name
    header = {"format": "evoprune base 1", "data": "other"}
    write_tensors(other / "base.safetensors", weights, header)
    with pytest.raises(SavedFileError, match="other images of 'digits'"):
        quick(tmp_path).base()


# --- kept channels ----------------------------------------------------------------------------------------


def test_kept_channels_are_those_with_the_highest_scores(folder: Path) -> None:
    task = quick(folder)
    kept = task.kept("xi_star")
    base = task.base().network
    scores = evoprune.score(base, "xi_star", Batches(task.scoring), sites=task.surgeon.sites)["xi_star"]
    assert list(kept.channels) == [site.name for site in task.surgeon.sites]
    for site, channels in kept.channels.items():
        best = scores[site].argsort(descending=True, stable=True)[: len(channels)]
        assert channels == tuple(sorted(best.tolist()))
    assert kept.constant == ()
    assert quick(folder).kept("xi_star") == kept
    assert task.kept(evoprune.parse("var_g(F+)")) == task.kept("var_g(F+)") == task.kept("xi_2")


def test_all_functions_get_the_same_shapes(folder: Path) -> None:
    task = quick(folder)
    names = ["xi_star", "l1", "fpgm", "mean_activation", "random", "tp_l1", "tp_taylor", "var_g(F+)"]
    counts = [task.kept(name).counts for name in names]
    assert all(count == counts[0] for count in counts)
    assert len({task.kept(name).key for name in names}) > 4


def test_gradients_are_of_all_scoring_images(folder: Path) -> None:
    task = quick(folder)
    network = copy.deepcopy(task.base().network)
    images, labels = next(task.scoring.ordered(len(task.scoring)))
    assert len(images) > 500, "more than one batch"
    functional.cross_entropy(network(images), labels).backward()
    taylor = torch_pruning.importance.TaylorImportance()
    expected = importance_scores(taylor, network, task.example(), task.surgeon.sites)
    found = task.kept("tp_taylor").scores
    for site, scores in expected.items():
        torch.testing.assert_close(found[site], torch.from_numpy(scores), rtol=1e-3, atol=1e-6)


def test_one_pass_gathers_what_later_functions_need(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = quick(folder)
    task.kept("xi_star")
    gathered = task._made["statistics"]
    forwards = []
    task.base().network.register_forward_pre_hook(lambda *_: forwards.append(1))
    task.kept("xi_2")
    task.kept("l1")
    assert not forwards, "nothing was missing"
    assert task._made["statistics"] == gathered


def test_statistics_are_shared_through_the_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = quick(tmp_path)
    kept = first.kept("xi_star")
    second = quick(tmp_path)
    forwards = []
    second.base().network.register_forward_pre_hook(lambda *_: forwards.append(1))
    _ = second.surgeon
    forwards.clear()
    assert second.kept("xi_star") == kept
    assert not forwards, "read back, not gathered again"
    (place,) = tmp_path.glob("statistics-*")
    for file in place.iterdir():
        file.write_bytes(file.read_bytes()[:40])
    assert quick(tmp_path).kept("xi_star") == kept, "damaged ones are gathered again"
    assert quick(tmp_path, recipe={"scoring_images": 300}).kept("xi_star").counts == kept.counts
    assert len(list(tmp_path.glob("statistics-*"))) == 2, "of other images, others"


def test_a_function_that_is_constant_somewhere_is_told_and_cuts_by_index(folder: Path) -> None:
    task = quick(folder)
    kept = task.kept("bn_scale")  # the fully connected site has no batch-norm: (1, 0, 0, 1) everywhere
    assert kept.constant == ("8",)
    assert kept.channels["8"] == tuple(range(16))
    everywhere = task.kept("count_s(F)")
    assert everywhere.constant == ("0", "3", "8")
    assert everywhere.channels["0"] == (0, 1, 2, 3)


def test_rounding_does_not_decide_where_a_function_does_not(folder: Path) -> None:
    task = quick(folder)
    noise = torch.Generator().manual_seed(0)
    scores = {
        site.name: 1 + 1e-12 * torch.rand(site.channels, generator=noise, dtype=torch.float64)
        for site in task.surgeon.sites
    }
    kept = kept_by(task.surgeon, task.settings.cut, scores)
    assert kept.constant == ("0", "3", "8")
    assert kept.channels["3"] == tuple(range(8))


def test_random_depends_on_its_seed_and_others_do_not(folder: Path) -> None:
    task = quick(folder)
    assert task.kept("random", seed=1) != task.kept("random", seed=2)
    assert task.kept("random", seed=1) == quick(folder).kept("random", seed=1)
    assert task.kept("l1", seed=1) == task.kept("l1", seed=2)


@pytest.mark.parametrize(
    ("function", "says"),
    [("xi_str", "did you mean xi_star"), ("tp_lamb", "Did you mean 'tp_lamp'"), ("mean_s(F)", "scalar")],
)
def test_what_is_no_function_is_refused_before_training(function: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ExpressionError, match=says):
        quick(tmp_path).kept(function)
    assert not list(tmp_path.iterdir())


def test_the_lenet_cut_keeps_features_of_surviving_maps_only() -> None:
    """The paper's cut on a network of random weights: 160 of the 192 features of 12 maps."""
    task = named("lenet5-mnist")
    network = task.untrained()
    surgeon = surgeon_of(network, task.example(), task.settings.cut)
    random = torch.Generator().manual_seed(0)
    scores = {site.name: torch.rand(site.channels, generator=random) for site in surgeon.sites}
    kept = kept_by(surgeon, task.settings.cut, scores)
    assert kept.counts == {"conv1": 5, "conv2": 12, "fc1.in": 160, "fc1": 40}
    maps = {feature // 16 for feature in kept.channels["fc1.in"]}
    assert maps <= set(kept.channels["conv2"])
    pruned = surgeon.cut(kept.channels)
    assert sum(parameter.numel() for parameter in pruned.parameters()) == 8492


@pytest.mark.parametrize(
    ("cut", "says"),
    [
        ({"kept": {"0": 99}}, "site '0' has 16 channels, 99 cannot stay"),
        ({"kept": {"5": 1}}, "unknown site '5'"),
        ({"ratio": 0.5, "ignore": ["nine"]}, "unknown site 'nine'"),
        ({"ratio": 0.5, "per_site": {"nine": 0.2}}, "unknown site 'nine'"),
    ],
)
def test_a_cut_that_does_not_fit_the_network_is_refused(cut: dict[str, object], says: str) -> None:
    task = Task.from_spec({**quick().spec, "cut": cut, "base": {**quick().spec["base"], "epochs": 0}})
    with pytest.raises(SiteError, match=says):
        task.kept("l1")


def test_global_scope_lays_one_threshold_over_all_sites(folder: Path) -> None:
    spec = {**quick().spec, "cut": {"ratio": 0.5, "scope": "global"}}
    kept = Task.from_spec(spec, folder=folder).kept("l1")
    assert sum(kept.counts.values()) == 56
    assert len({count / whole for count, whole in zip(kept.counts.values(), (16, 32, 64), strict=True)}) > 1


# --- evaluations ------------------------------------------------------------------------------------------


def test_an_evaluation_repeats_in_any_process_from_its_spec(folder: Path, tmp_path: Path) -> None:
    task = quick(folder)
    kept = task.kept("l1")
    result = task.evaluate(kept, 3)
    (tmp_path / "task.toml").write_text(config.dump(task.spec))
    code = f"""
import json, torch
torch.set_num_threads(1)
from evoprune.tasks.task import Task
task = Task.from_spec({str(tmp_path / "task.toml")!r})
print(json.dumps(task.evaluate(task.kept("l1"), 3).table()))
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert Result.of(json.loads(done.stdout)) == result
    assert task.evaluate(kept, 4) != result


def test_a_finished_evaluation_is_read_back_whoever_asks(folder: Path) -> None:
    task = quick(folder)
    kept = task.kept("l1")
    first, again = Count(), Count()
    result = task.evaluate(kept, 7, watcher=first)

    # What an evolution hands in has channels, and perhaps lists instead of tuples.
    plain = SimpleNamespace(channels={site: list(channels) for site, channels in kept.channels.items()})
    assert quick(folder).evaluate(plain, 7, watcher=again) == result
    assert (first.epochs, again.epochs) == (2, 0)
    assert not list(folder.glob("evaluations/*/checkpoint*")), "checkpoints go when the result is there"


def test_an_evaluation_that_was_stopped_goes_on_to_the_same_result(folder: Path, tmp_path: Path) -> None:
    kept = quick(folder).kept("l2")
    whole = quick(folder).evaluate(kept, 0)
    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path).evaluate(kept, 0, watcher=Count(stop_at=(1, 5)))
    rest = Count()
    assert quick(tmp_path).evaluate(kept, 0, watcher=rest) == whole
    assert rest.epochs == 1


@pytest.mark.parametrize(
    "changes",
    [{"recipe": {"epochs": 1}}, {"base_seed": 1}, {"data": {"validation": 0.2}}, {"recipe": {"rate": 0.01}}],
)
def test_what_changes_a_result_is_evaluated_anew(changes: dict[str, object], folder: Path) -> None:
    kept = quick(folder).kept("l1")
    other = quick(folder, **{**changes, "base": {"epochs": 1}})
    places = {quick(folder)._place(kept, 0), quick(folder)._place(kept, 1), other._place(kept, 0)}
    assert len(places) == 3


def test_the_base_is_not_touched_by_evaluations(folder: Path) -> None:
    task = quick(folder)
    before = state_key(task.base().network)
    task.evaluate(task.kept("random", seed=5), 0)
    assert state_key(task.base().network) == before


def test_results_tell_accuracy_before_after_the_cut_and_after_retraining(folder: Path) -> None:
    task = quick(folder)
    kept = task.kept("l1")
    result = task.evaluate(kept, 0)
    cut = task.surgeon.cut(kept.channels)
    assert result.accuracy_base == task.base().accuracy
    assert result.accuracy_cut == task.judge(cut, "validation").top1
    assert result.macs == evoprune.cost(cut, task.example()).macs
    assert result.parameters == sum(parameter.numel() for parameter in cut.parameters())
    bare, network = task.retrained(kept, 0, retrain=False)
    assert bare.accuracy == bare.accuracy_cut == result.accuracy_cut
    assert state_key(network) == state_key(cut)


def test_test_images_are_read_for_final_results_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = quick(folder)
    task.evaluate(task.kept("xi_star"), 0)
    assert "test" not in vars(task.data)
    final = task.evaluate(task.kept("xi_star"), 0, on="test")
    assert final.images == len(task.data.test)
    assert final.accuracy_base == task.judge(task.base().network, "test").top1 != task.base().accuracy


def test_recalibration_is_part_of_the_recipe(folder: Path) -> None:
    plain, renewed = quick(folder), quick(folder, recipe={"epochs": 0, "recalibrate": 1000})
    kept = plain.kept("l1")
    assert renewed.evaluate(kept, 0).accuracy_cut > plain.evaluate(kept, 0).accuracy_cut


# --- weights from elsewhere -------------------------------------------------------------------------------


def weights_at(path: Path, folder: Path) -> Path:
    torch.save(
        {"state_dict": {f"module.{n}": v for n, v in quick(folder).base().network.state_dict().items()}}, path
    )
    return path


def test_weights_from_elsewhere_are_judged_on_test_and_never_on_validation(
    folder: Path, tmp_path: Path
) -> None:
    path = weights_at(tmp_path / "w.th", folder)
    task = quick(tmp_path, weights=str(path))
    assert state_key(task.base().network) == state_key(quick(folder).base().network)
    assert task.base().accuracy is None
    kept = task.kept("l1")
    with pytest.raises(TrainingError, match="have seen the validation"):
        task.evaluate(kept, 0)
    assert 0 < task.evaluate(kept, 0, on="test").accuracy <= 1
    held_out = quick(tmp_path, weights=str(path), weights_held_out=True)
    assert held_out.evaluate(kept, 0).on == "validation"


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    torch.save(digits_net(in_channels=3).state_dict(), tmp_path / "other.pt")
    with pytest.raises(
        SavedFileError, match=r"in other shapes 0\.weight \(16, 3, 3, 3\) for \(16, 1, 3, 3\)"
    ):
        quick(weights=str(tmp_path / "other.pt")).base()
    torch.save({"a": torch.zeros(1)}, tmp_path / "few.pt")
    with pytest.raises(SavedFileError, match=r"lacks 0\.weight.*has besides a"):
        quick(weights=str(tmp_path / "few.pt")).base()
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(SavedFileError, match="cannot be read as weights"):
        quick(weights=str(tmp_path / "text.pt")).base()
    torch.save({"x": {"y": print}}, tmp_path / "code.pt")
    with pytest.raises(SavedFileError, match="cannot be read as weights"):
        quick(weights=str(tmp_path / "code.pt")).base()


# --- networks of one's own --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "options", "says"),
    [
        ("no_such_module:net", {}, "no module 'no_such_module'"),
        ("evoprune.networks:digits_nt", {}, "Did you mean 'digits_net'"),
        ("evoprune.networks:digits_net", {"width": 3}, r"options \{'width': 3\}.*it takes \(num_classes"),
        ("builtins:dict", {}, "gave dict, expected a torch.nn.Module"),
        ("builtins:open", {"file": "/no/file"}, r"failed when it was built: FileNotFoundError"),
    ],
)
def test_a_factory_that_cannot_be_used_is_named(network: str, options: dict[str, int], says: str) -> None:
    task = Task.from_spec({**quick().spec, "network": network, "options": options})
    with pytest.raises(ConfigError, match=says):
        task.base()


def test_a_network_with_too_few_outputs_is_refused() -> None:
    with pytest.raises(DataError, match=r"64 × 5, expected \[image, class\] with 10 classes"):
        quick(options={"num_classes": 5}).base()


def test_keys_are_of_the_channels_alone() -> None:
    one, other = Kept({"a": (0, 2)}, ("a",)), Kept({"a": (0, 2)})
    assert one.key == other.key != Kept({"a": (0, 3)}).key
