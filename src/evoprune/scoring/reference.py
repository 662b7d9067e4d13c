"""The definition of the language, in plain NumPy: one channel and one class at a time.

Slow and readable on purpose. `scoring/execute.py` must agree with it and shares no code with it.
A value is a float64 array of 0, 1 or 2 dimensions: a scalar, a vector or a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from evoprune.expression.check import infer
from evoprune.expression.shapes import Shape
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import DEFAULT_RHO, TINY

Value = NDArray[np.float64]


def score(
    expr: Expr,
    maps: Value | None,
    map_size: tuple[int, int],
    classes: NDArray[np.int64] | None,
    filters: Value | None,
    batch_norm: Value | None,
) -> Value:
    """Scores `[channel]` from maps `[image, channel, pixel]`, filters `[channel, weight]`,
    batch_norm `[channel, 4]` and classes `[image]`.

    A label-aware expression is evaluated for each class, one against the rest, and averaged.
    """
    arrays = [each for each in (filters, batch_norm) if each is not None]
    channels = maps.shape[1] if maps is not None else arrays[0].shape[0]
    shapes = infer(expr)
    scores = np.zeros(channels)
    for channel in range(channels):
        operands: dict[str, Value] = {}
        if filters is not None:
            operands["W"], operands["W_I"] = filters, filters[channel]
        if batch_norm is not None:
            operands["B"] = batch_norm[channel]
        if maps is not None:
            operands["F"] = maps[:, channel]
        if maps is None or classes is None or not expr.is_label_aware:
            scores[channel] = evaluate(expr, operands, map_size, shapes)
            continue
        of_classes = []
        for k in np.unique(classes):
            parts = {"F+": maps[classes == k, channel], "F-": maps[classes != k, channel]}
            of_classes.append(evaluate(expr, operands | parts, map_size, shapes))
        scores[channel] = np.mean(of_classes)
    return scores


def evaluate(
    expr: Expr, operands: dict[str, Value], map_size: tuple[int, int], shapes: dict[Expr, Shape] | None = None
) -> Value:
    """The value of an expression for one channel and one class."""
    shapes = infer(expr) if shapes is None else shapes
    values: dict[Expr, Value] = {}
    with np.errstate(all="ignore"):
        for node in expr.distinct():
            if node.args:
                values[node] = apply(node, [values[arg] for arg in node.args], map_size, shapes)
            else:
                values[node] = np.asarray(operands[node.name], dtype=np.float64)
    return values[expr]


def apply(node: Expr, args: list[Value], map_size: tuple[int, int], shapes: Mapping[Expr, Shape]) -> Value:
    """The value of one operator from the values of its operands; `shapes` knows those of its subtrees."""
    value: Value
    if node.name == "ridge":
        assert node.rho is not None
        value = args[0] + node.rho * (np.eye(len(args[0])) if shapes[node.args[0]].is_square else 1.0)
    elif node.name == "inv":
        ridged = node.args[0].name == "ridge" and shapes[node.args[0].args[0]].is_square
        value = _inv(args[0], 0.0 if ridged else DEFAULT_RHO)
    elif node.name == "tr":
        value = _tr(args[0], map_size if shapes[node.args[0]].maps else None)
    else:
        value = _OPERATORS[node.name](*args)
    return np.asarray(value, dtype=np.float64)


# Elementwise


def _padded(a: Value, b: Value, fill: float) -> tuple[Value, Value]:
    """Two values brought to one shape: a vector beside a matrix is put in each of its rows."""
    if a.ndim == 0 or b.ndim == 0:
        return a, b
    if a.ndim < b.ndim:
        a = np.stack([a] * len(b))
    if b.ndim < a.ndim:
        b = np.stack([b] * len(a))
    if a.shape == b.shape:
        return a, b
    shape = np.maximum(a.shape, b.shape)
    one, other = (
        np.pad(x, [(0, n - m) for m, n in zip(x.shape, shape, strict=True)], constant_values=fill)
        for x in (a, b)
    )
    return one, other


def _add(a: Value, b: Value) -> Value:
    a, b = _padded(a, b, 0.0)
    return a + b


def _sub(a: Value, b: Value) -> Value:
    a, b = _padded(a, b, 0.0)
    return a - b


def _mul(a: Value, b: Value) -> Value:
    a, b = _padded(a, b, 1.0)
    return a * b


def _div(a: Value, b: Value) -> Value:
    a, b = _padded(a, b, 1.0)
    return np.where(np.abs(b) < TINY, 0.0, a / b)


# Matrix


def _matmul(a: Value, b: Value) -> Value:
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    inner = min(a.shape[-1], b.shape[0])
    return np.asarray(a[..., :inner] @ b[:inner])


def _inv(a: Value, rho: float) -> Value:
    if a.ndim < 2:
        return _div(np.asarray(1.0), a)
    side = min(a.shape)
    try:
        return np.asarray(np.linalg.inv(a[:side, :side] + rho * np.eye(side)), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.full((side, side), np.nan)


def _dot(a: Value, b: Value) -> Value:
    a, b = a.ravel(), b.ravel()
    n = min(len(a), len(b))
    return np.asarray(np.sum(a[:n] * b[:n]))


def _outprod(a: Value, b: Value) -> Value:
    return np.outer(a.ravel(), b.ravel())


def _tr(a: Value, map_size: tuple[int, int] | None) -> Value:
    if map_size is not None:
        images = a.reshape(*a.shape[:-1], *map_size)
        return np.asarray(np.trace(images, axis1=-2, axis2=-1))
    if a.ndim == 2:
        return np.asarray(np.trace(a))
    return a[0] if a.ndim else a


def _tran(a: Value) -> Value:
    return a.T


# Statistics and special operators: a vector is so many rows of one entry, a scalar is one row


def _rows(a: Value) -> Value:
    return a if a.ndim == 2 else a.reshape(-1, 1)


def _over_all(statistic: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda a: statistic(a.ravel())


def _over_rows(statistic: Callable[..., Value]) -> Callable[[Value], Value]:
    return lambda a: statistic(a, axis=0) if a.ndim else statistic(a)


def _var(a: Value, axis: int | None = None) -> Value:
    """The population's variance; of equal entries exactly 0, not what rounding leaves of their mean."""
    equal = np.max(a, axis=axis) == np.min(a, axis=axis)
    return np.asarray(np.where(equal, 0.0, np.var(a, axis=axis)))


