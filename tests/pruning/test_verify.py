"""The check itself: lies are planted, and each is caught, by each half of the check on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

from evoprune import networks
from evoprune.errors import NetworkError, SurgeryError
from evoprune.pruning import surgery
from evoprune.pruning.channels import Labels
from evoprune.pruning.sites import Structure, find_sites
from evoprune.pruning.surgery import Surgeon
from evoprune.pruning.verify import Verifier

NAMES = [name for name in ZOO if name != "mobilenet"]
Kept = dict[str, tuple[int, ...]]


@pytest.fixture
def without_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the outputs are compared."""
    monkeypatch.setattr(Verifier, "_check_tensors", lambda *_: None)


@pytest.fixture
def without_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tensors are compared."""
    monkeypatch.setattr(Verifier, "_problem", lambda *_: None)


@pytest.mark.parametrize("name", NAMES)
def test_under_lively_weights_every_channel_has_an_effect(name: str) -> None:
    """Otherwise a wrong cut there would go unseen."""
    factory, shape = ZOO[name]
    torch.manual_seed(3)
    net, x = factory(), torch.randn(shape)
    structure = find_sites(net, x)
    lively = Verifier(net, structure, surgery.cut)._lively
    whole = {site.name: tuple(range(site.channels)) for site in structure.sites}
    (before,) = lively(whole)
    for site in structure.sites:
        for channel in range(0, site.channels, 1 + site.channels // 16):
            without = whole | {site.name: tuple(c for c in whole[site.name] if c != channel)}
            (after,) = lively(without)
            effect = float((after - before).abs().max() / before.abs().max())
            assert effect > 1e-4, (site.name, channel, effect)


def half(structure: Structure) -> Kept:
    """Every other channel: of each run of two, the first."""
    return {site.name: tuple(range(0, site.channels, 2)) for site in structure.sites}


def lie(monkeypatch: pytest.MonkeyPatch, change: Callable[[Structure, Kept], Kept]) -> None:
    """Cut something else than what is asked and reported."""
    honest = surgery.cut

    def lying(model: nn.Module, structure: Structure, kept: Mapping[str, tuple[int, ...]]) -> nn.Module:
        return honest(model, structure, change(structure, dict(kept)))

    monkeypatch.setattr(surgery, "cut", lying)


def off_by_one(site: str) -> Callable[[Structure, Kept], Kept]:
    def change(structure: Structure, kept: Kept) -> Kept:
        count = next(s.channels for s in structure.sites if s.name == site)
        if len(kept[site]) == count:
            return kept
        others = kept[site][1:]
        free = next(channel for channel in range(count) if channel not in kept[site])
        return kept | {site: tuple(sorted([free, *others]))}

    return change


def cases() -> list[tuple[str, str]]:
    found = []
    for name in NAMES:
        factory, shape = ZOO[name]
        with torch.device("meta"):
            structure = find_sites(factory(), torch.empty(shape))
        found += [(name, site.name) for site in structure.sites if site.blocks == 1]
    return found


@pytest.mark.parametrize(("name", "site"), cases())
def test_one_wrong_channel_is_seen_in_the_outputs(
    name: str, site: str, monkeypatch: pytest.MonkeyPatch, without_tensors: None
) -> None:
    factory, shape = ZOO[name]
    torch.manual_seed(3)
    surgeon = Surgeon(factory(), torch.randn(shape))
    lie(monkeypatch, off_by_one(site))
    with pytest.raises(SurgeryError, match=f"'{site}'.* is wrong"):
        surgeon.cut(half(surgeon.structure))


@pytest.mark.parametrize(("name", "site"), cases())
def test_one_wrong_channel_is_seen_in_the_tensors(
    name: str, site: str, monkeypatch: pytest.MonkeyPatch, without_outputs: None
) -> None:
    factory, shape = ZOO[name]
    torch.manual_seed(3)
    surgeon = Surgeon(factory(), torch.randn(shape))
    lie(monkeypatch, off_by_one(site))
    with pytest.raises(
        SurgeryError, match=r"is not the original's tensor at the kept channels|chooses channels"
    ):
        surgeon.cut(half(surgeon.structure))


@pytest.mark.parametrize("name", NAMES)
def test_a_skipped_reader_is_caught(name: str) -> None:
    """A site that forgets one of its readers: it is not masked there, and its weights not expected cut."""
    factory, shape = ZOO[name]
    torch.manual_seed(3)
    surgeon = Surgeon(factory(), torch.randn(shape))
    honest = surgeon.structure
    for site in honest.sites:
        for skipped in range(len(site.readers)):
            readers = site.readers[:skipped] + site.readers[skipped + 1 :]
            twice = {reader.module for reader in readers} & {site.readers[skipped].module}
            if twice:
                continue  # a shared layer, which another of its calls still names
            forgetful = replace(site, readers=readers)
            lying = tuple(forgetful if other is site else other for other in honest.sites)
            surgeon.structure = replace(honest, sites=lying)
            surgeon._verifier = None
            with pytest.raises(SurgeryError):
                surgeon.cut(half(honest))


def test_a_skipped_reader_is_seen_in_the_outputs_alone(without_tensors: None) -> None:
    torch.manual_seed(3)
    surgeon = Surgeon(*_resnet())
    stem = surgeon.sites[0]
    forgetful = replace(stem, readers=stem.readers[:-1])
    surgeon.structure = replace(surgeon.structure, sites=(forgetful, *surgeon.sites[1:]))
    with pytest.raises(SurgeryError, match="site 'conv1' is wrong: the pruned network is off by"):
        surgeon.cut({"conv1": range(1, 16)})


def test_a_reader_that_is_not_cut_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, fit = surgery._cut_tensors, surgery._fit_layer

    def lazy(module: nn.Module, layer: Any, *rest: Any) -> Any:
        return {} if layer.name == "layer1.0.conv2" else tensors(module, layer, *rest)

    def unfit(module: nn.Module, layer: Any, *rest: Any) -> None:
        if layer.name != "layer1.0.conv2":
            fit(module, layer, *rest)

    surgeon = Surgeon(*_resnet())
    monkeypatch.setattr(surgery, "_cut_tensors", lazy)
    monkeypatch.setattr(surgery, "_fit_layer", unfit)
    with pytest.raises(SurgeryError, match=r"or 'layer1.0.conv1' is wrong: 'layer1.0.conv2.weight'"):
        surgeon.cut(half(surgeon.structure))
    monkeypatch.setattr(Verifier, "_check_tensors", lambda *_: None)
    with pytest.raises(SurgeryError, match=r"'layer1.0.conv1'.* is wrong: the pruned network does not run"):
        surgeon.cut(half(surgeon.structure))


def test_a_carrier_at_the_wrong_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = surgery.sliced

    def shifted(tensor: Any, name: str, layer: Any, ins: Any, outs: Any) -> Any:
        if layer.name == "bn1" and name == "bias":
            outs = np.roll(np.arange(len(layer.out_ids)), 1)[: len(outs)]
        return honest(tensor, name, layer, ins, outs)

    surgeon = Surgeon(*_resnet())
    monkeypatch.setattr(surgery, "sliced", shifted)
    torch.nn.init.uniform_(surgeon.model.bn1.bias)
    with pytest.raises(SurgeryError, match=r"'bn1.bias' is not the original's"):
        surgeon.cut(half(surgeon.structure))
    monkeypatch.setattr(Verifier, "_check_tensors", lambda *_: None)
    with pytest.raises(SurgeryError, match=r"'conv1'.* is wrong: the pruned network is off by"):
        surgeon.cut(half(surgeon.structure))


@pytest.mark.parametrize("name", ["option b", "squeeze-and-excite", "shared"])
def test_a_missed_coupling_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where channels meet is overlooked while the network is followed."""
    monkeypatch.setattr(Labels, "unite", lambda *_: None)
    factory, shape = ZOO[name]
    with pytest.raises(NetworkError, match=r"is wrong|or nothing, reads them"):
        surgeon = Surgeon(factory(), torch.randn(shape))
        surgeon.cut({site.name: tuple(range(at % 3, site.channels)) for at, site in enumerate(surgeon.sites)})


