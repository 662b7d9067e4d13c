"""FunctionSelector: scikit-learn's own checks, and that what it keeps is what the function scores highest."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

import evoprune
from evoprune.errors import EvopruneError, ExpressionError, MissingOperandError
from evoprune.integrations.sklearn import FunctionSelector
from evoprune.scoring import features

X, Y = load_digits(return_X_y=True)
UNIT = X / 16

OWN = "div(var_g(mean_s(F)), ridge(var_g(F)))"


@pytest.mark.parametrize("function", ["xi_star", "mean_activation", "mmd", "random", OWN])
def test_scikit_learns_own_checks(function: str) -> None:
    results = check_estimator(FunctionSelector(function, sample=20), on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] not in ("passed", "skipped")}
    assert not failed
    assert sum(r["status"] == "passed" for r in results) > 40


@pytest.mark.parametrize("function", ["xi_star", "di", "fdr", "sym_div", "xi_1", "xi_2", "xi_imagenet", OWN])
def test_scores_are_those_of_the_plain_definition(function: str) -> None:
    selector = FunctionSelector(function).fit(UNIT, Y)
    expected = evoprune.score_arrays(function, maps=UNIT, labels=Y, dtype="float64", executor="reference")
    np.testing.assert_allclose(selector.scores_, expected, rtol=1e-7, atol=1e-10)
    assert selector.mode_ == "streamed"
    kept = set(selector.get_support(indices=True))
    assert kept == set(np.argsort(-selector.scores_, kind="stable")[:32].tolist())


def test_single_rows_are_read_from_a_sample() -> None:
    whole = FunctionSelector("mmd", sample=len(X)).fit(UNIT[:, :12], Y)
    expected = evoprune.score_arrays("mmd", maps=UNIT[:, :12], labels=Y, dtype="float64")
    np.testing.assert_allclose(whole.scores_, expected, rtol=1e-9)
    few = FunctionSelector("mmd", sample=100).fit(UNIT[:, :12], Y)
    assert few.mode_ == "sample"
    assert not np.allclose(few.scores_, whole.scores_)
    again = FunctionSelector("mmd", sample=100).fit(UNIT[:, :12], Y)
    np.testing.assert_array_equal(few.scores_, again.scores_)
    other = FunctionSelector("mmd", sample=100, random_state=1).fit(UNIT[:, :12], Y)
    assert not np.array_equal(few.scores_, other.scores_)


def test_random_states_are_those_of_scikit_learn() -> None:
    def drawn(state: object) -> list[float]:
        return FunctionSelector("random", random_state=state).fit(UNIT, Y).scores_.tolist()  # type: ignore[arg-type]

    assert drawn(3) == drawn(np.int64(3)) != drawn(4)
    assert drawn(np.random.RandomState(3)) == drawn(np.random.RandomState(3))
    assert drawn(None) != drawn(None)


@pytest.mark.parametrize("function", ["xi_star", "mmd"])
def test_the_names_of_classes_do_not_matter(function: str) -> None:
    names = np.array(["nine", "two", "b", "zz", "a", "q", "five", "0", "k", "y"])[Y]
    by_number = FunctionSelector(function, sample=60).fit(UNIT, Y)
    by_name = FunctionSelector(function, sample=60).fit(UNIT, names)
    np.testing.assert_allclose(by_number.scores_, by_name.scores_, rtol=1e-9)


@pytest.mark.parametrize(("wanted", "kept"), [(1, 1), (10, 10), (64, 64), (0.25, 16), (1.0, 64), (None, 32)])
def test_a_count_a_share_or_half(wanted: float | None, kept: int) -> None:
    assert FunctionSelector("fdr", n_features_to_select=wanted).fit_transform(X, Y).shape == (len(X), kept)


@pytest.mark.parametrize("wanted", [0, -1, 65, 0.0, 1.5, True, "ten"])
def test_other_counts_are_refused(wanted: object) -> None:
    with pytest.raises(ValueError, match="whole number from 1 to 64"):
        FunctionSelector("fdr", n_features_to_select=wanted).fit(X, Y)


def test_equal_features_keep_the_lower_index() -> None:
    twins = np.repeat(UNIT[:, [20]], 5, axis=1)
    selector = FunctionSelector("fdr", n_features_to_select=2).fit(twins, Y)
    assert selector.get_support(indices=True).tolist() == [0, 1]
    assert selector.support_.tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("function", "reads"), [("l1", "W_I"), ("bn_scale", "B"), ("fpgm", "W "), ("sum_g(W)", "W ")]
)
def test_functions_of_layers_are_refused_with_the_reason(function: str, reads: str) -> None:
    with pytest.raises(MissingOperandError, match=rf"reads .*{reads}.*come from no layer"):
        FunctionSelector(function).fit(X, Y)


def test_wrong_functions_are_refused_when_fitted() -> None:
    with pytest.raises(ExpressionError, match="did you mean xi_star"):
        FunctionSelector("xi_stra").fit(X, Y)
    with pytest.raises(ExpressionError, match="a score is a scalar"):
        FunctionSelector("mean_s(F)").fit(X, Y)
    with pytest.raises(ValueError, match="requires y"):
        FunctionSelector("xi_star").fit(X)
    with pytest.raises(EvopruneError, match="all 1797 labels are equal"):
        FunctionSelector("xi_star").fit(X, np.zeros(len(X), int))
    with pytest.raises(ValueError, match="Unknown label type"):
        FunctionSelector("xi_star").fit(X, Y + 0.5)


def test_functions_without_labels_need_none() -> None:
    assert FunctionSelector("mean_activation", n_features_to_select=3).fit_transform(X).shape[1] == 3


def test_in_a_pipeline_and_a_grid_search() -> None:
    pipeline = Pipeline(
        [
            ("scale", MinMaxScaler()),
            ("select", FunctionSelector()),
            ("classify", LogisticRegression(max_iter=1000)),
        ]
    )
    grid = {
        "select__function": ["fdr", "random", evoprune.parse(OWN)],
        "select__n_features_to_select": [2, 0.5],
    }
    search = GridSearchCV(pipeline, grid, cv=2).fit(X[:400], Y[:400])
    assert search.best_params_["select__n_features_to_select"] == 0.5
    assert search.best_score_ > 0.8
    assert cross_val_score(pipeline, X[:400], Y[:400], cv=2).min() > 0.8


def test_a_clone_is_equal_and_not_fitted() -> None:
    original = FunctionSelector(evoprune.parse(OWN), n_features_to_select=5).fit(X, Y)
    copy = clone(original)
    assert copy.get_params() == original.get_params()
    assert not hasattr(copy, "scores_")


def test_names_of_columns_are_kept() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=[f"pixel {i}" for i in range(64)])
    selector = FunctionSelector("fdr", n_features_to_select=2).set_output(transform="pandas")
    found = selector.fit_transform(table, Y)
    assert list(found.columns) == list(selector.get_feature_names_out())
    assert all(name.startswith("pixel") for name in found.columns)


@pytest.mark.heavy
def test_70000_rows_of_784_features_take_seconds() -> None:
    rng = np.random.default_rng(0)
    table = rng.random((70_000, 784), dtype=np.float32)
    labels = rng.integers(0, 10, 70_000)
    start = time.process_time()
    FunctionSelector("xi_star").fit(table, labels)
    assert time.process_time() - start < 30


@pytest.mark.parametrize("function", ["xi_star", "di", "mmd"])
def test_many_rows_are_read_in_parts(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FunctionSelector(function, sample=60).fit(UNIT, Y)
    monkeypatch.setattr(features, "ROWS", 101)
    parts = FunctionSelector(function, sample=60).fit(UNIT, Y)
    np.testing.assert_allclose(parts.scores_, whole.scores_, rtol=1e-9, atol=1e-12)
