"""Pruning functions as feature selectors in a scikit-learn pipeline; needs `pip install 'evoprune[sklearn]'`.

python examples/06_scikit_learn.py
"""

from sklearn.datasets import load_digits
from sklearn.feature_selection import SelectKBest, VarianceThreshold, f_classif
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from evoprune.integrations.sklearn import FunctionSelector

X, y = load_digits(return_X_y=True)
PIXELS = 20

for selector in (
    FunctionSelector("xi_star", n_features_to_select=PIXELS),
    FunctionSelector("fdr", n_features_to_select=PIXELS),
    FunctionSelector("div(sq(sub(mean_g(F+), mean_g(F))), ridge(mean_g(F)))", n_features_to_select=PIXELS),
    SelectKBest(f_classif, k=PIXELS),
):
    pipeline = make_pipeline(VarianceThreshold(), MinMaxScaler(), selector, LogisticRegression(max_iter=500))
    scores = cross_val_score(pipeline, X, y, cv=3)
    print(f"{scores.mean():.1%} with {PIXELS} of 64 pixels by {selector}")

# The function is a parameter like any other.
selector = FunctionSelector(n_features_to_select=PIXELS)
pipeline = make_pipeline(VarianceThreshold(), MinMaxScaler(), selector, LogisticRegression(max_iter=500))
search = GridSearchCV(pipeline, {"functionselector__function": ["xi_star", "fdr", "di", "mmd"]}, cv=3)
print(f"best by cross-validation: {search.fit(X, y).best_params_}")
