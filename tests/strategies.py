"""Random expressions and random arrays, shared by the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from evoprune.expression.check import infer
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERANDS, OPERATORS

GLOBAL = [name for name in OPERATORS if name.endswith("_g")]
RHOS = st.sampled_from([None, 1e-4, 0.05, 1.0, 3e-7])


def expressions(max_leaves: int = 8) -> st.SearchStrategy[Expr]:
    """Any tree over the whole vocabulary."""

    def grow(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(
                lambda name, args, rho: Expr(
                    name, args[: OPERATORS[name].arity], rho if name == "ridge" else None
                ),
                st.sampled_from(sorted(OPERATORS)),
                st.tuples(children, children),
                RHOS,
            )
        )

    return st.recursive(st.sampled_from(sorted(OPERANDS)).map(Expr), grow, max_leaves=max_leaves)


def scalars(max_leaves: int = 8) -> st.SearchStrategy[Expr]:
    """Trees whose root is a scalar, small enough to evaluate at the sizes of `sites`."""
    return (
        st.tuples(expressions(max_leaves), st.sampled_from(GLOBAL))
        .map(lambda pair: pair[0] if not infer(pair[0])[pair[0]].axes else Expr(pair[1], (pair[0],)))
        .filter(fits)
    )


SIZES = {"N": 9, "N+": 7, "N-": 8, "P": 6, "filters": 4, "weights": 8}


def fits(expr: Expr) -> bool:
    """No value is large at the sizes the tests use."""
    return all(shape.entries.size(SIZES) <= 3_000 for shape in infer(expr).values())


@st.composite
def sites(draw: st.DrawFn, min_class: int = 1) -> dict[str, Any]:
    """Arrays of one site, as `score_arrays` takes them: 2 or 3 classes, 2 to 4 channels."""
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    counts = draw(st.lists(st.integers(min_class, 3), min_size=2, max_size=3))
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    channels = draw(st.integers(2, 4))
    height, width = draw(st.sampled_from([(2, 3), (3, 2), (2, 2), (1, 1)]))
    kernel = draw(st.sampled_from([(2, 2, 2), (1, 1, 3), (3, 1, 1)]))
    maps = rng.normal(0.3, 1.0, (len(labels), channels, height, width))
    if draw(st.booleans()):
        maps = np.maximum(maps, 0.0)
    if draw(st.integers(0, 4)) == 0:
        maps[:, 0] = 0.0
    batch_norm = np.stack(
        [rng.normal(1, 0.5, channels), rng.normal(size=channels), rng.normal(size=channels),
         rng.uniform(0.1, 2, channels)], axis=1
    )  # fmt: skip
    return {
        "maps": maps,
        "labels": labels,
        "filters": rng.normal(0, 0.7, (channels, *kernel)),
        "batch_norm": batch_norm,
    }
