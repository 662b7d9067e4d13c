"""Feature selection in scikit-learn by pruning functions: features are channels of 1×1 maps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evoprune.errors import EvopruneError, MissingExtraError
from evoprune.expression.library import Function, resolve
from evoprune.expression.tree import Expr

try:
    from sklearn.base import BaseEstimator
    from sklearn.feature_selection import SelectorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError("FunctionSelector", "sklearn") from error

SAMPLE = 1000
"""Rows in the class-balanced sample for functions that cannot be computed from sums. Their time grows with
its square: `mmd` of 784 features takes seconds with so many."""


class FunctionSelector(SelectorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Keeps the features that a pruning function scores highest.

    Parameters
    ----------
    function : str, Expr or Function, default="xi_star"
        A name of the library, the text of a function, or an expression. It may read `F`, `F+` and `F-`;
        `W`, `W_I` and `B` belong to layers, which features do not come from.
    n_features_to_select : int, float or None, default=None
        How many features are kept; a float in (0, 1] is a share of them, None keeps half.
    sample : int, default=1000
        Rows in the class-balanced sample on which functions are evaluated that need
        single rows.
    random_state : int, RandomState instance or None, default=0
        Seed of that sample, and of the function `random`.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features_in_,)
        A higher score is a more important feature; of equals the first is kept.
    support_ : ndarray of bool, of shape (n_features_in_,)
        Which features are kept.
    mode_ : str
        `streamed` over all rows, on a `sample` of them, or `drawn`.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> FunctionSelector("fdr", n_features_to_select=16).fit_transform(X, y).shape
    (1797, 16)
    """

    def __init__(
        self,
        function: str | Expr | Function = "xi_star",
        *,
        n_features_to_select: int | float | None = None,
        sample: int = SAMPLE,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.function = function
        self.n_features_to_select = n_features_to_select
        self.sample = sample
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> FunctionSelector:
        """Score the features of X `[row, feature]`; y has a label for each row, where the function asks."""
        from evoprune.scoring.features import check_reads_features, score_features

        function = resolve(self.function)
        check_reads_features(function)
        given: dict[str, Any] = {"dtype": (np.float64, np.float32), "ensure_min_samples": 2}
        classes: NDArray[np.int64] | None = None
        if function.expr is not None and function.expr.is_label_aware:
            features, labels = validate_data(self, X, y, **given)
            check_classification_targets(labels)
            classes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
        else:
            features = validate_data(self, X, **given)
        wanted = self._wanted(features.shape[1])
        sample: Any = self.sample  # whatever was given
        if isinstance(sample, bool) or not isinstance(sample, int | np.integer) or sample < 2:
            raise ValueError(f"sample must be a whole number of rows, 2 or more; got {sample!r}")
        seed: Any = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        scored = score_features(function, features, classes, sample=int(sample), seed=int(seed))
        self.scores_ = scored.scores
        self.mode_ = scored.mode
        self.support_: NDArray[np.bool_] = np.zeros(features.shape[1], dtype=np.bool_)
        self.support_[np.argsort(-scored.scores, kind="stable")[:wanted]] = True
        return self

    def _wanted(self, features: int) -> int:
        """How many features are kept of so many."""
        wanted: Any = self.n_features_to_select  # whatever was given
        if wanted is None:
            return max(1, features // 2)
        if isinstance(wanted, int | np.integer) and not isinstance(wanted, bool) and 1 <= wanted <= features:
            return int(wanted)
        if isinstance(wanted, float | np.floating) and 0 < wanted <= 1:
            return max(1, round(float(wanted) * features))
        raise ValueError(
            f"n_features_to_select must be a whole number from 1 to {features} (the features of X), a share "
            f"in (0, 1], or None for half; got {wanted!r}"
        )

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        return self.support_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        try:
            expr = resolve(self.function).expr
        except EvopruneError:  # fit says what is wrong with it
            expr = None
        tags.target_tags.required = expr is not None and expr.is_label_aware
        return tags
