"""ONNX files give what the network gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

import evoprune
from evoprune.errors import NetworkError
from evoprune.pruning import export

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")


@pytest.mark.parametrize("name", ["option a", "squeeze-and-excite"])
def test_onnxruntime_agrees(name: str, tmp_path: Path) -> None:
    factory, shape = ZOO[name]
    x = torch.randn(shape)
    pruned = evoprune.prune(factory().eval(), "l1", example_inputs=x, ratio=0.5, selection=True)
    path = pruned.export_onnx(tmp_path / "folder" / "net.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), pruned.network(x), rtol=1e-4, atol=1e-5)


def test_a_file_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory, shape = ZOO["vgg"]
    monkeypatch.setattr(export, "call_network", lambda model, inputs: model(inputs) + 0.01)
    with pytest.raises(NetworkError, match="computes something else than the network"):
        export.export_onnx(factory(), torch.randn(shape), tmp_path / "net.onnx")


def test_what_cannot_be_exported_or_run_is_said(tmp_path: Path) -> None:
    class Growing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.sum().item() if x.sum() > 0 else x

    with pytest.raises(NetworkError, match="PyTorch cannot export the network: "):
        export.export_onnx(Growing(), torch.randn(1, 3, 4, 4), tmp_path / "net.onnx")
    double = nn.Conv2d(3, 4, 1).double()
    with pytest.raises(NetworkError, match=r"net\.onnx is written, but .*onnxruntime failed with NotImpl"):
        export.export_onnx(double, torch.randn(1, 3, 4, 4).double(), tmp_path / "net.onnx")
