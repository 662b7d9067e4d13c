"""Finding a data set: the named ones in a local copy or on the hub, any other in a folder."""

from __future__ import annotations

import os
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeGuard

from evoprune.config import unknown_key
from evoprune.errors import DataError, DataNameError, MissingExtraError
from evoprune.tasks.batches import Normalisation
from evoprune.tasks.sources import (
    FolderRows,
    HubRows,
    ParquetRows,
    Rows,
    is_class_folder_tree,
    parquet_files,
)

FOLDER_VARIABLE = "EVOPRUNE_DATA"
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Named:
    """A data set of the Hugging Face hub, in the words of its files."""

    hub: str
    config: str
    label: str
    train: tuple[str, ...]
    test: str
    shape: tuple[int, int, int]  # channel, y, x
    classes: int
    statistics: Normalisation
    streamed: bool = False


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

# fmt: off
NAMED: dict[str, Named] = {
    "mnist": Named("ylecun/mnist", "mnist", "label", ("train",), "test", (1, 28, 28), 10,
                   Normalisation((0.1307,), (0.3081,))),
    "fashion_mnist": Named("zalando-datasets/fashion_mnist", "fashion_mnist", "label", ("train",), "test",
                           (1, 28, 28), 10, Normalisation((0.2860,), (0.3530,))),
    "cifar10": Named("uoft-cs/cifar10", "plain_text", "label", ("train",), "test", (3, 32, 32), 10,
                     Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "cifar100": Named("uoft-cs/cifar100", "cifar100", "fine_label", ("train",), "test", (3, 32, 32), 100,
                      Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))),
    "svhn": Named("ufldl-stanford/svhn", "cropped_digits", "label", ("train", "extra"), "test",
                  (3, 32, 32), 10, Normalisation((0.4309, 0.4302, 0.4463), (0.1965, 0.1983, 0.1994))),
    "imagenet-1k": Named("ILSVRC/imagenet-1k", "default", "label", ("train",), "validation", (3, 224, 224),
                         1000, IMAGENET, streamed=True),
}
EMBEDDED: dict[str, tuple[Normalisation, str]] = {
    "digits": (Normalisation((0.2873,), (0.3539,)), "1,797 handwritten digits, 8×8"),
    "shapes": (Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)), "8,000 drawn shapes, 32×32 RGB"),
}
# fmt: on


@dataclass(frozen=True)
class Found:
    """The rows of a data set: `train`, and `test` on demand where there are test images."""

    train: Rows
    test: Callable[[], Rows] | None


def find(name: str, *, label: str | None = None, extra: bool = True, root: Path | None = None) -> Found:
    """A named data set, a data set in the folder `root`, or a folder of parquet files or class folders."""
    if name in NAMED:
        named = NAMED[name]
        train = named.train if extra else tuple(part for part in named.train if part != "extra")
        return Found(
            _named_rows(name, "train", train, label, root),
            lambda: _named_rows(name, "test", (named.test,), label, root),
        )
    for place in [Path(name), *([root / name] if root else [])]:
        if place.is_dir():
            return _in_folder(place, label)
    own = sorted(path.name for path in root.iterdir() if _has_train(path)) if _is_dir(root) else []
    known = [*EMBEDDED, *NAMED, *(other for other in own if other not in NAMED)]
    raise DataNameError(unknown_key(name, known, what="data set or folder"))


def default_root() -> Path | None:
    """The folder of local copies that EVOPRUNE_DATA names."""
    value = os.environ.get(FOLDER_VARIABLE)
    return Path(value) if value else None


def _is_dir(root: Path | None) -> TypeGuard[Path]:
    return root is not None and root.is_dir()


def _has_train(folder: Path) -> bool:
    try:
        return bool(parquet_files(folder, "train"))
    except DataError:  # some of its files are missing: it is there all the same
        return True


def _in_folder(place: Path, label: str | None) -> Found:
    if files := parquet_files(place, "train"):
        train = ParquetRows(files, name=f"{place.name} train", label=label)
        for split in ("test", "validation", "val"):
            if test := parquet_files(place, split):
                return Found(train, partial(ParquetRows, test, name=f"{place.name} test", label=label))
        return Found(train, None)
    if is_class_folder_tree(place / "train"):
        rows = FolderRows(place / "train")
        for split in ("test", "validation", "val"):
            if (place / split).is_dir():
                return Found(rows, partial(FolderRows, place / split, classes=rows.classes))
        return Found(rows, None)
    if is_class_folder_tree(place):
        return Found(FolderRows(place), None)
    names = sorted(path.name for path in place.iterdir())
    listing = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "nothing"
    raise DataError(
        f"{place} holds no images that can be used; expected train.parquet and test.parquet, or one folder "
        f"per class (in train/ and test/, or by themselves); it holds {listing}"
    )


def _named_rows(name: str, split: str, parts: tuple[str, ...], label: str | None, root: Path | None) -> Rows:
    """The rows of a named data set, from the local copy if there is one, else from the hub."""
    named = NAMED[name]
    found = {part: parquet_files(root / name, part, named.config) for part in parts} if root else {}
    absent = [part for part in parts if not found.get(part)]
    if not absent:
        files = [file for part in parts for file in found[part]]
        return ParquetRows(files, name=f"{name} {split}", label=label)
    if root and any(parquet_files(root / name, part, named.config) for part in (*named.train, named.test)):
        hint = "; `extra = false` does without it" if absent == ["extra"] else ""
        raise DataError(f"{root}/{name} lacks the split {', '.join(absent)}{hint}")
    return _hub_rows(name, parts, label or named.label, root)


def _hub_rows(name: str, parts: tuple[str, ...], label: str, root: Path | None) -> Rows:
    named = NAMED[name]
    looked = f"in {root / name}" if root else f"locally, as {FOLDER_VARIABLE} is not set"
    try:
        import datasets
    except ImportError:
        what = f"data set {name!r} was not found {looked}, and fetching it"
        raise MissingExtraError(what, "data") from None
    try:
        if not Path(named.hub).is_dir():
            _check_network(named.hub)
        tables = [datasets.load_dataset(named.hub, named.config, split=part) for part in parts]
    except Exception as error:  # besides its own, the library lets through those of what it stands on
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"data set {name!r} was not found {looked}, and could not be fetched from the hub "
            f"({type(error).__name__}: {reason:.200}). Where there is network, `hf download {named.hub} "
            f"--repo-type dataset --local-dir DIR/{name}` fetches it (some sets want you logged in, with "
            f"their terms accepted); then set {FOLDER_VARIABLE}=DIR. The layout is DIR/{name}/SPLIT.parquet "
            f"or SPLIT-00000-of-0000N.parquet, with the splits {', '.join([*named.train, named.test])}. "
            f"Without any download there is {' and '.join(EMBEDDED)}"
        ) from None
    return HubRows(tables, name=name, label=label)


def _check_network(hub: str) -> None:
    """Fail at once where the hub, or the proxy before it, does not answer: the library would try again and
    again for half a minute, if not for ever."""
    from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE

    if Path(HF_HUB_CACHE, f"datasets--{hub.replace('/', '--')}", "snapshots").is_dir():
        return  # what was fetched once needs no network
    place = urllib.parse.urlsplit(ENDPOINT)
    proxy = urllib.request.getproxies().get(place.scheme)
    if proxy and not urllib.request.proxy_bypass(place.hostname or ""):
        place = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
    try:
        address = place.hostname or "", place.port or (80 if place.scheme == "http" else 443)
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConnectionError(f"no network: {place.hostname}: {error}") from None
