"""The numbers of the published code, `published_scores.npz`, by both executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evoprune.scoring.arrays import score_arrays

ORACLE = np.load(Path(__file__).parent / "published_scores.npz")
CASES = sorted({key.split("/")[0] for key in ORACLE})

# function → (name in the file, the file's number → our number, given the number of classes)
RELATIONS: dict[str, tuple[str, Callable[[np.ndarray, int], np.ndarray]]] = {
    "di": ("di_sum_over_classes", lambda score, classes: score / classes),
    "sym_div": ("sym_div_authors", lambda score, classes: 2 * (score + 1)),
    "xi_star_code": ("xi_star_code", lambda score, classes: score / classes),
}
EQUAL = ("abs_snr", "fdr", "t_test", "mmd", "l1", "l2", "fpgm", "bn_scale",
         "xi_star", "xi_1", "xi_2", "xi_3", "xi_imagenet")  # fmt: skip
RELATIONS |= {name: (name, lambda score, classes: score) for name in EQUAL}


def test_every_row_of_the_file_is_compared() -> None:
    published = {key.split("/")[2] for key in ORACLE if "/score/" in key}
    assert published == {name for name, _ in RELATIONS.values()}


@pytest.mark.parametrize("executor", ["batched", "reference"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-9)])
@pytest.mark.parametrize("case", CASES)
def test_published_scores(case: str, dtype: str, tolerance: float, executor: str) -> None:
    arrays = {name: ORACLE[f"{case}/{name}"] for name in ("maps", "labels", "filters", "batch_norm")}
    for name, (key, relation) in RELATIONS.items():
        want = relation(ORACLE[f"{case}/score/{key}"], len(np.unique(arrays["labels"])))
        got = score_arrays(name, **arrays, dtype=dtype, executor=executor)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=0, err_msg=f"{case} {name}")


def test_dead_channels_score_exactly_zero() -> None:
    arrays = {name: ORACLE[f"dead_channels/{name}"] for name in ("maps", "labels", "filters", "batch_norm")}
    for name in ("abs_snr", "fdr", "t_test", "di", "xi_2", "xi_imagenet"):
        for executor in ("batched", "reference"):
            assert np.all(score_arrays(name, **arrays, executor=executor)[:2] == 0.0), name
