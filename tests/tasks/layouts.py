"""Small parquet files in the layouts of the hub, and folders of images."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def png(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return buffer.getvalue()


def pictures(count: int, shape: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, shape, dtype=np.uint8) for _ in range(count)]


def write_parquet(
    path: Path,
    images: list[np.ndarray],
    labels: dict[str, list[int]],
    *,
    image: str = "image",
    names: dict[str, list[str]] | None = None,
    row_group_size: int = 10,
) -> None:
    """One file as `datasets` writes it: a struct column, label columns, features in the schema."""
    features: dict[str, object] = {image: {"_type": "Image"}}
    for column in labels:
        features[column] = {"names": (names or {}).get(column, []), "_type": "ClassLabel"}
    cells = [{"bytes": png(array), "path": f"{i}.png"} for i, array in enumerate(images)]
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {image: pa.array(cells, struct), **{name: pa.array(v, pa.int64()) for name, v in labels.items()}}
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)


def cifar100(root: Path, train: int = 400, test: int = 100) -> Path:
    """`img`, `fine_label` and `coarse_label`, one folder down."""
    fine = [f"class {number}" for number in range(100)]
    for split, count in (("train", train), ("test", test)):
        labels = [number % 100 for number in range(count)]
        write_parquet(
            root / "cifar100" / "cifar100" / f"{split}-00000-of-00001.parquet",
            pictures(count, (32, 32, 3), seed=count),
            {"fine_label": labels, "coarse_label": [label // 5 for label in labels]},
            image="img",
            names={"fine_label": fine, "coarse_label": [f"super {number}" for number in range(20)]},
        )
    return root


def svhn(root: Path, extra: int = 60, config: str = "cropped_digits") -> Path:
    for split, count, shards in (("train", 40, 1), ("test", 20, 1), ("extra", extra, 2)):
        for shard in range(shards if count else 0):
            each = count // shards
            write_parquet(
                root / "svhn" / config / f"{split}-{shard:05d}-of-{shards:05d}.parquet",
                pictures(each, (32, 32, 3), seed=count + shard),
                {"label": [number % 10 for number in range(each)]},
                names={"label": [str(digit) for digit in range(10)]},
            )
    return root


def imagenet(root: Path, train: int = 60, validation: int = 20, shards: int = 3) -> Path:
    """JPEG-like sizes of all sorts, some grey; 1000 class names; the test split's labels are -1."""
    random = np.random.default_rng(0)
    names = {"label": [f"n{number:08d}" for number in range(1000)]}

    def sized(count: int) -> list[np.ndarray]:
        sizes = random.integers(40, 90, (count, 2))
        return [
            random.integers(0, 256, (high, wide, 3) if number % 5 else (high, wide), dtype=np.uint8)
            for number, (high, wide) in enumerate(sizes.tolist())
        ]

    for split, count, parts in (("train", train, shards), ("validation", validation, 2), ("test", 4, 1)):
        each = count // parts
        for shard in range(parts):
            labels = [-1] * each if split == "test" else [number % 10 * 100 for number in range(each)]
            path = root / "imagenet-1k" / "data" / f"{split}-{shard:05d}-of-{parts:05d}.parquet"
            write_parquet(path, sized(each), {"label": labels}, names=names, row_group_size=7)
    return root


def class_folders(root: Path, classes: dict[str, int], shape: tuple[int, ...] = (12, 12, 3)) -> Path:
    for seed, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for number, array in enumerate(pictures(count, shape, seed)):
            (root / name / f"{number:03d}.png").write_bytes(png(array))
    return root


def plain(root: Path, name: str, shape: tuple[int, ...], count: int = 120) -> Path:
    """`train.parquet` and `test.parquet` of ten classes."""
    for seed, split in enumerate(("train", "test")):
        labels = {"label": [number % 10 for number in range(count)]}
        write_parquet(root / name / f"{split}.parquet", pictures(count, shape, seed), labels)
    return root


def everything(root: Path) -> Path:
    """All data sets of the package's tasks, small."""
    plain(root, "mnist", (28, 28))
    plain(root, "fashion_mnist", (28, 28))
    plain(root, "cifar10", (32, 32, 3))
    cifar100(root)
    return imagenet(root)
