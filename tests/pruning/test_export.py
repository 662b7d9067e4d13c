"""ONNX files give what the network gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
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
