"""`evoprune select`: feature selection on the pixels of images, drawn as in the paper."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro
from numpy.typing import NDArray

from evoprune.commands._parsing import plain
from evoprune.errors import ConfigError, DataError

if TYPE_CHECKING:
    from evoprune.expression.library import Function

MEMORY = 2**31
"""Bytes of pixels that are held at once."""


def main(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    functions: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FUNCTION [FUNCTION …]")] = ("xi_star", "di"),
    keep: float = 0.4,
    images: int | Literal["all"] = "all",
    sample: int = 1000,
    seed: int = 0,
    output: Annotated[Path | None, plain("FOLDER")] = None,
) -> None:
    """Select pixels by pruning functions, and draw what each keeps: the mean image, kept red, dropped blue.

    Every pixel is a feature, a channel whose map has one entry. Values are from 0 to 1; colour is averaged.

    Args:
        data: A data set by name (mnist, digits, …), or a folder of images.
        functions: Names of the library, or texts of your own in quotes; they read F, F+ and F-.
        keep: How many pixels stay: a share in (0, 1), or a count.
        images: How many training images are used at most, stratified by class.
        sample: Images in the sample for functions that need single ones, such as mmd.
        seed: Of that sample, and of the function random.
        output: The folder for selection.png, selection.svg and selection.csv; select-DATA unless given.

    Examples:
        evoprune select digits --functions xi_star di "var_g(F+)" --keep 20
        evoprune select mnist --images 10000
    """
    from evoprune.expression.library import resolve
    from evoprune.files import write
    from evoprune.report.figures import plane, save
    from evoprune.report.pixels import selection
    from evoprune.scoring.features import check_reads_features, score_features

    if not functions:
        raise ConfigError("--functions needs at least one function")
    if sample < 2:
        raise ConfigError(f"--sample must be 2 or more, got {sample}")
    plane()  # without the extra this fails, and nothing is scored for it
    chosen = list({found.name: found for found in map(resolve, functions)}.values())
    for function in chosen:
        check_reads_features(function)
    folder = output if output is not None else Path(f"select-{Path(data).resolve().name}")
    pixels, labels = _pixels(data, images)
    folder.mkdir(parents=True, exist_ok=True)  # before anything is scored: it may be refused
    rows, height, width = pixels.shape
    count = _count(keep, height * width)
    features = pixels.reshape(rows, -1)
    kept: dict[str, NDArray[np.bool_]] = {}
    scores: dict[str, NDArray[np.float64]] = {}
    print(f"{data}: {rows:,} images of {height}×{width}; {count} of {height * width} pixels stay")
    for function in chosen:
        scored = score_features(function, features, labels, sample=sample, seed=seed)
        mask = np.zeros(height * width, dtype=np.bool_)
        mask[np.argsort(-scored.scores, kind="stable")[:count]] = True
        kept[function.name] = mask.reshape(height, width)
        scores[function.name] = scored.scores
        mean = features[:, mask].mean()
        alike = "" if np.ptp(scored.scores) else ", all alike: the first pixels stay"
        how = _how(scored.mode, sample)
        print(f"  {function.name}: mean value of what stays {mean:.3f}, scored {how}{alike}")
    figure = selection(pixels.mean(0, dtype=np.float64), kept)
    paths = [*save(figure, folder / "selection"), folder / "selection.csv"]
    write(paths[-1], _csv(chosen, scores, kept, width), sync=False)
    print(f"written: {', '.join(map(str, paths))}")


def _pixels(name: str, images: int | Literal["all"]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The training images `[image, y, x]` from 0 to 1, and their classes."""
    from evoprune.tasks.datasets import DataConfig, load_data

    split = load_data(DataConfig(name, normalise="none", images=images)).train
    _, height, width = split.shape
    if (size := 4 * len(split) * height * width) > MEMORY:
        raise DataError(
            f"{len(split):,} images of {height}×{width} take {size / 2**30:.1f} GiB, and "
            f"{MEMORY / 2**30:.0f} are the limit; use fewer with --images"
        )
    pixels = np.empty((len(split), height, width), np.float32)
    start = 0
    for batch, _ in split.ordered(1024):
        pixels[start : start + len(batch)] = batch.mean(1).cpu().numpy()
        start += len(batch)
    labels = np.unique(split.labels.numpy(), return_inverse=True)[1]
    return pixels, labels.astype(np.int64)


def _count(keep: float, pixels: int) -> int:
    if 0 < keep < 1:
        return max(1, round(keep * pixels))
    if keep == int(keep) and 1 <= keep <= pixels:
        return int(keep)
    raise ConfigError(f"--keep is a share in (0, 1) or a whole number from 1 to {pixels}, got {keep:g}")


def _how(mode: str, sample: int) -> str:
    told = {"streamed": "on all images", "sample": f"on a sample of {sample} images"}
    return told.get(mode, "by a draw")


def _csv(
    functions: list[Function],
    scores: dict[str, NDArray[np.float64]],
    kept: dict[str, NDArray[np.bool_]],
    width: int,
) -> str:
    """A row for every function and pixel."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["function", "y", "x", "score", "kept"])
    for function in functions:
        marks = kept[function.name].ravel()
        for place, score in enumerate(scores[function.name]):
            writer.writerow([function.name, *divmod(place, width), repr(float(score)), int(marks[place])])
    return text.getvalue()
