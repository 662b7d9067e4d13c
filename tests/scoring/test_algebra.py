"""The algebra of the design page, sentence by sentence, by both executors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray

import evoprune
from evoprune import check, score_arrays
from evoprune.errors import EvopruneError, MissingOperandError, ScoringError, ShapeError

RNG = np.random.default_rng(7)
MAPS = RNG.normal(size=(7, 3, 2, 3))  # P = 6: 7 images, 3 of class 0, 2 of class 1, 2 of class 2
LABELS = np.array([0, 1, 2, 0, 1, 2, 0])
FILTERS = RNG.normal(size=(3, 4, 2, 1))
NORM = RNG.uniform(0.5, 2, (3, 4))
SITE: dict[str, Any] = {"maps": MAPS, "labels": LABELS, "filters": FILTERS, "batch_norm": NORM}


def both(text: str, **changes: ArrayLike) -> NDArray[np.float64]:
    """Scores by both executors in float64, which must agree."""
    site = SITE | changes
    plain = score_arrays(text, **site, dtype="float64", executor="reference")
    batched = score_arrays(text, **site, dtype="float64")
    np.testing.assert_allclose(batched, plain, rtol=1e-10, atol=1e-12)
    return plain


def rows(channel: int) -> NDArray[np.float64]:
    return MAPS[:, channel].reshape(7, 6)


def per_channel(function: Any) -> NDArray[np.float64]:
    return np.array([function(c) for c in range(3)])


def same(text: str, want: ArrayLike, **changes: ArrayLike) -> None:
    np.testing.assert_allclose(both(text, **changes), want, rtol=1e-9, atol=1e-12)


# Operands and operators


def test_operands() -> None:
    same("count_g(F)", [42] * 3)
    same("count_s(F)", [7] * 3)
    same("count_s(W)", [3] * 3)
    same("count_g(W)", [24] * 3)
    same("sum_g(W_I)", FILTERS.reshape(3, -1).sum(1))
    same("count_s(B)", [4] * 3)
    same("slice(B)", NORM[:, 0])


def test_a_fully_connected_layer_is_the_case_of_1_by_1_maps() -> None:
    for text in ("var_g(F+)", "sum_g(tr(F))", "di", "mmd"):
        flat = both(text, maps=MAPS[:, :, 0, 0], filters=FILTERS[:, :, 0, 0])
        full = both(text, maps=MAPS[:, :, :1, :1], filters=FILTERS[:, :, :1, :1])
        np.testing.assert_array_equal(flat, full)


def test_a_scalar_goes_with_everything() -> None:
    same("sum_g(add(F, count_s(B)))", per_channel(lambda c: (rows(c) + 4).sum()))
    same("sum_g(mul(count_s(B), W_I))", per_channel(lambda c: 4 * FILTERS[c].sum()))


def test_a_vector_goes_with_every_row_of_a_matrix_and_the_shorter_is_padded() -> None:
    def padded(c: int, fill: float) -> NDArray[np.float64]:
        return np.tile(np.concatenate([NORM[c], [fill, fill]]), (7, 1))

    same("sum_g(sq(sub(F, B)))", per_channel(lambda c: np.square(rows(c) - padded(c, 0)).sum()))
    same("sum_g(sq(mul(F, B)))", per_channel(lambda c: np.square(rows(c) * padded(c, 1)).sum()))
    same("sum_g(sq(div(F, B)))", per_channel(lambda c: np.square(rows(c) / padded(c, 1)).sum()))
    longer = per_channel(lambda c: np.square(np.pad(rows(c), [(0, 0), (0, 2)]) + FILTERS[c].ravel()).sum())
    same("sum_g(sq(add(F, W_I)))", longer)  # weights (8) are more than pixels (6): the matrix is padded


def test_matrices_are_padded_on_both_sides() -> None:
    def total(c: int, k: int) -> float:
        plus, minus = rows(c)[k == LABELS], rows(c)[k != LABELS]
        return float(np.square(np.pad(plus, [(0, len(minus) - len(plus)), (0, 0)]) - minus).sum())

    same("sum_g(sq(sub(F+, F-)))", per_channel(lambda c: np.mean([total(c, k) for k in range(3)])))
    same("count_g(add(F, W))", [7 * 8] * 3)
    same("count_g(mul(W, F))", [7 * 8] * 3)


def test_div_gives_0_where_the_divisor_is_tiny() -> None:
    norm = np.array([[1.0, 1e-13, -1e-13, 0.0], [2.0, 1e-11, 1.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
    same("sum_g(div(slice(B), B))", [1.0, 1.0 + 2e11 + 2.0 + 0.5, 4.0], batch_norm=norm)
    same("sum_g(inv(B))", [1.0, 0.5 + 1e11 + 1.0 + 0.25, 4.0], batch_norm=norm)


def test_sqrt_takes_the_absolute_value_first() -> None:
    same("sum_g(sqrt(F))", per_channel(lambda c: np.sqrt(np.abs(rows(c))).sum()))


def test_ridge_adds_to_every_entry_or_to_the_diagonal() -> None:
    same("sum_g(ridge(F))", per_channel(lambda c: (rows(c) + 1e-4).sum()))
    same("sum_g(ridge(F, 0.5))", per_channel(lambda c: (rows(c) + 0.5).sum()))
    gram = [rows(c).T @ rows(c) for c in range(3)]
    same("sum_g(ridge(matmul(tran(F), F), 0.5))", [g.sum() + 0.5 * 6 for g in gram])


def test_matmul_cuts_the_longer_inner_side_and_a_scalar_multiplies() -> None:
    flat = FILTERS.reshape(3, -1)
    same("sum_g(matmul(F, W_I))", per_channel(lambda c: (rows(c) @ flat[c, :6]).sum()))
    same("sum_g(matmul(F, W))", per_channel(lambda c: (rows(c)[:, :3] @ flat).sum()))
    same("matmul(B, W_I)", per_channel(lambda c: NORM[c] @ flat[c, :4]))
    same("sum_g(matmul(B, W))", per_channel(lambda c: (NORM[c, :3] @ flat).sum()))
    same("sum_g(matmul(slice(B), F))", per_channel(lambda c: (NORM[c, 0] * rows(c)).sum()))


def test_inv_adds_its_ridge_once_and_inverts_the_leading_block() -> None:
    gram = [rows(c).T @ rows(c) for c in range(3)]
    eye = np.eye(6)
    plain = [np.linalg.inv(g + 1e-4 * eye).sum() for g in gram]
    same("sum_g(inv(matmul(tran(F), F)))", plain)
    same("sum_g(inv(ridge(matmul(tran(F), F))))", plain)
    same("sum_g(inv(ridge(matmul(tran(F), F), 0.5)))", [np.linalg.inv(g + 0.5 * eye).sum() for g in gram])
    same(  # ridge of a matrix that is not square by construction is no literal ridge of the diagonal
        "sum_g(inv(ridge(W, 0.5)))",
        [np.linalg.inv(FILTERS.reshape(3, -1)[:, :3] + 0.5 + 1e-4 * np.eye(3)).sum()] * 3,
    )
    same("sum_g(inv(mul(ridge(matmul(tran(F), F), 0.5), count_s(B))))",
         [np.linalg.inv(4 * (g + 0.5 * eye) + 1e-4 * eye).sum() for g in gram])  # fmt: skip


def test_dot_flattens_row_by_row_and_cuts() -> None:
    same("dot(F, W)", per_channel(lambda c: rows(c).ravel()[:24] @ FILTERS.ravel()))
    same("dot(slice(B), F)", per_channel(lambda c: NORM[c, 0] * rows(c)[0, 0]))


def test_outprod_is_of_all_entries() -> None:
    same("count_g(outprod(W, B))", [24 * 4] * 3)
    same("sum_g(slice(tran(outprod(W, B))))", FILTERS.sum() * NORM[:, 0])
    same("tr(outprod(slice(B), B))", NORM[:, 0] ** 2)


def test_tr_of_maps_of_matrices_and_of_vectors() -> None:
    traces = MAPS[:, :, 0, 0] + MAPS[:, :, 1, 1]
    same("sum_g(sq(tr(F)))", np.square(traces).sum(0))
    same("tr(mean_s(F))", traces.mean(0))
    same("tr(W)", [np.trace(FILTERS.reshape(3, -1))] * 3)
    same("tr(B)", NORM[:, 0])
    same("tr(tran(F))", per_channel(lambda c: np.trace(rows(c))))


def test_statistics_are_the_populations() -> None:
    for name in ("sum", "prod", "mean", "std", "var"):
        function = getattr(np, name)
        same(f"{name}_g(F)", per_channel(lambda c, f=function: f(rows(c))))
        same(f"sum_g({name}_s(F))", per_channel(lambda c, f=function: f(rows(c), axis=0).sum()))
        same(f"{name}_s(B)", function(NORM, axis=1))


@pytest.mark.parametrize("value", [0.1, 1000.3])
def test_equal_entries_vary_by_exactly_nothing(value: float) -> None:
    for text in (
        "std_g(F)",
        "inv(sqrt(std_g(F+)))",
        "inv(sqrt(std_g(F-)))",
        "sum_g(inv(sqrt(std_s(tran(F)))))",
    ):
        np.testing.assert_array_equal(both(text, maps=np.full_like(MAPS, value)), [0.0] * 3)


def test_rbf_geo_and_slice() -> None:
    def kernel(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.exp(-(np.linalg.norm(a[:, None] - b[None], axis=2) ** 2) / 2)

    filters = FILTERS.reshape(3, -1)
    same("sum_g(rbf(F, F))", per_channel(lambda c: kernel(rows(c), rows(c)).sum()))
    same("sum_g(rbf(F, W))", per_channel(lambda c: kernel(np.pad(rows(c), [(0, 0), (0, 2)]), filters).sum()))
    same("sum_g(rbf(B, W_I))", per_channel(lambda c: kernel(NORM[c][:, None], filters[c][:, None]).sum()))
    distances = np.linalg.norm(filters[:, None] - filters[None], axis=2).sum(1)
    same("sum_g(geo(W))", [filters[distances.argmin()].sum()] * 3)
    same("sum_g(slice(F))", rows_of_first_image())


def rows_of_first_image() -> NDArray[np.float64]:
    return np.asarray(MAPS[0].reshape(3, -1).sum(1))


def test_rbf_keeps_its_digits_between_rows_far_from_the_others() -> None:
    """‖a‖² + ‖b‖² − 2a·b would have lost them."""
    maps = MAPS + 1e6 * (LABELS == 1)[:, None, None, None]
    near = MAPS[LABELS == 1].reshape(2, 3, 6)
    close = 2 + 2 * np.exp(-np.square(near[0] - near[1]).sum(1) / 2)
    others = {"maps": MAPS[LABELS != 1], "labels": LABELS[LABELS != 1]}
    same("sum_g(rbf(F, F))", both("sum_g(rbf(F, F))", **others) + close, maps=maps)


def test_geo_takes_the_first_of_equals() -> None:
    norm = np.array([[3.0, 1.0, 2.0, 0.0], [5.0, 5.0, 1.0, 1.0], [0.1, 0.4, 0.2, 0.3]])
    same("geo(B)", [1.0, 5.0, 0.2], batch_norm=norm)  # the two middle entries always tie
    norm = np.array([[0.9, 0.3, 1.0, 1.6], [1.7, 0.6, 1.3, 0.1], [0.3, 0.0, 0.9, 1.2]])
    same("geo(B)", [0.9, 0.6, 0.3], batch_norm=norm)  # also where rounding tells their sums apart


# What settles the rest


def test_square_by_construction_is_the_same_symbol_and_equal_numbers_never_count() -> None:
    square = FILTERS[:, :3, 0, 0]  # 3 filters of 3 weights
    same("sum_g(ridge(W, 0.5))", [square.sum() + 9 * 0.5] * 3, filters=square)
    same("sum_g(inv(W))", [np.linalg.inv(square + 1e-4 * np.eye(3)).sum()] * 3, filters=square)
    four = RNG.normal(size=(3, 4))
    added = per_channel(lambda c: (np.outer(NORM[c], four[c]) + 0.5).sum())
    same("sum_g(ridge(outprod(B, W_I), 0.5))", added, filters=four)
    same("sum_g(ridge(outprod(B, B), 0.5))", per_channel(lambda c: np.outer(NORM[c], NORM[c]).sum() + 2))


def test_length_1_is_never_broadcast_as_if_it_were_a_scalar() -> None:
    one = RNG.normal(size=(3, 1))
    same("sum_g(sq(add(B, W_I)))",
         per_channel(lambda c: np.square(NORM[c] + [one[c, 0], 0, 0, 0]).sum()), filters=one)  # fmt: skip
    same("sum_g(mul(F, outprod(slice(B), slice(B))))",
         per_channel(lambda c: rows(c).sum() + (NORM[c, 0] ** 2 - 1) * rows(c)[0, 0]))  # fmt: skip
    same(
        "sum_g(add(F, W_I))",
        (MAPS[:, :, :1, 0].sum((0, 2)) + 7 * one[:, 0]),
        filters=one,
        maps=MAPS[:, :, :1, :1],
    )


def test_a_vector_meeting_a_matrix_lies_along_its_columns_whatever_axis_it_came_from() -> None:
    def total(c: int) -> float:
        wide = np.pad(rows(c), [(0, 0), (0, 1)])
        return float(np.square(wide + (MAPS[:, c, 0, 0] + MAPS[:, c, 1, 1])[None]).sum())

    same("sum_g(sq(add(F, tr(F))))", per_channel(total))  # 7 traces along 6 pixels
    squares = per_channel(lambda c: np.square(np.outer(NORM[c], NORM[c] ** 2) - NORM[c]).sum())
    same("sum_g(sq(sub(outprod(B, sq(B)), B)))", squares)  # as many rows as columns
    same("sum_g(sq(sub(B, outprod(B, sq(B)))))", squares)


@pytest.mark.parametrize(
    "text", ["add(F, mean_s(F))", "mul(F, F)", "sqrt(F)", "ridge(F)", "sub(mean_g(F), F)"]
)
def test_height_and_width_are_kept_while_the_last_axis_is_pixels(text: str) -> None:
    assert str(check(f"tr({text})")) == "vector [N]"
    assert check(f"tr(mean_s({text}))").kind == "scalar"
    value = both(f"tr(mean_s({text}))")
    first = both(f"tr(tran(mean_s({text})))")
    assert not np.allclose(value, first)


@pytest.mark.parametrize(
    "text", ["tran(tran(F))", "matmul(F, mean_g(F))", "add(F, W)", "matmul(matmul(F, tran(F)), F)"]
)
def test_every_other_operator_forgets_height_and_width(text: str) -> None:
    assert check(f"tr({text})").kind == "scalar"
    np.testing.assert_allclose(both(f"tr(mean_s({text}))"), both(f"slice(mean_s({text}))"))


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("operand", ["F", "F+", "F-", "sq(F-)", "tran(F)"])
def test_geo_of_many_rows_is_as_of_few(operand: str, shift: float) -> None:
    """Also of rows far from zero, twice there, all alike, beside one far away, and tied."""
    rng = np.random.default_rng(3)
    maps = rng.normal(size=(150, 5, 6, 6)) + shift
    maps[70:140, 1] = maps[:70, 1]
    maps[:, 2] = maps[0, 2]
    maps[17, 3] += 1e6
    maps[75:, 4] = 2 * shift - maps[:75, 4]  # every row ties with another
    site = {"labels": np.arange(150) % 4, "filters": FILTERS[[0] * 5], "batch_norm": NORM[[0] * 5]}
    assert len(both(f"mean_g(geo({operand}))", maps=maps, **site)) == 5


def test_maps_keep_height_and_width_through_slice_and_geo() -> None:
    same("tr(slice(F))", MAPS[0, :, 0, 0] + MAPS[0, :, 1, 1])
    assert not np.allclose(both("tr(geo(F))"), both("slice(geo(F))"))


def test_rbf_geo_and_s_treat_a_vector_as_rows_of_one_entry() -> None:
    assert str(check("rbf(B, W_I)")) == "matrix [4, weights]"
    assert check("geo(B)").kind == check("sum_s(B)").kind == "scalar"


def test_of_a_scalar() -> None:
    for name in ("tr", "slice", "geo", "sum_g", "sum_s", "prod_g", "prod_s", "mean_g", "mean_s", "tran"):
        same(f"{name}(slice(B))", NORM[:, 0])
    for name in ("std_g", "std_s", "var_g", "var_s"):
        same(f"{name}(slice(B))", [0.0] * 3)
    for name in ("count_g", "count_s"):
        same(f"{name}(slice(B))", [1.0] * 3)
    same("inv(slice(B))", 1 / NORM[:, 0])


def test_the_whole_root_is_evaluated_per_class_then_averaged_over_the_classes_present() -> None:
    want = per_channel(lambda c: np.mean([1 / np.var(rows(c)[k == LABELS]) for k in range(3)]))
    same("inv(var_g(F+))", want)
    same("inv(var_g(F+))", want, labels=np.array(["x", "a", "m"])[LABELS])  # any labels, gaps and all
    same("inv(var_g(F+))", want, labels=LABELS * 1000 - 5)
    same("add(var_g(F), count_s(F+))", per_channel(lambda c: np.var(rows(c)) + 7 / 3))


def test_without_labels_there_is_no_class_loop() -> None:
    np.testing.assert_array_equal(score_arrays("var_g(F)", MAPS, LABELS), score_arrays("var_g(F)", MAPS))


def test_sums_products_scatters_and_inverses_are_carried_in_float64() -> None:
    maps = (1000 + RNG.normal(size=(400, 2, 8, 8))).astype(np.float32)
    labels = np.arange(400) % 4
    for text in ("xi_star", "var_g(F)", "sum_g(inv(matmul(tran(sub(F, mean_s(F))), sub(F, mean_s(F)))))"):
        want = score_arrays(text, maps.astype(np.float64), labels, dtype="float64", executor="reference")
        got = score_arrays(text, maps, labels, dtype="float32")
        np.testing.assert_allclose(got, want, rtol=1e-9)


# Validity, and refusals of arrays


def test_a_root_that_is_no_scalar_is_refused() -> None:
    for executor in ("batched", "reference"):
        with pytest.raises(ShapeError, match=r"a score is a scalar, but this is a vector \[P\]"):
            score_arrays("mean_s(F)", MAPS, executor=executor)


@pytest.mark.parametrize(
    ("text", "given", "named"),
    [
        ("xi_star", {"filters": FILTERS}, "maps="),
        ("xi_star", {"maps": MAPS}, "labels="),
        ("l1", {"maps": MAPS}, "filters="),
        ("fpgm", {"maps": MAPS}, "filters="),
        ("bn_scale", {"maps": MAPS}, "batch_norm="),
        ("l1", {}, r"l1 needs filters=… \(for W_I\), not given"),
        ("xi_star", {}, r"maps=… \(for F, F\+, F-\) and labels=… \(for F\+, F-\)"),
    ],
)
def test_a_missing_operand_is_named(text: str, given: dict[str, Any], named: str) -> None:
    with pytest.raises(MissingOperandError, match=named):
        score_arrays(text, **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.zeros(7, int)}, "all 7 labels are the same"),
        ({"labels": LABELS[:6]}, r"one per image, \[7\] here; got shape \[6\]"),
        ({"labels": LABELS.astype(float)}, "integers or strings"),
        ({"labels": np.array([None] * 7)}, "integers or strings"),
        ({"labels": [[0], [0, 1], 1, 0, 1, 0, 1]}, "one per image"),
        ({"maps": np.where(MAPS > 2, np.nan, MAPS)}, "NaN"),
        ({"maps": MAPS[:, :, 0]}, r"\[image, channel, H, W\]"),
        ({"maps": MAPS[:0]}, "at least one entry"),
        ({"maps": "maps"}, "array of numbers"),
        ({"maps": torch.empty(7, 3, 2, 3, device="meta")}, "array of numbers"),
        ({"maps": MAPS * 1e300}, "infinite entries as float32"),
        ({"filters": FILTERS[:2]}, "disagree on the number of channels: maps has 3, filters has 2"),
        ({"batch_norm": NORM[:, :3]}, r"\[channel, 4\]"),
        ({"filters": np.full_like(FILTERS, np.inf)}, "filters holds"),
        ({"dtype": "float16"}, "dtype"),
        ({"executor": "gpu"}, "executor"),
    ],
)  # fmt: skip
def test_bad_arrays_are_refused_with_the_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScoringError, match=message):
        score_arrays("xi_star", **(SITE | changes))


def test_what_a_function_does_not_read_may_be_left_out() -> None:
    with pytest.raises(ScoringError, match="nothing to score"):
        score_arrays("random")
    want = score_arrays("l1", filters=FILTERS)
    np.testing.assert_array_equal(score_arrays("l1", **SITE), want)
    np.testing.assert_array_equal(score_arrays("l1", labels=LABELS, filters=FILTERS), want)


def test_a_value_too_large_for_these_arrays_is_pointed_at() -> None:
    maps = np.zeros((256, 1, 16, 16))
    for executor in ("batched", "reference"):
        with pytest.raises(
            ShapeError, match=r"4,294,967,296 entries where the limit is 1,073,741,824"
        ) as caught:
            score_arrays("sum_g(abs(outprod(F, F)))", maps, executor=executor)
        assert "outprod(F, F)" in str(caught.value)
    assert score_arrays("sum_g(outprod(F+, F+))", maps, np.arange(256)) == 0


def test_scores_that_are_not_finite_are_refused_by_both() -> None:
    for executor in ("batched", "reference"):
        with pytest.raises(ScoringError, match="not finite, for 3 of 3"):
            score_arrays("prod_g(ridge(sq(sq(W)), 1e300))", filters=FILTERS, executor=executor)


def test_one_class_is_enough_without_f_minus() -> None:
    same("var_g(F+)", per_channel(lambda c: np.var(rows(c))), labels=np.zeros(7, int))


def test_a_tensor_is_an_array() -> None:
    maps = torch.tensor(MAPS, requires_grad=True)
    want = score_arrays("xi_2", MAPS, LABELS, dtype="float64")
    np.testing.assert_array_equal(score_arrays("xi_2", maps, torch.tensor(LABELS), dtype="float64"), want)
    np.testing.assert_allclose(score_arrays("xi_2", maps.bfloat16(), LABELS), want, rtol=0.1)


def test_labels_of_any_integers() -> None:
    want = score_arrays("fdr", MAPS, LABELS)
    objects = np.array([np.int64(k) for k in LABELS], dtype=object)
    for labels in (
        LABELS.astype(object),
        objects,
        [10**30 + int(k) for k in LABELS],
        LABELS.astype(np.uint8),
    ):
        np.testing.assert_array_equal(score_arrays("fdr", MAPS, labels), want)


def test_random_is_seeded_and_no_expression() -> None:
    first = score_arrays("random", filters=FILTERS)
    np.testing.assert_array_equal(first, score_arrays("random", maps=MAPS))
    assert not np.array_equal(first, score_arrays("random", filters=FILTERS, seed=1))
    assert evoprune.functions["random"].expr is None


def test_every_refusal_derives_from_one_error() -> None:
    for text, given in [("xi", {}), ("mean_s(F)", {"maps": MAPS}), ("F(", {}), ("l1", {})]:
        with pytest.raises(EvopruneError):
            score_arrays(text, **given)
