"""GridSearchCV of scikit-learn, whose forests are parallel, too. The data is large enough to be shared."""

from __future__ import annotations

import json

import joblib
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV

import mwpy.joblib

GRID = {"max_depth": [2, 4], "min_samples_leaf": [1, 5]}
"""The parameters of four forests."""


def searched() -> dict[str, object]:
    """Search, and return everything that the search has computed."""
    features, classes = make_classification(n_samples=1500, n_features=100, random_state=1)
    assert features.nbytes > 1 << 20
    forest = RandomForestClassifier(n_estimators=3, n_jobs=2, random_state=1)
    search = GridSearchCV(forest, GRID, cv=3).fit(features, classes)
    return {
        "scores": search.cv_results_["mean_test_score"].tolist(),
        "spread": search.cv_results_["std_test_score"].tolist(),
        "best": search.best_params_,
        "predicted": search.predict(features).tolist(),
    }


if __name__ == "__main__":
    mwpy.joblib.register()
    with joblib.parallel_config(backend="mwpy", slaves=2):
        parallel = searched()
    print(json.dumps({"serial": searched(), "parallel": parallel}))
