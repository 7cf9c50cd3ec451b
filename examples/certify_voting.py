"""Certificates for a VotingClassifier of scikit-learn: how much may its weights be wrong?"""

# %% Three classifiers vote by the mean of their probabilities. This part needs no redx.
import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

import redx
from redx.composition.files import parts_from_arrays

inputs, labels = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(inputs / 16, labels, test_size=0.5, random_state=0)
models = [
    ("logistic", LogisticRegression(max_iter=500)),
    ("forest", RandomForestClassifier(40, random_state=0)),
    ("bayes", GaussianNB(var_smoothing=1e-2)),
]
voting = VotingClassifier(models, voting="soft").fit(train_x, train_y)

# %% The arrays: log-probabilities of every member. There is no base and no router, so both are zeros.
members = np.stack([voting.named_estimators_[name].predict_proba(test_x) for name, _ in models], 1)  # (N, K, C)
log_probabilities = np.log(np.maximum(members, 1e-12))
examples, experts, classes = members.shape
arrays = {
    "base": np.zeros((examples, classes)),
    "residuals": log_probabilities,
    "gates": np.zeros((examples, experts)),
    "labels": test_y,
    "domains": np.zeros(examples, int),
}
np.savez("votes.npz", **arrays)  # for `redx certify --parts votes.npz --rule uniform`

# %% Which votes stand whatever the weights of the members are?
report = redx.certify_parts("votes.npz", rule="uniform")
assert (report.predicted.numpy() == voting.predict(test_x)).all()  # the same predictions as scikit-learn
print(f"accuracy {report.figures['accuracy']['mean']:.4f}")
for epsilon, share in report.figures["certified"].items():
    print(f"right for all weights within ε = {epsilon}: {share:.4f}")

# %% A weighted vote with a fallback: the logistic regression is the base, the others correct it where they may.
base = log_probabilities[:, 0]
corrected = {"base": base, "residuals": log_probabilities[:, 1:] - base[:, None], "gates": np.zeros((examples, 2))}
report = redx.certify_parts(parts_from_arrays(arrays | corrected), rule="red", risk=0.02)
risk = report.figures["risk"]
print(f"base {risk['before']['base']:.4f}; any router without a cut-off {risk['before']['worst']:.4f}")
print(f"cut-off {risk['cutoff']}: clean {risk['after']['clean']:.4f}, any router {risk['after']['worst']:.4f}")
