"""Where images come from: parquet files, the Hugging Face hub, folders of class folders.

Each source is a *row source*: the labels of all rows in memory, and the encoded image of any row on demand.
`groups` says which rows are cheap to read one after the other (a parquet row group is read as a whole).
"""

from __future__ import annotations

import io
import json
import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from evoprune.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image

Integers = npt.NDArray[np.int64]

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label", "labels")
IMAGE_SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm",
)  # fmt: skip
SHARD = re.compile(r"-(\d+)-of-(\d+)(-[0-9a-f]+)?\.parquet")  # older ones of the hub end in a hash


class Rows(Protocol):
    """Encoded images with their labels."""

    name: str
    labels: Integers  # [row]
    classes: tuple[str, ...]
    groups: list[Integers]  # the rows that are cheap to read together

    def encoded(self, rows: Sequence[int]) -> list[bytes]:
        """The image files of these rows, as bytes."""

    def where(self, row: int) -> str:
        """Which image that is, for a message."""


class ParquetRows:
    """Rows of parquet files in the Hugging Face image layout: a struct{bytes, path} and a label column."""

    def __init__(self, files: Sequence[Path], *, name: str, label: str | None = None, keep: int = 32) -> None:
        """`label` must be there; without it the first of the common names that is."""
        self.name = name
        self._files = list(files)
        self._keep = keep  # how many row groups stay in memory
        self._groups: list[tuple[Path, int, int]] = []  # file, row group, first row
        self._cache: OrderedDict[int, list[bytes]] = OrderedDict()
        labels, first = [], 0
        for file in self._files:
            parquet = _open_parquet(file)
            columns = parquet.schema_arrow.names
            self._image = _column(columns, IMAGE_COLUMNS, file)
            self._label = _column(columns, (label,) if label else LABEL_COLUMNS, file)
            labels.append(_labels(parquet, self._label, file))
            for group in range(parquet.num_row_groups):
                self._groups.append((file, group, first))
                first += parquet.metadata.row_group(group).num_rows
            self.classes = _class_names(parquet.schema_arrow.metadata, self._label)
        self.labels = np.concatenate(labels) if labels else np.zeros(0, np.int64)
        edges = [start for _, _, start in self._groups] + [first]
        self._starts = np.asarray(edges[:-1], dtype=np.int64)
        self.groups = [np.arange(a, b) for a, b in pairwise(edges)]
        self.classes = self.classes or _numbered(self.labels)

    def encoded(self, rows: Sequence[int]) -> list[bytes]:
        found = []
        for row in rows:
            group = int(np.searchsorted(self._starts, row, side="right")) - 1
            found.append(self._group(group)[int(row) - int(self._starts[group])])
        return found

    def where(self, row: int) -> str:
        return f"{self.name}, image {row}"

    def _group(self, number: int) -> list[bytes]:
        """The encoded images of one row group; the last few groups stay in memory."""
        if number in self._cache:
            self._cache.move_to_end(number)
            return self._cache[number]
        file, group, _ = self._groups[number]
        table = _open_parquet(file).read_row_group(group, columns=[self._image])
        images = [_bytes_of(entry, file) for entry in table[self._image].to_pylist()]
        self._cache[number] = images
        while len(self._cache) > self._keep:
            self._cache.popitem(last=False)
        return images


class HubRows:
    """Rows of a data set that the `datasets` library fetched; it keeps them memory-mapped on disk."""

    def __init__(self, parts: Sequence[Any], *, name: str, label: str | None = None) -> None:
        import datasets

        self.name = name
        self._parts = []
        labels = []
        for part in parts:
            image = _column(part.column_names, IMAGE_COLUMNS, name)
            column = _column(part.column_names, (label,) if label else LABEL_COLUMNS, name)
            labels.append(np.asarray(part.with_format("numpy")[column][:], dtype=np.int64))
            plain = part.select_columns([image]).cast_column(image, datasets.Image(decode=False))
            self._parts.append((plain, image))
            self.classes = tuple(getattr(part.features[column], "names", None) or ())
        self.labels = np.concatenate(labels)
        self._starts = np.cumsum([0, *(len(part) for part in labels)])
        total = len(self.labels)
        self.groups = [np.arange(first, min(first + 1000, total)) for first in range(0, total, 1000)]
        self.classes = self.classes or _numbered(self.labels)

    def encoded(self, rows: Sequence[int]) -> list[bytes]:
        found = []
        for row in rows:
            number = int(np.searchsorted(self._starts, row, side="right")) - 1
            part, image = self._parts[number]
            found.append(_bytes_of(part[int(row) - int(self._starts[number])][image], self.name))
        return found

    def where(self, row: int) -> str:
        return f"{self.name}, image {row}"


