"""Data sets by name or from a folder, in three splits: training, validation and test.

The validation split is taken out of the training images: it is what fitness and the choice of models see. The
test images are read when `Data.test` is first asked for, which is when a final result is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from evoprune.errors import ConfigError, DataError
from evoprune.tasks import embedded
from evoprune.tasks.batches import HeldSplit, Normalisation, Split, StreamedSplit, pixels
from evoprune.tasks.finding import EMBEDDED, IMAGENET, NAMED, Named, default_root, find
from evoprune.tasks.sources import Integers, Rows, decode

HELD_LIMIT = 4 * 2**30  # bytes of decoded images that are kept in memory; more is streamed
TEST_SHARE = 0.2  # of a data set that comes without test images


@dataclass(frozen=True)
class DataConfig:
    """Which images a task uses, and how."""

    name: str
    """A named data set, or a folder of parquet files or class folders."""
    validation: float = 0.1
    """The share of the training images that is split off for validation, stratified by class."""
    split_seed: int = 0
    """Fixes the validation split, and the subset where `images` is a number."""
    images: int | Literal["all"] = "all"
    """Train with this many images at most, stratified by class."""
    normalise: Literal["data", "imagenet", "half", "none"] = "data"
    """Mean and deviation: of this data (where a folder is streamed, ImageNet's), of ImageNet, 0.5 each, or 0
    and 1."""
    label: str | None = None
    """The label column of parquet files, where it is not the usual one."""
    extra: bool = True
    """Whether svhn trains with its extra split too, as published."""
    image_size: int | None = None
    """Scale images to squares of this size; needed where they differ in size."""
    streamed: bool | None = None
    """Decode images anew in every epoch, by worker processes, and keep none; unless given, for imagenet-1k
    and whatever would take more than 4 GiB."""
    workers: int = 2
    """Processes that decode streamed images."""

    def __post_init__(self) -> None:
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation must lie between 0 and 1, got {self.validation:g}")
        if self.split_seed < 0:
            raise ConfigError(f"split_seed must be 0 or more, got {self.split_seed}")
        if self.images != "all" and self.images < 1:
            raise ConfigError(f"images must be 'all' or 1 and more, got {self.images}")
        if self.image_size is not None and self.image_size < 1:
            raise ConfigError(f"image_size must be 1 or more, got {self.image_size}")
        if self.workers < 0:
            raise ConfigError(f"workers must be 0 or more, got {self.workers}")


@dataclass(frozen=True, eq=False)
class Data:
    """A data set's three splits and what its labels mean."""

    name: str
    train: Split
    validation: Split
    classes: tuple[str, ...]
    load_test: Callable[[], Split]

    @cached_property
    def test(self) -> Split:
        """The test images; reading them is put off until a final result is judged."""
        return self.load_test()

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.train.shape

    @cached_property
    def key(self) -> str:
        """A hash of the training and validation images, labels and normalisation."""
        return f"{self.train.key()}-{self.validation.key()}"


def load_data(
    config: DataConfig | str, *, device: str | torch.device = "cpu", folder: str | Path | None = None
) -> Data:
    """The data set that a configuration (or just a name) asks for.

    Named sets are looked for in `folder` (unless given, the one that EVOPRUNE_DATA names), then on the hub.
    """
    config = DataConfig(config) if isinstance(config, str) else config
    device = torch.device(device)
    if config.name in EMBEDDED:
        return _embedded(config, device)
    root = Path(folder) if folder is not None else default_root()
    found = find(config.name, label=config.label, extra=config.extra, root=root)
    named, rows = NAMED.get(config.name), found.train
    classes = _checked_classes(rows, config, named)
    places, own_test = np.arange(len(rows.labels)), np.zeros(0, np.int64)
    if found.test is None:  # some images are put away for the test before anything else is done
        own_test, places = stratified(rows.labels, TEST_SHARE, 0)
    train, validation = _divide(_split(rows, places, config, named, device), config)

    def load_test() -> Split:
        if found.test is None:
            return _like(train, rows, own_test, config)
        test_rows = found.test()
        _checked_classes(test_rows, config, named, like=classes)
        return _like(train, test_rows, np.arange(len(test_rows.labels)), config)

    return Data(config.name, train, validation, classes, load_test)


def named_shape(config: DataConfig) -> tuple[int, int, int] | None:
    """Channels, height and width of a named or embedded data set, without opening it; else None."""
    known = {name: named.shape for name, named in NAMED.items()}
    known |= {"digits": (1, 8, 8), "shapes": (3, embedded.SIDE, embedded.SIDE)}
    if config.name not in known:
        return None
    channels, height, width = known[config.name]
    size = config.image_size
    return (channels, size, size) if size is not None else (channels, height, width)


def stratified(labels: Integers, share: float | int, seed: int) -> tuple[Integers, Integers]:
    """Places split in two, every class in proportion: a share (or number) of them, and the rest.

    Both are in ascending order. Rounding favours the classes with the largest remainders.
    """
    total = len(labels)
    wanted = share if isinstance(share, int) else round(share * total)
    if not 0 < wanted < total:
        told = f" (a share of {share:g})" if not isinstance(share, int) else ""
        raise DataError(f"cannot split {wanted}{told} of {total} images off; expected from 1 to {total - 1}")
    random = np.random.default_rng([seed, 0x5EED])
    values, counts = np.unique(labels, return_counts=True)
    exact = counts * (wanted / total)
    take = np.floor(exact).astype(int)
    short = wanted - int(take.sum())
    take[np.argsort(-(exact - take), kind="stable")[:short]] += 1
    chosen = np.zeros(total, bool)
    for value, count in zip(values, take, strict=True):
        chosen[random.permutation(np.flatnonzero(labels == value))[:count]] = True
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


def _divide(whole: Split, config: DataConfig) -> tuple[Split, Split]:
    """Training and validation images."""
    labels = whole.labels.numpy()
    validation, train = stratified(labels, config.validation, config.split_seed)
    if config.images != "all" and config.images < len(train):
        train = train[stratified(labels[train], config.images, config.split_seed + 1)[0]]
    return whole.take(train), whole.take(validation)


def _embedded(config: DataConfig, device: torch.device) -> Data:
    if config.image_size is not None or config.streamed:
        raise DataError(
            f"{config.name!r} is embedded as it is; image_size and streamed are for images in files"
        )
    statistics, _ = EMBEDDED[config.name]
    if config.name == "digits":
        images, labels = embedded.digits()
        test_places, places = stratified(labels.astype(np.int64), TEST_SHARE, 0)
        classes = tuple(map(str, range(10)))
        test_images, test_labels = images[test_places], labels[test_places]
        images, labels = images[places], labels[places]
    else:
        images, labels = embedded.shapes(embedded.TRAIN, seed=0)
        test_images, test_labels = embedded.shapes(embedded.TEST, seed=1)
        classes = embedded.SHAPES
    normalisation = _normalisation(config, statistics, images.shape[1])

    def held(images: embedded.Bytes, labels: embedded.Bytes) -> HeldSplit:
        return HeldSplit(
            torch.from_numpy(images).to(device), torch.from_numpy(labels.astype(np.int64)), normalisation
        )

    train, validation = _divide(held(images, labels), config)
    return Data(config.name, train, validation, classes, lambda: held(test_images, test_labels))


def _checked_classes(
    rows: Rows, config: DataConfig, named: Named | None, like: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    """The class names; labels must be in their range."""
    if len(rows.labels) == 0:
        raise DataError(f"{rows.name} holds no images")
    names = like if like is not None else rows.classes
    if named is not None and config.label is None:
        names = names if len(names) == named.classes else tuple(map(str, range(named.classes)))
    low, high = int(rows.labels.min()), int(rows.labels.max())
    if low < 0 or high >= len(names):
        raise DataError(f"{rows.name} has labels from {low} to {high}, expected 0 to {len(names) - 1}")
    if len(names) < 2:
        raise DataError(f"{rows.name} has {len(names)} class, expected 2 or more: {', '.join(names)}")
    return names


def _normalisation(config: DataConfig, own: Normalisation, channels: int) -> Normalisation:
    fixed = {
        "imagenet": IMAGENET,
        "half": Normalisation((0.5,) * channels, (0.5,) * channels),
        "none": Normalisation((0.0,) * channels, (1.0,) * channels),
    }
    chosen = fixed.get(config.normalise, own)
    if len(chosen.mean) != channels:
        raise DataError(f"normalise = 'imagenet' is for 3 channels, {config.name!r} has {channels}")
    return chosen


def _split(
    rows: Rows, places: Integers, config: DataConfig, named: Named | None, device: torch.device
) -> Split:
    """The training rows as a split, kept in memory where they fit."""
    shape = _shape(rows, places, config, named)
    streamed = config.streamed
    if streamed is None:
        streamed = (named is not None and named.streamed) or len(places) * math.prod(shape) > HELD_LIMIT
    if streamed:
        own = named.statistics if named is not None else _fallback(shape[0])
        normalisation = _normalisation(config, own, shape[0])
        return StreamedSplit(rows, places, shape, normalisation, device, config.workers)
    images = _decoded(rows, places, shape, config)
    own = named.statistics if named is not None else _measured(images)
    labels = torch.from_numpy(rows.labels[places])
    return HeldSplit(images.to(device), labels, _normalisation(config, own, shape[0]))


def _like(train: Split, rows: Rows, places: Integers, config: DataConfig) -> Split:
    """Test rows, treated as the training images are."""
    if isinstance(train, StreamedSplit):
        return replace(train, rows=rows, places=places)
    assert isinstance(train, HeldSplit)
    images = _decoded(rows, places, train.shape, config).to(train.images.device)
    return HeldSplit(images, torch.from_numpy(rows.labels[places]), train.normalisation)


def _fallback(channels: int) -> Normalisation:
    return IMAGENET if channels == 3 else Normalisation((0.5,) * channels, (0.25,) * channels)


def _measured(images: torch.Tensor) -> Normalisation:
    """Mean and deviation per channel, of up to 10,000 images from everywhere: files lie class by class."""
    sample = images[:: -(-len(images) // 10_000)].double() / 255
    mean, std = sample.mean((0, 2, 3)), sample.std((0, 2, 3), correction=0)
    return Normalisation(
        tuple(round(float(value), 4) for value in mean),
        tuple(round(max(float(value), 1e-3), 4) for value in std),
    )


def _shape(rows: Rows, places: Integers, config: DataConfig, named: Named | None) -> tuple[int, int, int]:
    """Channels, height and width that all images are brought to."""
    if named is not None:
        channels, height, width = named.shape
        if config.image_size is not None:
            return channels, config.image_size, config.image_size
        return channels, height, width
    sizes, grey = set(), True
    for place in places.tolist():
        image = decode(rows.encoded([place])[0], rows.where(place))
        sizes.add(image.size)
        grey = grey and (image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I"))
        if (len(sizes) > 1) if config.image_size is None else not grey:
            break  # more images would change nothing
    channels = 1 if grey else 3
    if config.image_size is not None:
        return channels, config.image_size, config.image_size
    if len(sizes) > 1:
        shown = ", ".join(f"{width}×{height}" for width, height in sorted(sizes))
        raise DataError(
            f"{rows.name} has images of several sizes ({shown}, …); "
            "say with image_size to which squares they are scaled"
        )
    ((width, height),) = sizes
    return channels, height, width


def _decoded(rows: Rows, places: Integers, shape: tuple[int, int, int], config: DataConfig) -> torch.Tensor:
    """uint8 `[image, channel, y, x]`."""
    images: Any = np.empty((len(places), *shape), np.uint8)
    scale = config.image_size is not None
    for number, place in enumerate(places.tolist()):
        images[number] = pixels(rows.encoded([place])[0], shape, rows.where(place), scale=scale)
    return torch.from_numpy(images)
