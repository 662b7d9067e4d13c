"""Scoring from arrays in memory: what is given is checked once, then handed to an executor."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evoprune.errors import MissingOperandError, ScoringError
from evoprune.expression.check import check_scalar, fitting
from evoprune.expression.library import Function, resolve
from evoprune.expression.tree import Expr

Floats = NDArray[np.float64]

LARGEST = 2**30
"""The most entries (8 GiB) that a value of one channel and class may have."""

GIVES = {"maps": ("F", "F+", "F-"), "labels": ("F+", "F-"), "filters": ("W", "W_I"), "batch_norm": ("B",)}
"""Argument to the operands that need it."""


@dataclass(frozen=True)
class Arrays:
    """What is known about a site's channels. Values are float64; what was not given is None."""

    channels: int
    maps: Floats | None  # [image, channel, pixel]
    map_size: tuple[int, int]
    classes: NDArray[np.int64] | None  # [image], 0 … number of classes - 1
    filters: Floats | None  # [channel, weight]
    batch_norm: Floats | None  # [channel, (scale, offset, mean, variance)]

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the axes, by symbol; for `N+` and `N-` the longest."""
        images, _, pixels = (1, 1, 1) if self.maps is None else self.maps.shape
        filters, weights = (1, 1) if self.filters is None else self.filters.shape
        of_classes = np.bincount(self.classes) if self.classes is not None else np.array([images])
        inside, outside = int(of_classes.max()), images - int(of_classes.min())
        return {"N": images, "N+": inside, "N-": outside, "P": pixels, "filters": filters, "weights": weights}


def score_arrays(
    function: str | Expr | Function,
    maps: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    filters: ArrayLike | None = None,
    batch_norm: ArrayLike | None = None,
    dtype: str = "float32",
    *,
    executor: Literal["batched", "reference"] = "batched",
    seed: int = 0,
) -> Floats:
    """Score the channels of one site from arrays; always on all rows given.

    maps: `[image, channel, H, W]`, or `[image, channel]` for a fully connected layer.
    labels: `[image]`, any integers or strings.
    filters: `[channel, c_in, h, w]`, or `[channel, c_in]` for a fully connected layer.
    batch_norm: `[channel, 4]`: scale, offset, running mean, running variance.
    dtype: the precision the arrays are read in; arithmetic and scores are float64.
    executor: `batched` is what everything else uses; `reference` is the plain definition.
    seed: of the function `random`, which draws.

    Returns the scores `[channel]`; a higher score means a more important channel.
    """
    function = resolve(function)
    given = {"maps": maps, "labels": labels, "filters": filters, "batch_norm": batch_norm}
    require(function, [name for name, array in given.items() if array is not None])
    arrays = as_arrays(maps, labels, filters, batch_norm, dtype)
    if function.expr is None:
        return random_scores(arrays.channels, seed)
    check_scalar(function.expr)
    if "F-" in function.expr.operands and arrays.classes is not None and arrays.classes.max() == 0:
        raise ScoringError(
            f"{function.name[:80]} reads F-, the images of other classes, "
            f"but all {arrays.classes.size} labels are the same"
        )
    fitting(function.expr, arrays.sizes, LARGEST)
    if executor == "reference":
        from evoprune.scoring import reference

        scores = reference.score(
            function.expr, arrays.maps, arrays.map_size, arrays.classes, arrays.filters, arrays.batch_norm
        )
    elif executor == "batched":
        from evoprune.scoring import execute

        scores = execute.score(
            function.expr, arrays.maps, arrays.map_size, arrays.classes, arrays.filters, arrays.batch_norm
        )
    else:
        raise ScoringError(f"executor must be 'batched' or 'reference', got {executor!r}")
    wrong = np.flatnonzero(~np.isfinite(scores))
    if wrong.size:
        raise ScoringError(
            f"{function.name[:80]} gives scores that are not finite, for {wrong.size} of "
            f"{arrays.channels} channels (the first is channel {wrong[0]})"
        )
    return scores


def random_scores(channels: int, seed: int, site: str = "") -> Floats:
    """The scores of the baseline `random`: a draw that depends on the seed and the site's name only."""
    return np.random.default_rng([seed, crc32(site.encode())]).random(channels)


