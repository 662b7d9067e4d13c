"""Splits of a data set: they give batches of normalised images, in order or shuffled and augmented.

Two kinds with one interface: `HeldSplit` keeps all its images decoded on the device; `StreamedSplit` decodes
them in worker processes while training goes on. Every random choice comes from the seed given, never
from the global generator, and does not depend on the number of workers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from evoprune.errors import DataError
from evoprune.tasks.sources import Integers, Rows, decode, eight_bit

Augmentation = Literal["none", "flip", "pad-crop", "pad-crop-flip", "resized-crop-flip"]
Batch = tuple[Tensor, Tensor]
PAD = 4  # pixels on each side, as in He et al.
LANES, WINDOW = 8, 8  # streamed shuffling: see `stream_order`


@dataclass(frozen=True)
class Normalisation:
    """What is subtracted from and divided through, per channel, of pixels from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, images: Tensor) -> Tensor:
        """uint8 `[image, channel, y, x]` → normalised float32 of the same axes."""
        mean = torch.tensor(self.mean, device=images.device)[:, None, None]
        std = torch.tensor(self.std, device=images.device)[:, None, None]
        return (images.float() / 255 - mean) / std


class Split(Protocol):
    """Some of the images of a data set."""

    @property
    def labels(self) -> Tensor:
        """int64 `[image]`, on the CPU."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""

    @property
    def device(self) -> torch.device:
        """Where the batches are."""

    def __len__(self) -> int: ...

    def take(self, places: Integers) -> Split:
        """The images at these places, in this order."""

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        """All images once, in order, as they are."""

    def shuffled(self, batch_size: int, *, seed: int, augment: Augmentation) -> Iterator[Batch]:
        """One epoch of training: shuffled, augmented, without the rest that fills no batch."""

    def key(self) -> str:
        """A hash of what the split holds."""


@dataclass(frozen=True)
class Batches:
    """A split as an iterable of batches in order, which can be gone through again."""

    split: Split
    batch_size: int = 500

    def __len__(self) -> int:
        return -(-len(self.split) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.split.ordered(self.batch_size)


@dataclass(frozen=True, eq=False)
class HeldSplit:
    """Images in memory: uint8 `[image, channel, y, x]` on the device that trains."""

    images: Tensor
    labels: Tensor
    normalisation: Normalisation

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def device(self) -> torch.device:
        return self.images.device

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, places: Integers) -> HeldSplit:
        index = torch.from_numpy(places)
        return HeldSplit(self.images[index.to(self.images.device)], self.labels[index], self.normalisation)

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        for first in range(0, len(self), batch_size):
            part = slice(first, first + batch_size)
            yield self.normalisation.apply(self.images[part]), self.labels[part].to(self.images.device)

    def shuffled(self, batch_size: int, *, seed: int, augment: Augmentation) -> Iterator[Batch]:
        if augment == "resized-crop-flip":
            raise DataError(
                "augment = 'resized-crop-flip' cuts from the original images, but these are kept decoded at "
                f"{self.shape[1]}×{self.shape[2]}; use 'none', 'flip', 'pad-crop' or 'pad-crop-flip', "
                "or data.streamed = true where they come from files"
            )
        device = self.images.device
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator)
        for first in range(0, len(order), batch_size):
            places = order[first : first + batch_size]
            if len(places) < batch_size <= len(self):
                return  # a smaller last batch would give its images more weight, and batch-norm less to go on
            images = augmented(self.images[places.to(device)], augment, generator)
            yield self.normalisation.apply(images), self.labels[places].to(device)

    def key(self) -> str:
        digest = hashlib.sha256(repr((tuple(self.images.shape), self.normalisation)).encode())
        digest.update(self.labels.numpy().data)
        for first in range(0, len(self), 4096):
            digest.update(self.images[first : first + 4096].cpu().contiguous().numpy().data)
        return digest.hexdigest()[:16]


def augmented(images: Tensor, how: Augmentation, generator: torch.Generator) -> Tensor:
    """A uint8 batch `[image, channel, y, x]`, each image cropped and flipped on its own."""
    count, _, height, width = images.shape
    if how in ("pad-crop", "pad-crop-flip"):
        # Gather each image's own window out of the batch that was padded with black.
        top, left = torch.randint(0, 2 * PAD + 1, (2, count), generator=generator).to(images.device)
        rows = top[:, None] + torch.arange(height, device=images.device)
        columns = left[:, None] + torch.arange(width, device=images.device)
        padded = functional.pad(images, (PAD, PAD, PAD, PAD)).permute(0, 2, 3, 1)  # [image, y, x, channel]
        image = torch.arange(count, device=images.device)[:, None, None]
        images = padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    if how in ("flip", "pad-crop-flip"):
        flip = (torch.rand(count, generator=generator) < 0.5).to(images.device)
        images = torch.where(flip[:, None, None, None], images.flip(3), images)
    return images


@dataclass(frozen=True, eq=False)
class StreamedSplit:
    """Images that stay encoded until worker processes decode them, to squares of `shape`."""

    rows: Rows
    places: Integers  # which rows belong to the split, in order
    shape: tuple[int, int, int]
    normalisation: Normalisation
    device: torch.device
    workers: int

    @property
    def labels(self) -> Tensor:
        return torch.from_numpy(self.rows.labels[self.places])

    def __len__(self) -> int:
        return len(self.places)

    def take(self, places: Integers) -> StreamedSplit:
        chosen = self.places[places]
        return StreamedSplit(self.rows, chosen, self.shape, self.normalisation, self.device, self.workers)

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        batches = [self.places[first : first + batch_size] for first in range(0, len(self), batch_size)]
        yield from self._decoded(batches, seed=None)

    def shuffled(self, batch_size: int, *, seed: int, augment: Augmentation) -> Iterator[Batch]:
        order = stream_order(self._groups(), batch_size, np.random.default_rng([seed, 0]))
        generator = torch.Generator().manual_seed(seed)
        cropped = augment == "resized-crop-flip"
        for images, labels in self._decoded(order, seed=seed if cropped else None, normalise=False):
            if not cropped:
                images = augmented(images, augment, generator)
            yield self.normalisation.apply(images), labels

    def key(self) -> str:
        digest = hashlib.sha256(repr((self.rows.name, self.shape, self.normalisation)).encode())
        digest.update(np.ascontiguousarray(self.places).data)
        digest.update(np.ascontiguousarray(self.rows.labels[self.places]).data)
        for content in self.rows.encoded(self.places[:16].tolist()):
            digest.update(content)
        return digest.hexdigest()[:16]

    def _groups(self) -> list[Integers]:
        """The rows of the split, together as they lie in the files."""
        member = np.zeros(len(self.rows.labels), bool)
        member[self.places] = True
        groups = [group[member[group]] for group in self.rows.groups]
        return [group for group in groups if len(group)]

    def _decoded(
        self, batches: list[Integers], *, seed: int | None, normalise: bool = True
    ) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        loader: Any = DataLoader(
            _Decoder(self.rows, batches, self.shape, seed),  # type: ignore[arg-type]
            batch_size=None,
            num_workers=min(self.workers, len(batches), os.cpu_count() or 1),
            # The loader would draw its workers' seeds from the global generator.
            generator=torch.Generator().manual_seed(0),
        )
        for images, labels in _from_workers(loader, self.rows.name):
            images = images.to(self.device, non_blocking=True)
            yield (self.normalisation.apply(images) if normalise else images), labels.to(self.device)


def _from_workers(loader: Any, name: str) -> Iterator[Batch]:
    """The batches of a loader, and its errors as ours: it would put the worker's traceback into them."""
    batches = iter(loader)
    while True:
        try:
            made = next(batches, None)
        except RuntimeError as error:
            raise DataError(
                f"{name}: a process that decodes images ended ({str(error).splitlines()[0]}), perhaps for "
                "want of memory; with data.workers = 0 they are decoded in the process that trains"
            ) from error
        if isinstance(made, DataError):
            del batches  # ends its processes now; the traceback would keep them
            raise made
        if made is None:
            return
        images, labels = made
        yield images, labels


