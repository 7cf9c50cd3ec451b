"""What a RedClassifier does with single experts: train them, add them, remove them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from redx.data.dataset import Split
from redx.estimator.checks import InvalidInput, read_features
from redx.estimator.state import FittedState
from redx.models.composed import Model
from redx.models.expert import Expert
from redx.models.library import with_raised_cutoffs
from redx.training.datasets import ExpertData
from redx.training.experts import train_experts


class ExpertMethods:
    """The part of `redx.RedClassifier` that trains, adds and removes experts; the classifier has these attributes."""

    experts: str
    alpha_: float
    classes_: np.ndarray
    domains_: tuple[str, ...]
    model_: Model
    _state: FittedState

    def _train_experts(self, datasets: Sequence[ExpertData]) -> list[Expert]:
        """Train experts; warn where there are too few held-out examples for the cut-off of some."""
        state = self._state
        seed = state.config.seeds[0]
        experts = train_experts(state.config, datasets, state.base, seed, 1.0, state.classes, state.fingerprint)
        if self.experts == "owned":
            inactive = [expert.name for expert in experts if expert.info["ownership"]["cutoff"] is None]
            if inactive:
                warnings.warn(
                    f"The promise alpha={self.alpha_:g} cannot be given for {', '.join(inactive)}: it takes "
                    f"{math.ceil(1 / self.alpha_) - 1} held-out examples outside the domain, and there are fewer; "
                    "these experts are never active. Give more data or a larger alpha.",
                    stacklevel=4,
                )
        return [with_raised_cutoffs(expert) for expert in experts]

    def add_expert(self, X: Any, y: Any = None, domain: Any = None) -> str:
        """Add an expert and return its name.

        Parameters
        ----------
        X
            Examples of a new domain, on which an expert is trained alone; or without `y` the folder of an expert.
        y
            Labels of these examples; they must be classes that the classifier was fitted with.
        domain
            The name of the new domain.
        """
        check_is_fitted(self, "model_")
        if y is None:
            if not isinstance(X, str | Path | Expert):
                raise InvalidInput("Give the examples, labels and name of a domain, or the folder of an expert.")
            expert = X if isinstance(X, Expert) else Expert.load(X)
            self._check_gate(expert.name)
        else:
            expert = self._train_one_expert(X, y, domain)
        name = self.model_.experts.add(expert)
        self.model_.experts.to_double()
        return name

    def remove_expert(self, name: Any) -> Expert:
        """Remove an expert and return it, so that it can be added again."""
        check_is_fitted(self, "model_")
        return self.model_.experts.remove(str(name))

    def _train_one_expert(self, X: Any, y: Any, domain: Any) -> Expert:
        if domain is None:
            raise InvalidInput("The new domain has no name; give it as `domain`.")
        name, state = str(domain), self._state
        self._check_gate(name)
        if name in self.model_.experts:
            raise InvalidInput(f"There is an expert {name!r} already; remove it first.")
        features, y = read_features(cast(Any, self), X, y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InvalidInput(
                f"The classifier was fitted without the class {unknown[0]!r}, and an expert corrects answers but adds "
                "no class; fit it anew with examples of that class in the data."
            )
        labels = torch.from_numpy(np.searchsorted(self.classes_, y))
        if state.config.ownership.score == "classes" and len(labels.unique()) == len(self.classes_):
            raise InvalidInput(
                "The domains have classes of their own here, by which an expert recognises its domain, but the new "
                "domain has all classes; fit anew with this domain in the data."
            )
        index = self.domains_.index(name) if name in self.domains_ else -1
        own = Split(state.base.embed(state.standardise(features).float()), labels, torch.full_like(labels, index))
        nothing = own.only(torch.arange(0))
        return self._train_experts([state.shared.for_expert(name, own, nothing, self.domains_)])[0]

    def _check_gate(self, name: str) -> None:
        if self._state.router is not None and name not in self.domains_:
            raise InvalidInput(
                f"The {self._state.config.router.shape} router has no gate for {name!r}, for its width is fixed; fit "
                'anew with this domain in the data, or choose router="keys", with which experts can be added.'
            )