def as_arrays(
    maps: ArrayLike | None,
    labels: ArrayLike | None,
    filters: ArrayLike | None,
    batch_norm: ArrayLike | None,
    dtype: str = "float64",
) -> Arrays:
    """Check what is given and bring it into one form."""
    if dtype not in ("float32", "float64"):
        raise ScoringError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    channels: dict[str, int] = {}
    map_size = (1, 1)
    feature_maps = weights = norms = None
    if maps is not None:
        array = _floats("maps", maps, dtype, {4: "[image, channel, H, W]", 2: "[image, channel]"})
        map_size = (array.shape[2], array.shape[3]) if array.ndim == 4 else (1, 1)
        feature_maps = array.reshape(*array.shape[:2], -1)
        channels["maps"] = array.shape[1]
    if filters is not None:
        array = _floats("filters", filters, dtype, {4: "[channel, c_in, h, w]", 2: "[channel, c_in]"})
        weights = array.reshape(array.shape[0], -1)
        channels["filters"] = array.shape[0]
    if batch_norm is not None:
        norms = _floats("batch_norm", batch_norm, dtype, {2: "[channel, 4]"})
        if norms.shape[1] != 4:
            raise ScoringError(
                "batch_norm must be [channel, 4]: scale, offset, running mean, running variance; "
                f"got {list(norms.shape)}"
            )
        channels["batch_norm"] = norms.shape[0]
    if not channels:
        raise ScoringError("nothing to score: give maps, filters or batch_norm")
    if len(set(channels.values())) > 1:
        said = ", ".join(f"{name} has {count}" for name, count in channels.items())
        raise ScoringError(f"the arrays disagree on the number of channels: {said}")
    classes = None
    if labels is not None and feature_maps is not None:  # they say nothing about parameters
        classes = _classes(labels, feature_maps.shape[0])
    return Arrays(next(iter(channels.values())), feature_maps, map_size, classes, weights, norms)


def require(function: Function, given: Collection[str]) -> None:
    """Raise where the function reads an operand whose argument is not given."""
    reads = frozenset() if function.expr is None else function.expr.operands
    lacking = {
        argument: [name for name in operands if name in reads]
        for argument, operands in GIVES.items()
        if argument not in given
    }
    said = [f"{argument}=… (for {', '.join(names)})" for argument, names in lacking.items() if names]
    if said:
        raise MissingOperandError(f"{function.name[:80]} needs {' and '.join(said)}, not given")


def _floats(name: str, given: ArrayLike, dtype: str, layouts: dict[int, str]) -> Floats:
    expected = " or ".join(layouts.values())
    try:
        array = np.asarray(_plain(given))
        if array.dtype.kind not in "fiub":
            raise TypeError(f"entries of type {array.dtype}")
        with np.errstate(over="ignore"):  # what overflows is refused below
            array = array.astype(dtype).astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ScoringError(f"{name} must be an array of numbers {expected}: {error}") from None
    if array.ndim not in layouts:
        raise ScoringError(f"{name} must be {expected}, got an array of shape {list(array.shape)}")
    if array.size == 0:
        raise ScoringError(
            f"{name} must be {expected} with at least one entry, got shape {list(array.shape)}"
        )
    if not np.isfinite(array).all():
        place = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise ScoringError(
            f"{name} holds {int((~np.isfinite(array)).sum())} NaN or infinite entries as {dtype}, "
            f"the first at {place} of {expected}"
        )
    return array


def _classes(labels: ArrayLike, images: int) -> NDArray[np.int64]:
    try:
        array = np.asarray(_plain(labels))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ScoringError(f"labels must be one per image, [{images}] here: {error}") from None
    if array.shape != (images,):
        raise ScoringError(f"labels must be one per image, [{images}] here; got shape {list(array.shape)}")
    if array.dtype.kind == "O" and not any(
        all(isinstance(each, kind) for each in array) for kind in (str, Integral)
    ):
        raise ScoringError("labels must be integers or strings")
    if array.dtype.kind not in "iubUSO":
        raise ScoringError(f"labels must be integers or strings, got {array.dtype}")
    return np.asarray(np.unique(array, return_inverse=True)[1], dtype=np.int64)


def _plain(given: Any) -> Any:
    """A tensor that lives elsewhere, has gradients or is in bfloat16 as what NumPy can read."""
    if not hasattr(given, "detach"):
        return given
    given = given.detach().cpu()
    return given.float() if str(given.dtype) == "torch.bfloat16" else given
