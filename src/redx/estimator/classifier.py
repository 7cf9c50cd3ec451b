"""A scikit-learn classifier that splits, trains, composes and certifies by itself, for arrays or texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from redx.composition.evaluation import certify
from redx.composition.parts import Parts
from redx.composition.risk import supported_risk
from redx.composition.rules import Rule, compose, get_rule, to_logits
from redx.config import BankId
from redx.data.dataset import Split
from redx.data.splits import classes_are_disjoint, sample_per_group
from redx.errors import RedxError
from redx.estimator.checks import (
    InvalidInput,
    check_choices,
    check_parameters,
    expert_index,
    read_features,
    split_examples,
    to_label_values,
)
from redx.estimator.state import (
    FittedState,
    build_config,
    build_encoder,
    expert_from_plain,
    expert_to_plain,
    standardise,
    to_double_precision,
)
from redx.io.files import natural_order
from redx.model.model import Backbone
from redx.models.backbones import hub
from redx.models.classes import check_new_classes, extend_base
from redx.models.encoder import mark_backbone
from redx.models.expert import Expert
from redx.models.fingerprint import fingerprint_base
from redx.seeding import generator
from redx.training.banks import train_pooled
from redx.training.base import solve_feature_base
from redx.training.datasets import ExpertData, expert_data, expert_datasets
from redx.training.experts import train_experts
from redx.training.router import train_router

ROWS = 8192  # examples that are predicted at once


class RedClassifier(ClassifierMixin, BaseEstimator):
    """A base, one expert per domain, each trained alone, and a rule that puts them together.

    Parameters
    ----------
    rule
        How the answer is composed, any of `redx.RULES`; it may be changed after `fit` among rules of the same form.
        `oracle` and `red-oracle` need the `domains` of the examples that are predicted.
    experts
        `risk` experts are anchored and contribute only above the cut-off that keeps the risk; `anchored` experts keep
        the base's answers outside their domain; `plain` experts are trained on their own domain alone.
    risk
        Bound on the harm of the worst router with `risk` experts: the share of examples that the base answers
        correctly and the composed model, with some router, does not. None: 0.01, or the smallest that the held-out
        examples support.
    confidence
        None: the risk is kept on average over held-out sets. Otherwise it is kept with this probability.
    by
        `domain`: the risk is kept in every domain, so for any mix of them. `all`: over all examples together. None: by
        domain where `domains` are given and every class belongs to one, else over all. Where domains share classes, a
        head of the base names the domain of an example.
    budget
        Whether the risk bounds all `harm`, or the harm that routers do alone, `routing`: where the expert of the domain
        is right.
    router
        `keys` are the experts' own ownership scores, so experts can be added and removed; `mlp` and `linear` are
        trained on all domains together and have a fixed number of gates.
    share
        Share of the training data that the base is trained on and that serves as anchors.
    held_out
        Share of the data that sets the cut-off of `risk` experts; nothing is trained on it.
    n_domains
        Number of clusters that become domains where no `domains` are given.
    hidden
        Number of random features of the base; None: twice the number of training examples, at most 1000.
    epochs
        Passes over the data with which a router other than `keys` is trained; None: enough for the number of examples.
    backbone
        What turns examples into features, frozen: the name or folder of a language model, and X is then a sequence of
        texts; or any `nn.Module` or function from a batch to features, (N, D), and X is what it reads.
    random_state
        An int makes the result repeatable.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As in every scikit-learn classifier; classes that experts bring follow those of `fit`.
    domains_
        Names of the domains that it was fitted on.
    risk_
        The risk that is used.
    model_
        The composed `redx.Model`; `model_.explain(X)` gives weights, contributions and radius.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = RedClassifier(random_state=0, n_domains=2).fit(X, y)
    >>> classifier.predict(X).shape, classifier.certified_radius(X).shape
    ((150,), (150,))
    """

    def __init__(
        self,
        rule: str = "red",
        *,
        experts: str = "risk",
        risk: float | None = None,
        confidence: float | None = None,
        by: str | None = None,
        budget: str = "harm",
        router: str = "keys",
        share: float = 1.0,
        held_out: float = 0.2,
        n_domains: int = 3,
        hidden: int | None = None,
        epochs: int | None = None,
        backbone: Backbone = None,
        random_state: Any = None,
    ) -> None:
        self.rule = rule
        self.experts = experts
        self.risk = risk
        self.confidence = confidence
        self.by = by
        self.budget = budget
        self.router = router
        self.share = share
        self.held_out = held_out
        self.n_domains = n_domains
        self.hidden = hidden
        self.epochs = epochs
        self.backbone = backbone
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = isinstance(self.backbone, str)
        tags.input_tags.two_d_array = self.backbone is None
        return tags

    # --- training

    def fit(self, X: Any, y: Any, domains: Any = None) -> RedClassifier:
        """Solve for base and experts, and train the router where there is something to train.

        Parameters
        ----------
        X
            Features of shape (N, F), or with a backbone what it reads, such as a sequence of texts.
        y
            Labels of shape (N,).
        domains
            The domain of each example, (N,); without it, clusters of the data become the domains.
        """
        check_parameters(self)
        features, y = read_features(self, X, y, reset=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        self._fitted_classes = self.classes_  # experts may bring others
        if len(self.classes_) < 2:
            raise InvalidInput("RedClassifier separates classes, but y has 1 class; give examples of at least two.")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng(devices=[]):  # torch's global generator is as before afterwards
            self._train(features, labels, domains, seed)
        return self

    def _train(self, features: np.ndarray, labels: np.ndarray, domains: Any, seed: int) -> None:
        held, domain_index, self.domains_ = split_examples(self, features, labels, domains, seed)
        groups = domain_index * len(self.classes_) + labels
        shared = np.flatnonzero(~held)
        shared = shared[sample_per_group(groups[shared], self.share, 1, generator(seed, "shared subset"))]
        mean, deviation = features[shared].mean(0), features[shared].std(0)
        scale = np.where(deviation > 1e-9 * np.abs(mean), deviation, 1.0)  # a constant feature is not divided
        x = standardise(features, mean, scale).float()
        own_classes = domains is not None and classes_are_disjoint(domain_index, labels)
        if self.experts == "risk":
            self.risk_ = self._supported_risk(int(held.sum()))
        config = build_config(self.get_params(), int((~held).sum()), len(self.domains_), own_classes)
        every = Split(x, torch.from_numpy(labels), torch.from_numpy(domain_index))
        names = tuple(map(str, self.classes_))
        anchors = every.only(torch.from_numpy(shared))
        base = solve_feature_base(build_encoder(x.shape[1]), anchors, names)
        train, rest = every.only(torch.from_numpy(~held)), every.only(torch.from_numpy(held))
        fingerprint = fingerprint_base(base, config, names, (features.shape[1],))
        if isinstance(self.backbone, str):
            fingerprint["backbone"] = hub.hash_model(hub.model_folder(self.backbone))
        elif self.backbone is not None:
            fingerprint["backbone"] = mark_backbone(self.backbone)
        state = FittedState(config, base, anchors, rest, names, self.domains_, fingerprint, seed, mean, scale)
        self._state = state
        experts = self._train_experts(expert_datasets(self.domains_, train, anchors, rest))
        if self.router != "keys":
            state.router = train_router(config.router, self.domains_, train, rest, seed).state_dict()
        if config.of_form("pooled"):
            state.pooled = train_pooled(config, base, train, rest, seed, 1.0)
        self.model_ = state.compose(experts, self._to_inputs, self.rule)
        if self.experts == "risk":
            self.model_.current_control()

    def _supported_risk(self, examples: int) -> float:
        try:
            return supported_risk(self.risk, examples, self.confidence)
        except RedxError as error:
            raise InvalidInput(str(error).replace("validation examples", "data or a larger held_out")) from error

    def calibrate(
        self,
        X: Any = None,
        y: Any = None,
        *,
        risk: float | None = None,
        confidence: float | None = None,
        by: str | None = None,
        budget: str | None = None,
    ) -> RedClassifier:
        """Set the risk of a fitted classifier, on the examples that `fit` held out or on others; nothing is trained.

        Parameters
        ----------
        X, y
            Examples that nothing was trained or chosen on; by default those that `fit` held out.
        risk, confidence, by, budget
            As the parameters of the same names; None for `by` and `budget` keeps what they are.
        """
        check_is_fitted(self, "model_")
        if self.experts != "risk":
            raise InvalidInput(f'experts="{self.experts}" has no risk to choose; fit with experts="risk".')
        if X is None:
            calibration = self.model_.calibrate(risk=risk, confidence=confidence, by=by, budget=budget)
        else:
            labels = None if y is None else [str(label) for label in column_or_1d(y)]
            calibration = self.model_.calibrate(X, labels, risk=risk, confidence=confidence, by=by, budget=budget)
        self.risk_ = calibration.risk
        return self

    # --- experts

    def _train_experts(
        self, datasets: Sequence[ExpertData], new: Sequence[str] = (), statistics: bool = True
    ) -> list[Expert]:
        """Fit experts that bring these new classes; with `statistics` the base learns from their examples too."""
        state = self._state
        seed, base, classes = state.seed, extend_base(state.base, len(new)), (*state.classes, *new)
        shared = state.anchors if statistics else None
        return train_experts(state.config, datasets, base, seed, 1.0, classes, state.fingerprint, shared=shared)

    def add_expert(
        self, X: Any, y: Any = None, domain: Any = None, new_classes: bool = False, statistics: bool = True
    ) -> str:
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
        statistics
            Whether the base learns from its examples, by their statistics, which are then part of the expert.
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
            expert = self._train_one_expert(X, y, domain, new_classes, statistics)
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

    def _train_one_expert(self, X: Any, y: Any, domain: Any, new_classes: bool, statistics: bool) -> Expert:
        if domain is None:
            raise InvalidInput("The new domain has no name; give it as `domain`.")
        name, state = str(domain), self._state
        self._check_gate(name)
        if name in self.model_.experts:
            raise InvalidInput(f"There is an expert {name!r} already; remove it first.")
        features, y = read_features(self, X, y)
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
        if state.config.ownership.kind == "classes" and len(labels.unique()) == len(fitted) + len(new):
            raise InvalidInput(
                "The domains have classes of their own here, by which an expert recognises its domain, but the new "
                "domain has all classes; fit anew with this domain in the data."
            )
        domain_index = self.domains_.index(name) if name in self.domains_ else -1
        domains = torch.full_like(labels, domain_index)
        own = Split(state.base.embed(state.standardise(features).float()), labels, domains)
        nothing = own.only(torch.arange(0))
        return self._train_experts([expert_data(name, own, nothing, state.anchors, self.domains_)], new, statistics)[0]

    def _check_gate(self, name: str) -> None:
        if self._state.router is not None and name not in self.domains_:
            raise InvalidInput(
                f"The {self._state.config.router.shape} router has no gate for {name!r}, for its width is fixed; fit "
                'anew with this domain in the data, or choose router="keys", with which experts can be added.'
            )

    # --- prediction

    def decision_function(self, X: Any, domains: Any = None) -> np.ndarray:
        """Return the composed logits, (N, C); for two classes the lead of the second, (N,)."""
        logits = self._logits(X, domains)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any, domains: Any = None) -> np.ndarray:
        """Return the softmax of the composed logits, (N, C)."""
        return torch.from_numpy(self._logits(X, domains)).softmax(-1).numpy()

    def predict(self, X: Any, domains: Any = None) -> np.ndarray:
        """Return the class of each example, (N,)."""
        predicted = self._logits(X, domains).argmax(1)
        return self.classes_[predicted]

    def certified_radius(self, X: Any, domains: Any = None) -> np.ndarray:
        """Return ε* of each example, (N,): the routing weight that may be moved without changing the answer."""
        rule, parts = self._parts(X, domains)
        return certify(rule, parts).radius.numpy()

    def _logits(self, X: Any, domains: Any) -> np.ndarray:
        rule, parts = self._parts(X, domains)
        logits = [to_logits(rule, compose(rule, chunk, rule.weights(chunk))) for _, chunk in parts.chunks()]
        return torch.cat(logits).numpy()

    def _parts(self, X: Any, domains: Any) -> tuple[Rule, Parts]:
        check_is_fitted(self, "model_")
        model = self.model_
        rule, bank_id = self._rule_and_bank()
        x = model.read(X)
        owners = expert_index(rule, model.experts.names, len(x), domains)
        unknown = torch.full((ROWS,), -1)
        parts = [
            model.parts_of(model.base.embed(batch), bank_id, unknown[: len(batch)], owner)
            for batch, owner in zip(x.split(ROWS), owners.split(ROWS), strict=True)
        ]
        return rule, Parts.concatenate(parts)

    # --- inputs

    def _rule_and_bank(self) -> tuple[Rule, BankId]:
        """Return the rule as it is set now, and the bank that it reads."""
        check_choices(self)
        rule = get_rule(self.rule)
        bank_id = self._state.config.main_bank(rule.form)
        if bank_id not in self.model_.banks:
            why = "the experts have changed since" if rule.form == "averaged" else "none was trained"
            raise InvalidInput(f"rule={self.rule!r} reads {rule.form} heads, and {why}; fit anew with this rule.")
        return rule, bank_id

    def _to_inputs(self, X: Any) -> Tensor:
        return self._state.standardise(read_features(self, X)[0])

    # --- pickling: arrays and plain settings, from which the model is composed again

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(cast(Any, super().__getstate__()))
        if "model_" in state:
            library = state.pop("model_").experts
            plain = replace(self._state, head=library.head).to_plain()
            state |= {"_state": plain, "_experts": [expert_to_plain(expert) for expert in library]}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        experts = state.pop("_experts", None)
        super().__setstate__(state)
        if experts is not None:
            self._fitted_classes = state.get("_fitted_classes", self.classes_)  # absent in older pickles
            self._state = FittedState.from_plain(state["_state"])
            restored = [expert_from_plain(*parts) for parts in experts]
            self.model_ = self._state.compose(restored, self._to_inputs, self.rule)
