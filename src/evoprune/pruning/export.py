"""Pruned (or any) networks as ONNX, checked against onnxruntime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from evoprune.errors import MissingExtraError, NetworkError
from evoprune.pruning.calling import call_network, detached_copy, untouched_randomness

TOLERANCE = 1e-4
OPSET = 18


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own deprecations and of packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def export_onnx(network: nn.Module, example_inputs: Any, path: str | Path, *, check: bool = True) -> Path:
    """Write the network, in eval mode, as an ONNX file for inputs of the example's shape.

    With `check`, onnxruntime runs the file on noise and must give what the network gives. Needs the extra
    `onnx`.
    """
    path = Path(path)
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("exporting to ONNX", "onnx") from error
    model = detached_copy(network).eval()
    generator = torch.Generator().manual_seed(0)

    def noise(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.randn(tensor.shape, generator=generator).to(tensor)

    inputs = tree_map_only(Tensor, noise, example_inputs)
    named = dict(inputs) if isinstance(inputs, Mapping) else None
    args = () if named is not None else tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    path.parent.mkdir(parents=True, exist_ok=True)
    with untouched_randomness(inputs), torch.no_grad():
        expected = [leaf for leaf in tree_leaves(call_network(model, inputs)) if isinstance(leaf, Tensor)]
        try:
            with _quiet():
                torch.onnx.export(
                    model, args, str(path), kwargs=named, opset_version=OPSET, dynamo=True,
                    external_data=False, verbose=False,
                )  # fmt: skip
        except Exception as error:
            raise NetworkError(f"PyTorch cannot export the network: {_first_line(error)}") from error
    if not check:
        return path
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        feed = {
            given.name: tensor.cpu().numpy()
            for given, tensor in zip(session.get_inputs(), tensors, strict=True)
        }
        results = session.run(None, feed)
    except Exception as error:
        raise NetworkError(
            f"{path} is written, but it cannot be checked: onnxruntime failed with {_first_line(error)}"
        ) from error
    for got, wanted in zip(results, expected, strict=True):
        wanted = wanted.cpu()
        off = float((torch.from_numpy(got) - wanted).abs().max()) / (float(wanted.abs().max()) or 1.0)
        if not off <= TOLERANCE:
            raise NetworkError(
                f"{path} computes something else than the network: onnxruntime's output is off by {off:.1e} "
                f"(allowed: {TOLERANCE:.0e})"
            )
    return path


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
