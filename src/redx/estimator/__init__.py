"""RedClassifier: base, experts, router and certificates as a scikit-learn estimator."""

from redx.estimator.classifier import RedClassifier

__all__ = ["RedClassifier"]