def test_dead_channels_hide_nothing() -> None:
    """With batch-norm scales of zero no output depends on the inner channels; a wrong cut still shows."""
    net, x = _resnet()
    for name, parameter in net.named_parameters():
        if name.endswith(("bn2.weight", "bn2.bias")):
            nn.init.zeros_(parameter)
    surgeon = Surgeon(net, x)
    kept = surgery.checked_kept(surgeon.sites, {"layer1.0.conv1": [0, 1]})
    honest, lying = (
        surgery.cut(net, surgeon.structure, kept | {"layer1.0.conv1": channels})
        for channels in ((0, 1), (0, 2))
    )
    torch.testing.assert_close(honest(x), lying(x))  # alike to the eye
    verifier = Verifier(net, surgeon.structure, surgery.cut)
    verifier.check(honest, kept)
    with pytest.raises(SurgeryError, match=r"layer1.0.conv1"):
        verifier.check(lying, kept)


def test_the_check_follows_a_network_that_is_trained_on() -> None:
    net, x = _resnet()
    surgeon = Surgeon(net, x)
    surgeon.cut({"conv1": [0, 1]})
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1)
    pruned = surgeon.cut({"conv1": [0, 1]})
    assert torch.equal(pruned.conv1.weight, net.conv1.weight[[0, 1]])


