"""What a RedClassifier does with single experts: train them, add them, remove them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from redx.data.dataset import Split
from redx.estimator.checks import InvalidInput, read_features, to_label_values
from redx.estimator.state import FittedState, to_double_precision
from redx.io.files import natural_order
from redx.model.model import Model
from redx.models.classes import check_new_classes, extend_base
from redx.models.expert import Expert
from redx.training.datasets import ExpertData, expert_data
from redx.training.experts import train_experts


class ExpertMethods:
    """The part of `redx.RedClassifier` that trains, adds and removes experts; the classifier has these attributes."""

    experts: str
    classes_: np.ndarray
    domains_: tuple[str, ...]
    model_: Model
    _state: FittedState
    _fitted_classes: np.ndarray

    def _train_experts(self, datasets: Sequence[ExpertData], new: Sequence[str] = ()) -> list[Expert]:
        """Train experts that bring these new classes."""
        state = self._state
        seed, base, classes = state.seed, extend_base(state.base, len(new)), (*state.classes, *new)
        return train_experts(state.config, datasets, base, seed, 1.0, classes, state.fingerprint)

    def add_expert(self, X: Any, y: Any = None, domain: Any = None, new_classes: bool = False) -> str:
        """Add an expert and return its name.

        Parameters
        ----------
        X
            Examples of a new domain, on which an expert is trained alone; or without `y` the folder of an expert.
        y
            Labels of these examples; without `new_classes` they must be classes that the classifier was fitted with.
        domain
            The name of the new domain.
        new_classes
            Accept other labels: the expert brings them as classes of its own, and `classes_` grows.
        """
        check_is_fitted(self, "model_")
        if y is None:
            if not isinstance(X, str | Path | Expert):
                raise InvalidInput("Give the examples, labels and name of a domain, or the folder of an expert.")
            expert = X if isinstance(X, Expert) else Expert.load(X)
            self._check_gate(expert.name)
            if self._state.config.has_ownership:
                expert.ownership(self._state.config.ownership, self.model_.base)  # refused where it brings none
        else:
            expert = self._train_one_expert(X, y, domain, new_classes)
        to_label_values(self._fitted_classes, expert.new_classes)  # refused before anything changes
        name = self.model_.experts.add(expert)
        self.model_.experts.apply(to_double_precision)
        self._set_classes()
        return name

    def remove_expert(self, name: Any) -> Expert:
        """Remove an expert and return it, so that it can be added again."""
        check_is_fitted(self, "model_")
        removed = self.model_.experts.remove(str(name))
        self._set_classes()
        return removed

    def _set_classes(self) -> None:
        """Set `classes_` to the classes of `fit` and those that the experts bring, in the order of the logits."""
        new = self.model_.experts.new_classes
        fitted = self._fitted_classes
        self.classes_ = np.concatenate([fitted, to_label_values(fitted, new)]) if new else fitted

    def _train_one_expert(self, X: Any, y: Any, domain: Any, new_classes: bool) -> Expert:
        if domain is None:
            raise InvalidInput("The new domain has no name; give it as `domain`.")
        name, state = str(domain), self._state
        self._check_gate(name)
        if name in self.model_.experts:
            raise InvalidInput(f"There is an expert {name!r} already; remove it first.")
        features, y = read_features(cast(Any, self), X, y)
        fitted = self._fitted_classes
        unknown = np.setdiff1d(y, fitted)
        if len(unknown) and not new_classes:
            raise InvalidInput(
                f"The classifier was fitted without the class {unknown[0]!r}; give new_classes=True if the expert "
                "brings it as a class of its own, or correct the label."
            )
        values = sorted(unknown.tolist(), key=lambda label: natural_order(str(label)))
        new = tuple(map(str, values))
        check_new_classes(name, new, state.classes, ())
        number = {label: index for index, label in enumerate((*fitted.tolist(), *values))}
        labels = torch.tensor([number[label] for label in np.asarray(y).tolist()])
        if state.config.ownership.score == "classes" and len(labels.unique()) == len(fitted) + len(new):
            raise InvalidInput(
                "The domains have classes of their own here, by which an expert recognises its domain, but the new "
                "domain has all classes; fit anew with this domain in the data."
            )
        domain_index = self.domains_.index(name) if name in self.domains_ else -1
        domains = torch.full_like(labels, domain_index)
        own = Split(state.base.embed(state.standardise(features).float()), labels, domains)
        nothing = own.only(torch.arange(0))
        return self._train_experts([expert_data(name, own, nothing, state.anchors, self.domains_)], new)[0]

    def _check_gate(self, name: str) -> None:
        if self._state.router is not None and name not in self.domains_:
            raise InvalidInput(
                f"The {self._state.config.router.shape} router has no gate for {name!r}, for its width is fixed; fit "
                'anew with this domain in the data, or choose router="keys", with which experts can be added.'
            )