@dataclass(frozen=True, eq=False)
class _Decoder:
    """What a worker process does: batch number → images and labels, or what is wrong with one of them."""

    rows: Rows
    batches: list[Integers]
    shape: tuple[int, int, int]
    seed: int | None

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Batch | DataError:
        places = self.batches[number].tolist()
        try:
            images = [
                pixels(content, self.shape, self.rows.where(row), crop=self._crop(row))
                for row, content in zip(places, self.rows.encoded(places), strict=True)
            ]
        except DataError as error:
            return error
        return torch.from_numpy(np.stack(images)), torch.from_numpy(self.rows.labels[places])

    def _crop(self, row: int) -> np.random.Generator | None:
        return None if self.seed is None else np.random.default_rng([self.seed, 1, row])


def stream_order(
    groups: Sequence[Integers], batch_size: int, random: np.random.Generator, lanes: int = LANES
) -> list[Integers]:
    """Batches of shuffled rows that read few row groups at a time.

    The groups are shuffled, and rows are shuffled within windows of a few groups. The windows are dealt out
    to lanes, and the batches come from the lanes in turn. A loader hands its batches to its workers in
    turn as well, so that a worker meets the same few windows again and again, while the order is
    the same for any number of workers.
    """
    shuffled = [groups[place] for place in random.permutation(len(groups))]
    windows = [np.concatenate(shuffled[first : first + WINDOW]) for first in range(0, len(shuffled), WINDOW)]
    dealt: list[list[Integers]] = [[] for _ in range(lanes)]
    for number, window in enumerate(windows):
        dealt[number % lanes].append(random.permutation(window))
    queues, rest = [], [np.zeros(0, np.int64)]
    for lane in dealt:
        rows = np.concatenate([np.zeros(0, np.int64), *lane])
        full = len(rows) // batch_size * batch_size
        queues.append(list(rows[:full].reshape(-1, batch_size)))
        rest.append(rows[full:])
    batches = [queue[turn] for turn in range(max(map(len, queues))) for queue in queues if turn < len(queue)]
    left = random.permutation(np.concatenate(rest))
    full = len(left) // batch_size * batch_size
    batches += list(left[:full].reshape(-1, batch_size))
    return batches or [left]