class FolderRows:
    """Rows of a folder that has one folder per class, each full of image files."""

    def __init__(self, folder: Path, *, classes: Sequence[str] | None = None) -> None:
        self.name = folder.name
        folders = [
            entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__"))
        ]
        found = sorted(entry.name for entry in folders)
        self.classes = tuple(found if classes is None else classes)
        if set(found) - set(self.classes):
            raise DataError(
                f"{folder} has the classes {', '.join(sorted(set(found) - set(self.classes)))} "
                f"that the training images have not: {', '.join(self.classes)}"
            )
        self._paths: list[Path] = []
        labels = []
        for label, name in enumerate(self.classes):
            images = sorted(path for path in _files_below(folder / name) if _is_image(path))
            if not images and classes is None:
                raise DataError(f"{folder / name} holds no images; expected {', '.join(IMAGE_SUFFIXES)}")
            self._paths += images
            labels += [label] * len(images)
        self.labels = np.asarray(labels, dtype=np.int64)
        total = len(labels)
        self.groups = [np.arange(first, min(first + 1000, total)) for first in range(0, total, 1000)]

    def encoded(self, rows: Sequence[int]) -> list[bytes]:
        try:
            return [self._paths[int(row)].read_bytes() for row in rows]
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}") from None

    def where(self, row: int) -> str:
        return str(self._paths[row])


def parquet_files(folder: Path, split: str, config: str = "") -> list[Path]:
    """The parquet files of a split: `split.parquet`, or all its shards, here or one folder down.

    The hub keeps them one folder down, in a folder named after the configuration or in `data`; those that it
    converted itself are `split/0000.parquet` and so on.
    """
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []
    preferred = [folder, folder / config, folder / "data"]
    for place in [*preferred, *(path for path in inner if path not in preferred)]:
        if (place / f"{split}.parquet").is_file():
            return [place / f"{split}.parquet"]
        shards = {path: SHARD.fullmatch(path.name.removeprefix(split)) for path in place.glob(f"{split}-*")}
        numbers = {path: (int(match[1]), int(match[2])) for path, match in shards.items() if match}
        if not numbers:
            converted = [path for path in (place / split).glob("*.parquet") if path.stem.isdecimal()]
            numbers = {path: (int(path.stem), len(converted)) for path in converted}
        if numbers:
            _check_shards(numbers, split)
            return sorted(numbers, key=lambda path: numbers[path])
    return []


def _check_shards(numbers: Mapping[Path, tuple[int, int]], split: str) -> None:
    """A missing shard would silently make a smaller data set, one of another set a mixture."""
    there, total = [number for number, _ in numbers.values()], max(of for _, of in numbers.values())
    if sorted(there) == list(range(total)):
        return
    missing = sorted(set(range(total)) - set(there))
    shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
    what = f"but {shown} are not there" if missing else f"but {len(there)} are there: some twice"
    raise DataError(f"{min(numbers).parent}: the split {split!r} has {total} files, {what}")


def is_class_folder_tree(folder: Path) -> bool:
    """Whether the folder has at least one folder with images in it."""
    return folder.is_dir() and any(_is_class_folder(entry) for entry in folder.iterdir())


def _is_class_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".") and any(map(_is_image, _files_below(entry)))


def _files_below(folder: Path) -> list[Path]:
    return [Path(at) / name for at, _, names in os.walk(folder) for name in names]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def _open_parquet(file: Path) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(f"reading {file}", "data") from None
    try:
        return parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read as parquet: {error}") from None


def _labels(parquet: Any, column: str, file: Path) -> Integers:
    from pyarrow import types

    kind = parquet.schema_arrow.field(column).type
    if not (types.is_integer(kind) or types.is_boolean(kind)):
        raise DataError(
            f"{file}: the column {column!r} must hold whole numbers, one per image; it has {kind}"
        )
    found = parquet.read(columns=[column])[column]
    if found.null_count:
        raise DataError(f"{file}: the column {column!r} lacks the labels of {found.null_count} images")
    return np.asarray(found.to_numpy(), dtype=np.int64)


def _column(columns: Sequence[str], wanted: Sequence[str], where: object) -> str:
    for name in wanted:
        if name in columns:
            return name
    raise DataError(f"{where}: expected a column {' or '.join(wanted)}, there is {', '.join(columns)}")


def _bytes_of(entry: Any, where: object) -> bytes:
    content = entry.get("bytes") if isinstance(entry, dict) else entry
    if not isinstance(content, bytes) or not content:
        raise DataError(
            f"{where}: expected images as struct{{bytes, path}} with their bytes, got {entry!r:.80}"
        )
    return content


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> tuple[str, ...]:
    """The class names that `datasets` leaves in a parquet schema, if it did."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return ()


def _numbered(labels: Integers) -> tuple[str, ...]:
    return tuple(str(label) for label in range(int(labels.max(initial=-1)) + 1))


def decode(content: bytes, where: str) -> Image:
    """An encoded image, opened; pixels are read when they are used."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtraError(f"reading {where}", "data") from None
    try:
        return Image.open(io.BytesIO(content))
    except UnidentifiedImageError:
        raise DataError(f"{where}: not an image of a known kind ({len(content)} bytes)") from None
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        raise DataError(f"{where}: the image is damaged: {error}") from None


def eight_bit(image: Image, where: str) -> Image:
    """The image with pixels from 0 to 255; Pillow itself would cut deeper ones off at 255."""
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA")  # the way that Pillow wants it, or it warns
    if image.mode == "F":
        raise DataError(f"{where}: expected pixels of 8 or 16 bits, got floating point numbers")
    if not image.mode.startswith("I"):
        return image
    from PIL.Image import fromarray

    deep = np.asarray(image)
    if deep.min() < 0 or deep.max() >= 2**16:
        raise DataError(f"{where}: expected pixels of 8 or 16 bits, got {deep.min()} to {deep.max()}")
    return fromarray((deep >> 8).astype(np.uint8))
