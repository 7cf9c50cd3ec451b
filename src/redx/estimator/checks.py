"""Parameters and inputs of a RedClassifier: what is wrong is refused with one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data
from torch import Tensor

from redx.composition.risk import BUDGETS, BY
from redx.composition.rules import RULES, Rule
from redx.data.clusters import cluster_domains
from redx.data.splits import sample_per_group
from redx.errors import RedxError
from redx.models.backbones.language import load_lower_half
from redx.models.encoder import read_backbone
from redx.models.router import KEYS, ROUTERS
from redx.seeding import generator

if TYPE_CHECKING:
    from redx.estimator.classifier import RedClassifier

CHOICES: dict[str, Callable[[], Iterable[str]]] = {  # looked up when they are needed, since plugins may add some
    "rule": lambda: RULES,
    "experts": lambda: ("risk", "anchored", "plain"),
    "router": lambda: (KEYS, *ROUTERS),
    "budget": lambda: BUDGETS,
}


class InvalidInput(RedxError, ValueError):
    """A user's mistake, as the ValueError that scikit-learn expects."""


def check_choices(estimator: RedClassifier) -> None:
    """Refuse a parameter that is none of the known words."""
    for name, find in CHOICES.items():
        value, known = getattr(estimator, name), find()
        if not isinstance(value, str) or value not in known:
            raise InvalidInput(f"{name}={value!r} is not known; choose one of {', '.join(known)}.")


def check_parameters(estimator: RedClassifier) -> None:
    """Refuse parameters that cannot be used."""
    check_choices(estimator)
    if estimator.by is not None and estimator.by not in BY:
        raise InvalidInput(f"by={estimator.by!r} is not known; choose one of {', '.join(BY)}.")
    for name in ("share", "held_out"):
        value, most = getattr(estimator, name), "at most 1" if name != "held_out" else "below 1"
        if not isinstance(value, Real) or not 0 < float(value) <= 1 or (name == "held_out" and value == 1):
            raise InvalidInput(f"{name}={value!r} is no share above 0 and {most}; choose one such as 0.1.")
    for name in ("risk", "confidence"):
        value = getattr(estimator, name)
        if value is not None and (not isinstance(value, Real) or not 0 <= float(value) <= 1):
            raise InvalidInput(f"{name}={value!r} is no number from 0 to 1; choose one such as 0.01.")
    if estimator.confidence in (0, 1):
        raise InvalidInput(f"confidence={estimator.confidence!r} cannot be promised; choose one such as 0.95.")
    for name, least in {"n_domains": 2, "hidden": 1, "epochs": 1}.items():
        value = getattr(estimator, name)
        if name in ("hidden", "epochs") and value is None:
            continue
        if not isinstance(value, Integral) or value < least:
            raise InvalidInput(f"{name}={value!r} is no whole number from {least} on; choose a larger one.")


def read_features(estimator: RedClassifier, X: Any, y: Any = None, reset: bool = False) -> tuple[np.ndarray, Any]:
    """Return examples as features in double precision, (N, F), and labels, checked as scikit-learn does.

    With `reset`, as in `fit`, the number and names of the features are recorded, and texts are cached.
    """
    if estimator.backbone is None:
        check: Any = validate_data  # its type hints allow less than it takes
        if y is None and not reset:
            return check(estimator, X, dtype=np.float64, reset=False), None
        return check(estimator, X, y, dtype=np.float64, reset=reset)
    if y is None and reset:
        raise InvalidInput("This RedClassifier estimator requires y to be passed, but the target y is None.")
    if not isinstance(estimator.backbone, str):
        width = None if reset else len(estimator._state.mean)
        try:
            features = read_backbone(estimator.backbone, X, width).double().numpy()
        except RedxError as error:
            raise InvalidInput(str(error)) from error
        return features, None if y is None else _read_labels(features, y)
    texts = [] if isinstance(X, str) else [text for text in X if isinstance(text, str)]
    if isinstance(X, str) or not texts or len(texts) < len(X):
        raise InvalidInput("With a backbone, X is a sequence of texts, such as ['What is 37 plus 12?']; give such.")
    if y is not None:
        y = _read_labels(texts, y)
    language_model = load_lower_half(estimator.backbone)
    if reset:
        language_model.prepare(texts)  # cached, for a search over parameters reads them again and again
    return language_model.read(texts).double().numpy(), y


def _read_labels(examples: Any, y: Any) -> np.ndarray:
    check_consistent_length(examples, y)
    return column_or_1d(y, warn=True)


def split_examples(
    estimator: RedClassifier, features: np.ndarray, labels: np.ndarray, domains: Any, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return which examples are held out, the domain index of each example, and the domains' names."""
    draw, share = generator(seed, "held out"), estimator.held_out if estimator.experts == "risk" else 0.0
    if domains is None:
        held = sample_per_group(labels, share, 0, draw)
        index = cluster_domains(features, ~held, labels, estimator.n_domains, seed)
        return held, index, tuple(f"cluster-{number + 1}" for number in range(index.max() + 1))
    check_consistent_length(features, domains)
    column = column_or_1d(domains)
    if missing := [row for row, name in enumerate(column) if name is None or name != name or not str(name).strip()]:
        raise InvalidInput(f"Row {missing[0]} has no domain ({column[missing[0]]!r}); give every example one.")
    names, index = np.unique([str(name) for name in column], return_inverse=True)
    if len(names) < 2:
        raise InvalidInput("There is only one domain; give at least two, or leave out `domains` to have them found.")
    held = sample_per_group(index * len(estimator.classes_) + labels, share, 0, draw)
    return held, index, tuple(map(str, names))


def expert_index(rule: Rule, experts: Sequence[str], count: int, domains: Any) -> Tensor:
    """Return the index of the expert of each example's domain, (N,); -1 where it is unknown."""
    if domains is None:
        if rule.knows_domain:
            raise InvalidInput(f"The rule {rule.name!r} needs the true domain of each example; give `domains`.")
        return torch.full((count,), -1)
    names = [str(name) for name in column_or_1d(domains)]
    if len(names) != count:
        raise InvalidInput(f"There are {count} examples but {len(names)} domains; give one each.")
    index = {name: number for number, name in enumerate(experts)}
    return torch.tensor([index.get(name, -1) for name in names])


def to_label_values(fitted: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return the new classes of experts, which are texts, as labels of the kind that the classifier was fitted with.

    Parameters
    ----------
    fitted
        The classes of `fit`, (C,).
    names
        The new classes.
    """
    kind = fitted.dtype.kind
    try:
        if kind in "iuf":
            return np.array([float(name) if kind == "f" else int(name) for name in names], fitted.dtype)
        if kind == "U" or (kind == "O" and all(isinstance(label, str) for label in fitted)):
            return np.array(names, object if kind == "O" else str)
    except (ValueError, OverflowError):
        pass
    if not names:
        return fitted[:0]
    raise InvalidInput(
        f"The expert brings the class {names[0]!r:.100}, but the labels of this classifier are of the kind "
        f"{fitted.dtype}; use labels of one kind."
    )