def pixels(
    content: bytes,
    shape: tuple[int, int, int],
    where: str,
    *,
    crop: np.random.Generator | None = None,
    scale: bool = True,
) -> npt.NDArray[np.uint8]:
    """An encoded image as uint8 `[channel, y, x]` of `shape`.

    Evaluation takes the middle: the shorter side scaled to 256/224 of the size, the centre cut out. An image
    that has the size already is taken as it is; without `scale` it must have it. Training (`crop`) takes a
    random part of 8 to 100 % of the area, with sides 3:4 to 4:3, flipped half of the time.
    """
    from PIL.Image import Resampling, Transpose

    channels, height, width = shape
    try:
        image = decode(content, where)
        if not scale and image.size != (width, height):
            raise DataError(
                f"{where}: expected {width}×{height} pixels, got {image.width}×{image.height}; "
                "image_size scales images"
            )
        image = eight_bit(image, where).convert("L" if channels == 1 else "RGB")
        if crop is not None:
            image = image.resize(
                (width, height), resample=Resampling.BILINEAR, box=_random_box(image.size, crop)
            )
            if crop.random() < 0.5:
                image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
        elif image.size != (width, height):
            factor = max(width / image.width, height / image.height) * 256 / 224
            wide, high = round(image.width * factor), round(image.height * factor)
            left, top = (wide - width) // 2, (high - height) // 2
            image = image.resize((wide, high), resample=Resampling.BILINEAR).crop(
                (left, top, left + width, top + height)
            )
    except DataError:
        raise
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        raise DataError(f"{where}: the image is damaged: {error}") from None
    array = np.asarray(image, dtype=np.uint8)
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _random_box(size: tuple[int, int], random: np.random.Generator) -> tuple[float, float, float, float]:
    """A random part of an image, as (left, top, right, bottom)."""
    width, height = size
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        wide, high = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < wide <= width and 0 < high <= height:
            left, top = random.integers(0, width - wide + 1), random.integers(0, height - high + 1)
            return float(left), float(top), float(left + wide), float(top + high)
    side = min(width, height)  # a long thin image: its middle
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2
