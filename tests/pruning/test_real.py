"""Trained networks are cut right as well: their weights are less tame than fresh ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import evoprune
from evoprune import networks
from evoprune.errors import SurgeryError
from evoprune.pruning import surgery

FILES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "resnet20-12fca82f.th": (networks.resnet20, (2, 3, 32, 32)),
    "resnet56-4bfd9763.th": (networks.resnet56, (2, 3, 32, 32)),
    "mobilenet_v2_imagenet_fp16.pth": (networks.mobilenet_v2, (1, 3, 224, 224)),
}


def trained(folder: Path, file: str) -> nn.Module:
    path = folder / "checkpoints" / file
    if not path.exists():
        pytest.skip(f"{path} is not there")
    saved = torch.load(path, weights_only=True, map_location="cpu")
    state = saved.get("state_dict", saved)
    net = FILES[file][0]()
    net.load_state_dict({name.removeprefix("module."): tensor for name, tensor in state.items()})
    return net.float().eval()


@pytest.mark.real
@pytest.mark.parametrize("selection", [False, True])
@pytest.mark.parametrize("file", FILES)
def test_trained_networks(real_data: Path, file: str, selection: bool) -> None:
    net, x = trained(real_data, file), torch.randn(FILES[file][1])
    for flops in (0.1, 0.5, 0.8):
        pruned = evoprune.prune(net, "l1", example_inputs=x, flops=flops, selection=selection)
        assert abs(pruned.flops_removed - flops) <= 0.005


@pytest.mark.real
def test_one_wrong_channel_of_a_trained_network_is_caught(
    real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = trained(real_data, "resnet56-4bfd9763.th"), torch.randn(2, 3, 32, 32)
    surgeon = evoprune.Surgeon(net, x)
    honest = surgery.cut

    def lying(model: nn.Module, structure: Any, kept: Any) -> nn.Module:
        asked = kept["layer3.8.conv1"]
        wrong = tuple(range(1, 33)) if len(asked) == 32 else asked
        return honest(model, structure, dict(kept) | {"layer3.8.conv1": wrong})

    monkeypatch.setattr(surgery, "cut", lying)
    monkeypatch.setattr(surgery.Verifier, "_check_tensors", lambda *_: None)
    with pytest.raises(SurgeryError, match=r"site 'layer3\.8\.conv1' is wrong"):
        surgeon.cut({site.name: range(site.channels // 2) for site in surgeon.sites})


@pytest.mark.heavy
def test_repeated_cuts_are_fast_enough_for_evolution() -> None:
    """The bound is half a second; this allows for a machine that is busy with other things."""
    import time

    x = torch.randn(1, 3, 32, 32)
    surgeon = evoprune.Surgeon(networks.resnet56(), x, selection=True)
    surgeon.cut({})
    times = []
    for offset in range(5):
        start = time.perf_counter()
        surgeon.cut({site.name: range(offset, site.channels, 2) for site in surgeon.sites})
        times.append(time.perf_counter() - start)
    assert min(times) <= 0.5
