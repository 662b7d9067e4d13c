"""Accuracy of a linear classifier on selected features, beside scikit-learn's own selectors.

    EVOPRUNE_DATA=… python benchmarks/bench_selection.py digits mnist

Writes docs/results/selection-DATA.csv and .txt: features are chosen and the classifier is trained on training
images, accuracies are on test images; all selectors keep equally many features.
"""

from __future__ import annotations

import csv
import io
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectKBest, chi2, f_classif, mutual_info_classif
from sklearn.linear_model import LogisticRegression

from evoprune.integrations.sklearn import FunctionSelector
from evoprune.tasks.datasets import DataConfig, load_data
from evoprune.tasks.results import aligned

RESULTS = Path(__file__).parent.parent / "docs" / "results"
FUNCTIONS = (
    "xi_star",
    "xi_1",
    "xi_2",
    "di",
    "mmd",
    "abs_snr",
    "t_test",
    "fdr",
    "sym_div",
    "mean_activation",
    "random",
)
SHARES = (0.05, 0.1, 0.2, 0.4)
TRAINED_ON = 20_000  # images that the classifier sees; the selectors see all


def table(name: str, split: object) -> tuple[np.ndarray, np.ndarray]:
    """Pixels from 0 to 1, `[image, pixel]`, and labels."""
    batches = [(images.flatten(1).numpy(), labels.numpy()) for images, labels in split.ordered(4096)]  # type: ignore[attr-defined]
    return np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches])


def run(name: str) -> None:
    data = load_data(DataConfig(name, normalise="none"))
    parts = [table(name, data.train), table(name, data.validation)]
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    x_test, y_test = table(name, data.test)
    some = np.random.default_rng(0).permutation(len(x))[:TRAINED_ON]
    scorers = {
        "f_classif": f_classif,
        "mutual_info_classif": partial(mutual_info_classif, random_state=0),
        "chi2": chi2,
    }
    rankings: dict[str, tuple[np.ndarray, float]] = {}
    for function in FUNCTIONS:
        start = time.perf_counter()
        scores = FunctionSelector(function).fit(x, y).scores_
        rankings[function] = np.argsort(-scores, kind="stable"), time.perf_counter() - start
    for label, scorer in scorers.items():
        start = time.perf_counter()
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # f_classif divides by the variance of constant pixels
            scores = np.nan_to_num(SelectKBest(scorer, k="all").fit(x, y).scores_, nan=-np.inf)
        rankings[f"sklearn {label}"] = np.argsort(-scores, kind="stable"), time.perf_counter() - start
    counts = [round(share * x.shape[1]) for share in SHARES]
    rows = []
    for label, (order, seconds) in rankings.items():
        accuracies = []
        for count in counts:
            chosen = order[:count]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model = LogisticRegression(max_iter=100, tol=1e-3).fit(x[some][:, chosen], y[some])
            accuracies.append(model.score(x_test[:, chosen], y_test))
        rows.append([label, *accuracies, seconds])
        print(rows[-1], flush=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["selector", *(f"accuracy with {count}" for count in counts), "seconds"])
    writer.writerows(rows)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"selection-{name}.csv").write_text(text.getvalue())
    shown = [[r[0], *(f"{100 * a:.2f}" for a in r[1:-1]), f"{r[-1]:.1f}"] for r in rows]
    head = ["selector", *(f"{count} pixels (%)" for count in counts), "seconds to select"]
    said = (
        f"{name}: logistic regression on selected pixels of {min(TRAINED_ON, len(x)):,} training images, "
        f"accuracy on {len(x_test):,} test images; "
        f"selectors see {len(x):,} training images of {x.shape[1]} pixels"
    )
    (RESULTS / f"selection-{name}.txt").write_text(f"{said}\n\n{aligned(head, shown)}\n")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        run(each)
