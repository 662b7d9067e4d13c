"""Saved networks come back exactly, in a fresh process too, and what was tampered with is refused."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo import ZOO

import evoprune
from evoprune import networks
from evoprune.errors import SavedFileError
from evoprune.pruning.prune import Pruned
from evoprune.pruning.saving import RECORD, WEIGHTS, _checksum, read_cost, read_record


def pruned_net(name: str, **options: object) -> tuple[Pruned, torch.Tensor]:
    factory, shape = ZOO[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    return evoprune.prune(factory().eval(), "l1", example_inputs=x, ratio=0.5, **options), x


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    pruned, _ = pruned_net("option a", selection=True)
    return pruned.save(tmp_path / "net")


@pytest.mark.parametrize("selection", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_load_is_the_inverse_of_save(name: str, selection: bool, tmp_path: Path) -> None:
    pruned, x = pruned_net(name, selection=selection)
    loaded = evoprune.load_pruned(ZOO[name][0], pruned.save(tmp_path))
    assert torch.equal(loaded(x), pruned.network(x))
    assert str(loaded) == str(pruned.network)
    assert [(n, p.requires_grad) for n, p in loaded.named_parameters()] == [
        (n, p.requires_grad) for n, p in pruned.network.named_parameters()
    ]


def test_a_fresh_process_gives_equal_outputs(tmp_path: Path) -> None:
    net, x = networks.resnet20(num_classes=7).eval(), torch.randn(2, 3, 32, 32)
    pruned = evoprune.prune(net, "l2", example_inputs=x, flops=0.5, selection=True)
    pruned.save(tmp_path)
    torch.save({"x": x, "y": pruned.network(x)}, tmp_path / "outputs.pt")
    code = """
import sys, torch, evoprune
from evoprune.networks import resnet20
torch.set_num_threads(1)
net = evoprune.load_pruned(lambda: resnet20(num_classes=7), sys.argv[1])
saved = torch.load(sys.argv[1] + "/outputs.pt", weights_only=True)
assert torch.equal(net(saved["x"]), saved["y"])
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)


def test_trained_weights_dtype_and_mode_come_back(tmp_path: Path) -> None:
    pruned, x = pruned_net("vgg")
    pruned.network.double().train()
    with torch.no_grad():
        for parameter in pruned.network.parameters():
            parameter.add_(torch.randn_like(parameter))
    next(pruned.network.parameters()).requires_grad_(False)
    pruned.save(tmp_path)
    loaded = evoprune.load_pruned(ZOO["vgg"][0], tmp_path)
    assert loaded.training and not next(loaded.parameters()).requires_grad
    x = x.double()
    assert torch.equal(loaded.eval()(x), pruned.network.eval()(x))


def test_a_model_may_stand_in_for_its_factory_and_is_left_alone(tmp_path: Path) -> None:
    pruned, x = pruned_net("option a")
    model = ZOO["option a"][0]()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    loaded = evoprune.load_pruned(model, pruned.save(tmp_path))
    assert torch.equal(loaded(x), pruned.network(x))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_flattened_features_come_back(tmp_path: Path) -> None:
    x = torch.randn(2, 1, 28, 28)
    pruned = evoprune.prune(
        networks.LeNet5().eval(),
        "l1",
        example_inputs=x,
        per_site={"conv1": 0.75, "conv2": 0.76, "fc1.in": 1 / 6, "fc1": 0.92},
        flatten_features=["fc1"],
    )
    assert tuple(pruned.network.fc1.weight.shape) == (40, 160)
    loaded = evoprune.load_pruned(networks.LeNet5, pruned.save(tmp_path))
    assert torch.equal(loaded(x), pruned.network(x))


def test_the_record_says_how_it_came_about(saved: Path) -> None:
    record = read_record(saved)
    assert record["made"]["function"] == "sum_g(abs(W_I))" and record["made"]["ratio"] == 0.5
    assert record["made"]["seed"] == 0 and record["network"] == "evoprune.networks.resnet:ResNet"
    site = record["sites"][0]
    assert site["name"] == "layer1.0.conv1.in" and len(site["kept"]) == 8 and len(site["scores"]) == 16
    pruned, _ = pruned_net("option a", selection=True)
    assert read_cost(record["cost"]["after"]) == pruned.after
    assert sorted(path.name for path in saved.iterdir()) == [RECORD, WEIGHTS]


def change(folder: Path, edit: Callable[[dict], None]) -> None:
    record = json.loads((folder / RECORD).read_text())
    edit(record)
    (folder / RECORD).write_text(json.dumps(record))


@pytest.mark.parametrize("file", [RECORD, WEIGHTS])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_truncated_files_are_refused(saved: Path, file: str, share: float) -> None:
    content = (saved / file).read_bytes()
    (saved / file).write_bytes(content[: int(share * len(content))])
    with pytest.raises(SavedFileError, match=file):
        evoprune.load_pruned(ZOO["option a"][0], saved)


