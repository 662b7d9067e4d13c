"""Images and labels from whatever holds them: tensors, a DataLoader, any iterable of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evoprune.errors import ScoringError
from evoprune.progress import track

Labels = list[int] | list[str]


@dataclass(frozen=True)
class Images:
    """A source of batches: images `[image, …]`, and their labels where there is one class per image.

    limit: how many images to take, from the first on. classes: how many classes the source promises,
    so that its labels are 0 … classes - 1.
    """

    source: Any
    batch_size: int = 128
    limit: int | None = None
    classes: int | None = None
    title: str = "scoring"

    def __iter__(self) -> Iterator[tuple[Tensor, Labels | None]]:
        left = self.limit
        shape: tuple[int, ...] | None = None
        labelled: bool | None = None
        for number, (images, labels) in enumerate(track(self._batches(), self.title, self._length())):
            if images.ndim < 2:
                raise ScoringError(
                    f"batch {number}: images must be [image, …], got shape {list(images.shape)}"
                )
            if shape is not None and images.shape[1:] != shape:
                raise ScoringError(
                    f"batch {number}: images have the shape {list(images.shape[1:])}, "
                    f"those before {list(shape)}"
                )
            shape = images.shape[1:]
            if not len(images):
                continue
            if labelled is not None and labelled != (labels is not None):
                raise ScoringError(
                    f"batch {number}: some batches have labels, one class per image, and some not"
                )
            labelled = labels is not None
            if left is not None:
                images, labels = images[:left], labels[:left] if labels is not None else None
                left -= len(images)
            if labels is not None:
                self._check(labels, number)
            yield images, labels
            if left == 0:
                return

    def first(self) -> Tensor:
        """The first image, as a batch of one."""
        for images, _ in self._batches():
            if len(images):
                return images[:1]
        raise ScoringError("the data source yields nothing: there is no image to score with")

    def class_count(self) -> int:
        """How many classes there are, as far as can be told before the images come; 0 where it cannot."""
        if self.classes is not None:
            return self.classes
        if isinstance(self.source, tuple | list) and len(self.source) > 1:
            labels = _labels(self.source[1])
            return len(set(labels)) if labels is not None else 0
        return 0

    def _check(self, labels: Labels, number: int) -> None:
        if self.classes is None:
            return
        wrong = [label for label in labels if not isinstance(label, int) or not 0 <= label < self.classes]
        if wrong:
            raise ScoringError(
                f"batch {number} has the label {wrong[0]!r}, but the data promised {self.classes} classes, "
                f"0 to {self.classes - 1}"
            )

    def _length(self) -> int | None:
        source = self.source
        if isinstance(source, tuple | list):
            return -(-min(len(source[0]), self.limit or len(source[0])) // self.batch_size)
        return len(source) if isinstance(source, Sized) and self.limit is None else None

    def _batches(self) -> Iterator[tuple[Tensor, Labels | None]]:
        source = self.source
        if not isinstance(source, tuple | list):
            for number, batch in enumerate(source):
                yield _pair(batch, f"batch {number}")
            return
        images, labels = source[0], source[1] if len(source) > 1 else None
        if labels is not None and len(labels) != len(images):
            raise ScoringError(f"{len(images)} images but {len(labels)} labels")
        for start in range(0, len(images), self.batch_size):
            stop = start + self.batch_size
            if self.limit is not None:
                stop = min(stop, self.limit)
            part = (images[start:stop], None if labels is None else labels[start:stop])
            if len(part[0]):
                yield _pair(part, f"images {start} to {stop - 1}")


def images_of(
    data: Any, *, batch_size: int = 128, limit: int | None = None, classes: int | None = None
) -> Images:
    """Read `data`: a DataLoader or another iterable of batches, or a pair of tensors (images, labels).

    A source that knows its classes (`classes` or `num_classes`, of it or of its `dataset`) promises them.
    """
    if isinstance(data, Images):
        return data
    if limit is not None and limit < 1:
        raise ScoringError(f"images must be at least 1, got {limit}")
    if isinstance(data, Tensor | np.ndarray):
        data = (data,)
    elif isinstance(data, tuple | list) and not (
        1 <= len(data) <= 2 and isinstance(data[0], Tensor | np.ndarray)
    ):
        if isinstance(data, tuple):
            raise ScoringError(
                "data must be a DataLoader, an iterable of (images, labels) or a pair of tensors; "
                f"got a tuple of {', '.join(type(each).__name__ for each in data)}"
            )
        data = _Batches(data)
    elif not isinstance(data, Iterable):
        raise ScoringError(
            "data must be a DataLoader, an iterable of (images, labels) or a pair of tensors; "
            f"got {type(data).__name__}"
        )
    return Images(data, batch_size, limit, classes if classes is not None else _promised(data))


class _Batches:
    """A list of batches, told from a pair of tensors."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def _promised(data: Any) -> int | None:
    for holder in (data, getattr(data, "dataset", None)):
        for name in ("num_classes", "classes"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and value > 0:
                return value
            if isinstance(value, list | tuple) and value:
                return len(value)
    return None


def _pair(batch: Any, where: str) -> tuple[Tensor, Labels | None]:
    """A batch as images and labels; labels that are not one class per image count as none."""
    if isinstance(batch, Mapping):
        names = list(batch)
        image = next((n for n in ("image", "images", "pixel_values", "img", "x") if n in batch), None)
        label = next((n for n in ("label", "labels", "fine_label", "y") if n in batch), None)
        if image is None:
            raise ScoringError(f"{where} is a mapping without images; it has {', '.join(map(str, names))}")
        batch = (batch[image],) if label is None else (batch[image], batch[label])
    if isinstance(batch, Tensor | np.ndarray):
        batch = (batch,)
    if not isinstance(batch, tuple | list) or not batch or not isinstance(batch[0], Tensor | np.ndarray):
        what = type(batch).__name__
        if isinstance(batch, tuple | list):
            what += f" of {', '.join(type(each).__name__ for each in batch) or 'nothing'}"
        raise ScoringError(f"{where} must be (images, labels) with images as a tensor, got a {what}")
    images = torch.as_tensor(batch[0])
    labels = _labels(batch[1]) if len(batch) > 1 and batch[1] is not None else None
    if labels is not None and len(labels) != len(images):
        raise ScoringError(f"{where} has {len(images)} images but {len(labels)} labels")
    return images, labels


def _labels(given: Any) -> Labels | None:
    if isinstance(given, list | tuple):
        whole = all(isinstance(each, int) for each in given) or all(isinstance(each, str) for each in given)
        return list(given) if whole else None
    if isinstance(given, np.ndarray) and given.dtype.kind in "US":
        return [str(each) for each in given] if given.ndim == 1 else None
    tensor = torch.as_tensor(given)
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex():
        return None
    return [int(each) for each in tensor.tolist()]