def _std(a: Value, axis: int | None = None) -> Value:
    return np.asarray(np.sqrt(_var(a, axis)))


def _count_g(a: Value) -> Value:
    return np.asarray(a.size)


def _count_s(a: Value) -> Value:
    return np.asarray(len(_rows(a)))


def _distances(a: Value, b: Value) -> Value:
    return np.asarray([np.sqrt(np.sum((x - b) ** 2, axis=1)) for x in a])


def _rbf(a: Value, b: Value) -> Value:
    a, b = _rows(a), _rows(b)
    width = max(a.shape[1], b.shape[1])
    a, b = (np.pad(x, [(0, 0), (0, width - x.shape[1])]) for x in (a, b))
    return np.asarray(np.exp(-(_distances(a, b) ** 2) / 2))


def _geo(a: Value) -> Value:
    rows = _rows(a)
    total = _distances(rows, rows).sum(axis=1)
    # Sums that are equal on paper differ by rounding; the first of them is meant.
    best = int(np.argmax(total <= total.min() * (1 + 1e-10)))
    return a[best] if a.ndim else a


def _slice(a: Value) -> Value:
    return a[0] if a.ndim else a


_OPERATORS: dict[str, Callable[..., Value]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "abs": np.abs,
    "sq": np.square,
    "sqrt": lambda a: np.sqrt(np.abs(a)),
    "matmul": _matmul,
    "dot": _dot,
    "outprod": _outprod,
    "tran": _tran,
    "sum_g": _over_all(np.sum),
    "sum_s": _over_rows(np.sum),
    "prod_g": _over_all(np.prod),
    "prod_s": _over_rows(np.prod),
    "mean_g": _over_all(np.mean),
    "mean_s": _over_rows(np.mean),
    "std_g": _over_all(_std),
    "std_s": _over_rows(_std),
    "var_g": _over_all(_var),
    "var_s": _over_rows(_var),
    "count_g": _count_g,
    "count_s": _count_s,
    "rbf": _rbf,
    "geo": _geo,
    "slice": _slice,
}

OPERATORS = frozenset(_OPERATORS) | {"ridge", "inv", "tr"}
"""The names defined here; a test compares them with the vocabulary."""
