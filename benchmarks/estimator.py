"""RedClassifier beside scikit-learn's classifiers: accuracy on the same folds, and how long `fit` takes.

python benchmarks/estimator.py

Every row is predicted once in each repetition of a five-fold cross-validation. Settings of RedClassifier were chosen by
cross-validation within three fifths of the rows (`chosen_on`), so the second table counts only the others.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from redx import RedClassifier

REPEATS, FOLDS = 2, 5
OURS, MLP = "RedClassifier", "MLPClassifier"
DATA = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer}


def mlp(seed: int, iterations: int = 200) -> MLPClassifier:
    """Return scikit-learn's network; 200 iterations are its default."""
    return MLPClassifier(max_iter=iterations, random_state=seed)


def logistic() -> LogisticRegression:
    """Return a logistic regression that converges."""
    return LogisticRegression(max_iter=1000)


MAKERS: dict[str, Callable[[int], Any]] = {
    OURS: lambda seed: RedClassifier(random_state=seed),
    MLP: lambda seed: make_pipeline(StandardScaler(), mlp(seed)),
    "the same, 500 iterations": lambda seed: make_pipeline(StandardScaler(), mlp(seed, 500)),
    "LogisticRegression": lambda seed: make_pipeline(StandardScaler(), logistic()),
    "VotingClassifier of both": lambda seed: make_pipeline(
        StandardScaler(), VotingClassifier([("mlp", mlp(seed)), ("logistic", logistic())], voting="soft")
    ),
}


def chosen_on(y: np.ndarray) -> np.ndarray:
    """Return the rows within which settings of RedClassifier were compared."""
    return np.asarray(train_test_split(np.arange(len(y)), test_size=0.4, stratify=y, random_state=12345)[0])


def measure(x: np.ndarray, y: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the share of repetitions in which each row is predicted correctly, (N,), and the seconds of all fits."""
    right = {name: np.zeros(len(y)) for name in MAKERS}
    seconds = dict.fromkeys(MAKERS, 0.0)
    for seed in range(REPEATS):
        for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, y):
            for name, make in MAKERS.items():
                model, start = make(seed), time.perf_counter()
                model.fit(x[train], y[train])
                seconds[name] += time.perf_counter() - start
                right[name][test] += (model.predict(x[test]) == y[test]) / REPEATS
    return right, seconds


def describe(right: np.ndarray) -> str:
    """Return the mean over rows with its normal 95 % interval."""
    half = 1.96 * right.std(ddof=1) / len(right) ** 0.5
    return f"{right.mean():.4f} ± {half:.4f}"


def print_table(title: str, columns: list[str], rows: dict[str, list[str]]) -> None:
    """Print a Markdown table."""
    print(f"\n| {title} | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    logging.getLogger("redx").setLevel(logging.ERROR)  # a risk that few rows do not support is said at every fit
    warnings.simplefilter("ignore")  # and so is a network that has not converged
    sets = {name: load(return_X_y=True) for name, load in DATA.items()}
    RedClassifier(random_state=0).fit(*sets["wine"])  # loads what neither side counts
    found = {name: measure(x, y) for name, (x, y) in sets.items()}
    print_table(
        f"accuracy, {FOLDS} folds, {REPEATS} repetitions",
        list(sets),
        {name: [describe(right[name]) for right, _ in found.values()] for name in MAKERS},
    )
    others = {name: np.setdiff1d(np.arange(len(y)), chosen_on(y)) for name, (_, y) in sets.items()}
    print_table(
        "accuracy on rows that no choice looked at",
        [f"{name}, {len(others[name])} rows" for name in sets],
        {name: [describe(right[name][others[data]]) for data, (right, _) in found.items()] for name in MAKERS},
    )
    print_table(
        f"seconds of fit over those of {OURS}",
        list(sets),
        {
            name: [f"{seconds[name] / seconds[OURS]:.2f}×" for _, seconds in found.values()]
            for name in MAKERS
            if name != OURS
        },
    )
