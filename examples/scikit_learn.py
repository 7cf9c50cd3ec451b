"""RedClassifier beside three scikit-learn classifiers that see all data pooled: three data sets, three seeds."""

# %% What is compared: experts trained apart and recomposed, against one model of all data.
import sys
from statistics import mean

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from redx import RedClassifier

SEEDS = tuple(map(int, sys.argv[1:])) or (0, 1, 2)  # python examples/scikit_learn.py 0: one seed alone
DATA = {
    "digits, 5 label pairs": load_digits,
    "wine, clusters": load_wine,
    "breast cancer, clusters": load_breast_cancer,
}
POOLED = {
    "logistic": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "mlp": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(max_iter=500, random_state=seed)),
    "boosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
}


def measure(X: np.ndarray, y: np.ndarray, domains: np.ndarray | None, seed: int) -> dict[str, float]:
    """Accuracy on a quarter of the data; `any router`: right, and proven to stay so whatever the router does."""
    rows = train_test_split(np.arange(len(y)), stratify=y, random_state=seed)
    train, test = rows[0], rows[1]
    found: dict[str, float] = {}
    for experts in ("risk", "plain"):
        clf = RedClassifier(experts=experts, share=0.3, random_state=seed)
        clf.fit(X[train], y[train], domains=None if domains is None else domains[train])
        right = clf.predict(X[test]) == y[test]
        found[f"red/{experts}"] = float(right.mean())
        found[f"{experts}, any router"] = float((right & (clf.certified_radius(X[test]) >= 1)).mean())
        if experts == "risk":
            found = {"base": float(clf.set_params(rule="base").score(X[test], y[test])), **found}
    for name, make in POOLED.items():
        found[name] = float(make(seed).fit(X[train], y[train]).score(X[test], y[test]))
    return found


# %% The table: means over the seeds, the lowest and highest seed in brackets.
for name, load in DATA.items():
    X, y = load(return_X_y=True)
    runs = [measure(X, y, y // 2 if load is load_digits else None, seed) for seed in SEEDS]
    print(f"\n{name}")
    for column in runs[0]:
        values = [run[column] for run in runs]
        print(f"  {column:<18} {mean(values):.3f}  [{min(values):.3f} {max(values):.3f}]")