def test_replaced_parameters_are_followed_and_the_old_ones_left_alone() -> None:
    net, x = _resnet()
    surgeon = Surgeon(net, x)
    surgeon.cut({"conv1": [0, 1]})
    old, values = net.conv1.weight, net.conv1.weight.detach().clone()
    net.conv1.weight = nn.Parameter(torch.randn_like(values))
    pruned = surgeon.cut({"conv1": [0, 1]})
    assert torch.equal(pruned.conv1.weight, net.conv1.weight[[0, 1]]) and torch.equal(old, values)


def body(change: Callable[[Tensor], Tensor]) -> nn.Module:
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.second(torch.relu(self.first(change(x))))
            return self.fc(torch.relu(x).mean((2, 3)))

    return Body()


def only_small(x: Tensor) -> Tensor:
    if x.max() > 1:
        raise ValueError("pixels above 1")
    return x


@pytest.mark.parametrize("change", [Tensor.float, torch.log, only_small], ids=["float32", "log", "small"])
def test_networks_are_checked_on_what_they_take(
    change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single precision only; positive inputs only; small ones only."""
    surgeon = Surgeon(body(change), torch.rand(2, 3, 8, 8))
    surgeon.cut({"first": [0, 3, 7], "second": [5]})
    monkeypatch.setattr(Verifier, "_check_tensors", lambda *_: None)
    lie(monkeypatch, off_by_one("first"))
    with pytest.raises(SurgeryError, match="site 'first' is wrong: the pruned network is off by"):
        surgeon.cut({"first": [0, 3, 7]})


def test_a_network_that_is_random_in_eval_mode_is_not_called_cut_wrongly() -> None:
    surgeon = Surgeon(body(lambda x: x + torch.rand(1)), torch.rand(2, 3, 8, 8))
    surgeon.cut({"first": [0]})  # the same numbers are drawn whatever is cut
    net = body(lambda x: x)
    net.first.register_forward_hook(lambda _, args, output: nn.functional.dropout(output))
    with pytest.raises(NetworkError, match=r"other outputs each time it is called, in eval mode as well"):
        Surgeon(net, torch.rand(2, 3, 8, 8)).cut({"first": [0, 3, 7]})


def test_outputs_that_cannot_be_compared_are_refused_and_infinite_ones_compared() -> None:
    net = body(lambda x: x)
    net.register_forward_hook(lambda _, args, output: output.index_fill(1, torch.tensor([0]), -torch.inf))
    Surgeon(net, torch.rand(2, 3, 8, 8)).cut({"first": [0, 3]})
    net.register_forward_hook(lambda _, args, output: output * 0)
    with pytest.raises(NetworkError, match="gives not-a-numbers on the example inputs"):
        Surgeon(net, torch.rand(2, 3, 8, 8)).cut({"first": [0, 3]})


def test_a_selection_of_other_channels_is_caught() -> None:
    net, x = _resnet()
    surgeon = Surgeon(net, x, selection=True)
    kept = surgery.checked_kept(surgeon.sites, {"layer1.1.conv1.in": [0, 5, 6]})
    pruned = surgery.cut(net, surgeon.structure, kept)
    verifier = Verifier(net, surgeon.structure, surgery.cut)
    verifier.check(pruned, kept)
    pruned.layer1[1].conv1.select.choose([0, 5, 7], 16)
    with pytest.raises(SurgeryError, match=r"'layer1.1.conv1' chooses channels \(0, 5, 7\), not \(0, 5, 6\)"):
        verifier.check(pruned, kept)


def _resnet() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(4)
    return networks.ResNet(2, 5).eval(), torch.randn(2, 3, 16, 16)