def test_every_altered_byte_of_the_weights_is_noticed(saved: Path) -> None:
    content = bytearray((saved / WEIGHTS).read_bytes())
    for at in range(0, len(content), len(content) // 7):
        altered = bytearray(content)
        altered[at] ^= 1
        (saved / WEIGHTS).write_bytes(bytes(altered))
        with pytest.raises(SavedFileError, match="altered or damaged"):
            evoprune.load_pruned(ZOO["option a"][0], saved)


def test_an_altered_record_is_refused(saved: Path) -> None:
    change(saved, lambda record: record["sites"][0]["kept"].__setitem__(0, 15))
    with pytest.raises(SavedFileError, match=r"pruned\.json was altered or damaged"):
        evoprune.load_pruned(ZOO["option a"][0], saved)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sites": 3},
        {"made": None},
        {"sites": [{"name": "conv1", "kept": ["a"]}]},
        {"example_inputs": {"tensor": "x"}},
        {"frozen": 1},
    ],
)
def test_a_record_that_someone_else_wrote_is_refused(saved: Path, wrong: dict[str, Any]) -> None:
    def write(record: dict[str, Any]) -> None:
        record.update(wrong)
        record["checksum"] = _checksum(record)

    change(saved, write)
    with pytest.raises(SavedFileError, match=r"not a record of ours|cannot be rebuilt"):
        evoprune.load_pruned(ZOO["option a"][0], saved)


def test_foreign_files_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(SavedFileError, match="holds no pruned network"):
        evoprune.load_pruned(networks.resnet20, tmp_path / "nowhere")
    (saved / RECORD).write_text('{"format": "something else"}')
    with pytest.raises(SavedFileError, match=r"not of the format .*, but 'something else'"):
        evoprune.load_pruned(networks.resnet20, saved)
    (saved / RECORD).write_text("[1]")
    with pytest.raises(SavedFileError, match="but 'list'"):
        evoprune.load_pruned(networks.resnet20, saved)
    (saved / RECORD).write_bytes(b"\x80\x02pickle")
    with pytest.raises(SavedFileError, match="not JSON"):
        evoprune.load_pruned(networks.resnet20, saved)


def test_another_network_is_refused(saved: Path) -> None:
    with pytest.raises(
        SavedFileError, match=r"another network than this ResNet: .*of other layers, sizes or sel"
    ):
        evoprune.load_pruned(networks.resnet20, saved)
    with pytest.raises(SavedFileError, match="got str"):
        evoprune.load_pruned(lambda: "a network", saved)  # type: ignore[arg-type, return-value]
    with pytest.raises(SavedFileError, match=r"or a factory that gives it .* got str"):
        evoprune.load_pruned("evoprune.networks:resnet20", saved)  # type: ignore[arg-type]


def test_the_same_shapes_with_another_selection_are_another_network(saved: Path, tmp_path: Path) -> None:
    """Which channels a network of ours chooses is not in its weights."""
    once, x = pruned_net("option a", selection=True)
    other = evoprune.prune(once.original, "random", example_inputs=x, ratio=0.5, selection=True)
    twice = evoprune.prune(once.network, "l1", example_inputs=x, ratio=0.5, selection=True)
    folder = twice.save(tmp_path / "twice")
    assert torch.equal(evoprune.load_pruned(once.network, folder)(x), twice.network(x))
    assert [t.shape for t in other.network.state_dict().values()] == [
        t.shape for t in once.network.state_dict().values()
    ]
    with pytest.raises(SavedFileError, match="another network"):
        evoprune.load_pruned(other.network, folder)


def test_a_factory_that_fails_is_named(saved: Path) -> None:
    with pytest.raises(SavedFileError, match=r"factory of the network .* failed: TypeError: .*'blocks'"):
        evoprune.load_pruned(networks.ResNet, saved)  # type: ignore[arg-type]


def test_weights_that_someone_else_wrote_are_refused(saved: Path) -> None:
    (saved / WEIGHTS).write_bytes(b"no safetensors")

    def write(record: dict[str, Any]) -> None:
        record["weights"]["sha256"] = hashlib.sha256(b"no safetensors").hexdigest()
        record["checksum"] = _checksum(record)

    change(saved, write)
    with pytest.raises(SavedFileError, match=r"weights\.safetensors is not a safetensors file"):
        evoprune.load_pruned(ZOO["option a"][0], saved)


def test_lost_weights_are_named(saved: Path) -> None:
    (saved / WEIGHTS).unlink()
    with pytest.raises(SavedFileError, match="lacks the weights"):
        evoprune.load_pruned(ZOO["option a"][0], saved)
