"""The forms that data comes in, as batches of network inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from evoprune.errors import NetworkError

BATCH = 256


def batches_of(data: Any) -> Iterator[Any]:
    """The network inputs in the data, a batch at a time.

    The data is a tensor of images, a pair (images, labels), or an iterable of such batches (a loader).
    """
    if isinstance(data, Tensor):
        yield from torch.split(data, BATCH)
    elif isinstance(data, (tuple, list)) and len(data) == 2 and _are_images(data[0]):
        yield from torch.split(torch.as_tensor(data[0]), BATCH)
    elif hasattr(data, "ordered"):
        for images, _ in data.ordered(BATCH):
            yield images
    elif isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Iterable):
        raise NetworkError(f"the data is (images, labels), or an iterable of such batches, got {data!r:.80}")
    else:
        for batch in data:
            yield batch[0] if isinstance(batch, (tuple, list)) else batch


def usable_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it, with its number: "cuda" is "cuda:0"."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = None
    if wanted is None or wanted.type not in ("cpu", "cuda"):  # others have no float64, or no numbers at all
        raise NetworkError(f"a device is cpu, cuda or cuda:N, got {str(device)!r}")
    count = torch.cuda.device_count()
    if wanted.type == "cuda" and (wanted.index or 0) >= count:
        raise NetworkError(f"device {str(device)!r} is not there: this machine has {count} CUDA devices")
    return torch.empty(0, device=wanted).device


def _are_images(value: Any) -> bool:
    return hasattr(value, "ndim") and value.ndim > 1


def example_of(data: Any) -> Any:
    """One network input like those in the data, for tracing."""
    if data is None:
        raise NetworkError("example_inputs= is needed to follow the network where no data is given")
    if isinstance(data, Iterator):
        raise NetworkError("example_inputs= is needed where the data can be gone through only once")
    first = next(batches_of(data), None)
    if first is None:
        raise NetworkError("no example input can be taken from data without a batch")
    if isinstance(first, Mapping):
        return {name: value[:1] for name, value in first.items()}
    return torch.as_tensor(first)[:1]
