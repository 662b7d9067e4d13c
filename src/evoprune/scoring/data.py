"""Images and labels from whatever holds them: tensors, a DataLoader, any iterable of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from operator import index
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
        for number, (images, labels) in enumerate(
            track(self._batches(self.source), self.title, self._length())
        ):
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
        source = self.source.ahead() if isinstance(self.source, _Once) else self.source
        for images, _ in self._batches(source):
            if images.ndim and len(images):
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
        if not isinstance(source, Sized) or self.limit is not None:
            return None
        try:
            return len(source)
        except TypeError:  # a DataLoader of an IterableDataset has no length
            return None

    def _batches(self, source: Any) -> Iterator[tuple[Tensor, Labels | None]]:
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

    A source that knows its classes (`classes` or `num_classes`, of it or of its `dataset`, or of that one's)
    promises them.
    """
    if isinstance(data, Images):
        return data
    for name, value in (("images", limit), ("batch_size", batch_size), ("classes", classes)):
        if value is not None:
            require_whole(name, value, 1)
    if isinstance(data, Tensor | np.ndarray):
        data = (data,)
    if isinstance(data, tuple | list) and _is_pair(data):
        labels = data[1] if len(data) > 1 else None
        if data[0].ndim < 2:
            raise ScoringError(f"images must be [image, …], got shape {list(data[0].shape)}")
        if not (labels is None or _is_row(labels)):
            raise ScoringError(f"labels must be one for each of the images, got {type(labels).__name__}")
        data = (data[0],) if labels is None else (data[0], labels)
    elif isinstance(data, list) or (isinstance(data, tuple) and data and all(map(_is_batch, data))):
        data = _Batches(data)
    elif isinstance(data, Iterator):
        data = _Once(data)
    elif isinstance(data, tuple | str | Mapping) or not isinstance(data, Iterable):
        what = type(data).__name__
        if isinstance(data, tuple):
            what += f" of {', '.join(type(each).__name__ for each in data) or 'nothing'}"
        raise ScoringError(
            f"data must be a DataLoader, an iterable of (images, labels) or a pair of tensors; got {what}"
        )
    return Images(data, batch_size, limit, classes if classes is not None else _promised(data))


def require_whole(name: str, value: object, least: int) -> None:
    """Raise where an argument is not a whole number of at least so much."""
    if not isinstance(value, int | np.integer) or value < least:
        raise ScoringError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _is_pair(data: tuple[Any, ...] | list[Any]) -> bool:
    """Whether these are images, perhaps with their labels, and not two batches of images in a list."""
    if not (1 <= len(data) <= 2 and isinstance(data[0], Tensor | np.ndarray)):
        return False
    return isinstance(data, tuple) or len(data) < 2 or not _alike(*data)


def _is_batch(part: Any) -> bool:
    return isinstance(part, tuple | list | Mapping)


def _is_row(labels: Any) -> bool:
    """Whether labels have a length and can be sliced."""
    sliced = isinstance(labels, Sized) and hasattr(labels, "__getitem__") and not isinstance(labels, Mapping)
    return sliced and getattr(labels, "ndim", 1) > 0


def _alike(first: Any, second: Any) -> bool:
    """Whether both are images of one shape and type."""
    if not isinstance(second, Tensor | np.ndarray) or first.ndim < 2:
        return False
    return bool(first.shape[1:] == second.shape[1:] and first.dtype == second.dtype)


class _Once:
    """Batches that come only once, where the first ones can be looked at ahead."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._ahead: list[Any] = []

    def ahead(self) -> Iterator[Any]:
        """The next batches, which iterating gives again."""
        for batch in self._batches:
            self._ahead.append(batch)
            yield batch

    def __iter__(self) -> Iterator[Any]:
        while self._ahead:
            yield self._ahead.pop(0)
        for batch in self._batches:  # noqa: UP028  # `yield from` would close what is not ours
            yield batch


class _Batches:
    """A list of batches, told from a pair of tensors."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def _promised(data: Any) -> int | None:
    holder = data
    while holder is not None:  # a loader of a subset of a data set
        for name in ("num_classes", "classes"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and value > 0:
                return value
            if isinstance(value, list | tuple) and value:
                return len(value)
        holder = getattr(holder, "dataset", None)
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
    images = _tensor(batch[0], where)
    labels = _labels(batch[1]) if len(batch) > 1 and batch[1] is not None else None
    if labels is not None and len(labels) != len(images):
        raise ScoringError(f"{where} has {len(images)} images but {len(labels)} labels")
    return images, labels


def _tensor(images: Tensor | np.ndarray[Any, Any], where: str) -> Tensor:
    """Images as a tensor; arrays that torch cannot share the memory of are copied."""
    if isinstance(images, Tensor):
        return images
    try:
        native = images.astype(images.dtype.newbyteorder("="), copy=False)
        return torch.from_numpy(np.require(native, requirements=["C", "W"]))
    except TypeError:
        raise ScoringError(f"{where}: images must be numbers, got an array of {images.dtype}") from None


def _labels(given: Any) -> Labels | None:
    """One class for each image, or None where that is not what these are."""
    if isinstance(given, Tensor):
        if given.ndim != 1 or given.is_floating_point() or given.is_complex():
            return None
        return [int(each) for each in given.tolist()]
    if not isinstance(given, list | tuple):
        array = np.asarray(given)
        if array.ndim != 1 or array.dtype.kind not in "iubUO":
            return None
        given = array.tolist()
    if all(isinstance(each, str) for each in given):
        return [str(each) for each in given]
    try:
        return [index(each) for each in given]
    except (TypeError, ValueError):
        return None
