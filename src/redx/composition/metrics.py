"""Metrics of predictions: accuracy, F1, calibration error, accuracy by domain, and 95 % intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from redx.composition.parts import predicted_classes

UPPER = 0.975  # the quantile of two-sided 95 % intervals
MOST_CLASSES = 4096  # of tables of classes by classes; metrics of single classes are left out where there are more


@dataclass
class Tally:
    """Accumulator of the metrics of one rule, which is updated chunk by chunk.

    Parameters
    ----------
    outputs
        Number of outputs C; 1 for a regression.
    domains
        Names of the domains, in the order of `Parts.domains`.
    answers
        Number of possible answers: C, or for a regression the number of integers that are counted, from 0.
    shortlist
        Whether the columns of logits are a shortlist of the classes: then losses are given, and metrics of single
        classes and the calibration error are left out.

    Examples
    --------
    >>> tally = Tally(outputs=2, domains=("low", "high"), answers=2)
    >>> logits, base = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 0.0], [1.0, 0.0]])
    >>> tally.update(logits, base, labels=torch.tensor([0, 1]), domains=torch.tensor([0, 1]))
    >>> metrics = tally.compute()
    >>> metrics["accuracy"], metrics["help"], metrics["domain:low"]
    (1.0, 0.5, 1.0)
    """

    outputs: int
    domains: tuple[str, ...]
    answers: int
    shortlist: bool = False
    right: list[Tensor] = field(default_factory=list)
    base_right: list[Tensor] = field(default_factory=list)
    domain: list[Tensor | None] = field(default_factory=list)
    loss: float = 0.0
    losses: list[Tensor | None] = field(default_factory=list)

    @property
    def tabled(self) -> bool:
        """Whether metrics of single classes are computed: a vocabulary has too many of them."""
        return not self.shortlist and (self.answers <= MOST_CLASSES or self.outputs == 1)

    def __post_init__(self) -> None:
        from torchmetrics import MetricCollection  # importing it takes seconds, which other commands need not
        from torchmetrics.classification import (
            MulticlassCalibrationError,
            MulticlassConfusionMatrix,
            MulticlassF1Score,
            MulticlassPrecision,
            MulticlassRecall,
        )

        if self.tabled:
            self.counts = MetricCollection(
                {
                    "macro_precision": MulticlassPrecision(self.answers),
                    "macro_recall": MulticlassRecall(self.answers),
                    "macro_f1": MulticlassF1Score(self.answers),
                    "weighted_f1": MulticlassF1Score(self.answers, average="weighted"),
                }
            )
            self.class_counts = MetricCollection(
                {
                    "precision": MulticlassPrecision(self.answers, average=None),
                    "recall": MulticlassRecall(self.answers, average=None),
                    "f1": MulticlassF1Score(self.answers, average=None),
                }
            )
            self.confusion = MulticlassConfusionMatrix(self.answers)
        has_classes = self.outputs > 1 and not self.shortlist
        self.calibration = MulticlassCalibrationError(self.outputs, n_bins=15) if has_classes else None

    def update(
        self,
        logits: Tensor,
        base: Tensor,
        labels: Tensor,
        domains: Tensor | None = None,
        losses: Tensor | None = None,
    ) -> None:
        """Add a chunk of examples.

        Parameters
        ----------
        logits
            Composed logits of shape (N, C).
        base
            Logits of the base, (N, C).
        labels
            True classes of shape (N,).
        domains
            Index of the true domain, (N,); None where it is unknown.
        losses
            Losses over all classes, (N,), where logits are those of a shortlist; None where they are unknown.
        """
        predicted = predicted_classes(logits)
        self.right.append(predicted == labels)
        self.base_right.append(predicted_classes(base) == labels)
        self.domain.append(domains)
        counted = predicted.clamp(0, self.answers - 1)  # a regression may predict an integer outside the range
        if self.tabled:
            self.counts.update(counted, labels)
            self.class_counts.update(counted, labels)
            self.confusion.update(counted, labels)
        if self.shortlist:
            self.losses.append(losses)
        elif self.calibration is None:
            self.loss += float((logits[:, 0] - labels).square().sum())
        else:
            self.calibration.update(logits.softmax(-1), labels)
            self.loss += float(cross_entropy(logits, labels, reduction="sum"))

    def compute(self) -> dict[str, float | None]:
        """Return the metrics of all examples so far.

        Returns
        -------
        dict
            Metrics by name: accuracy, macro_precision, macro_recall, macro_f1, weighted_f1, ece (None for a
            regression), loss, harm, help, worst_domain, and `domain:NAME`, the accuracy in a domain. Where domains are
            unknown, worst_domain is None; where there are too many classes, the metrics of single classes are missing.
            On a shortlist there is also `loss:NAME`, the loss in a domain.
        """
        right, base_right = torch.cat(self.right).double(), torch.cat(self.base_right).double()
        known = [domain for domain in self.domain if domain is not None]
        domains = torch.cat(known) if len(known) == len(self.domain) else None
        per_domain = by_domain(right, domains, self.domains)
        losses = _joined(self.losses)
        loss_by_domain = {} if losses is None else by_domain(losses, domains, self.domains)
        return {
            "accuracy": float(right.mean()),
            **({name: float(value) for name, value in self.counts.compute().items()} if self.tabled else {}),
            "ece": None if self.calibration is None else float(self.calibration.compute()),
            "loss": (None if losses is None else float(losses.mean())) if self.shortlist else self.loss / len(right),
            "harm": float(((base_right == 1) & (right == 0)).double().mean()),
            "help": float(((base_right == 0) & (right == 1)).double().mean()),
            "worst_domain": min(per_domain.values(), default=None),
            **{f"domain:{name}": value for name, value in per_domain.items()},
            **{f"loss:{name}": value for name, value in loss_by_domain.items()},
        }

    def compute_per_class(self) -> dict[str, list[float]]:
        """Return the metrics of every class.

        Returns
        -------
        dict
            Lists of C numbers by name: precision, recall and f1. A metric whose denominator is zero is 0.
        """
        values = self.class_counts.compute()
        return {name: values[name].tolist() for name in ("precision", "recall", "f1")}


def _joined(losses: list[Tensor | None]) -> Tensor | None:
    """Return losses of all chunks as one tensor; None where some are unknown."""
    known = [values.double() for values in losses if values is not None]
    return torch.cat(known) if known and len(known) == len(losses) else None


def unit_mean(values: Tensor, groups: Tensor | None) -> float:
    """Return the mean over examples, (N,); where they come in groups, the mean over groups of the means of each.

    Examples
    --------
    >>> unit_mean(torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 1]))
    0.5
    """
    if groups is None:
        return float(values.double().mean())
    return float(group_means(values, groups).mean())


def group_means(values: Tensor, groups: Tensor) -> Tensor:
    """Return the mean of every group in ascending order of groups, (N,) to (G,) in float64."""
    _, index, sizes = groups.unique(return_inverse=True, return_counts=True)
    return torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, index, values.double()) / sizes


def by_domain(right: Tensor, domains: Tensor | None, names: tuple[str, ...]) -> dict[str, float]:
    """Return the accuracy in every domain.

    Parameters
    ----------
    right
        Whether the predictions are correct, (N,).
    domains
        Index of the true domain, (N,); None where it is unknown.
    names
        Names of the domains.

    Returns
    -------
    dict
        Accuracy by the name of the domain; domains without an example are left out.

    Examples
    --------
    >>> by_domain(torch.tensor([True, False, True]), torch.tensor([0, 0, 1]), ("low", "high", "empty"))
    {'low': 0.5, 'high': 1.0}
    """
    if domains is None:
        return {}
    shares = {name: right[domains == index].double().mean() for index, name in enumerate(names)}
    return {name: float(share) for name, share in shares.items() if not share.isnan()}


def noise_area(levels: tuple[float, ...], values: list[float]) -> float:
    """Return the area under a noise curve, by the trapezoidal rule.

    Parameters
    ----------
    levels
        Noise levels in ascending order.
    values
        Accuracy at these levels.

    Returns
    -------
    float
        The area. With levels from 0 to 1 it is at most 1, which means a perfect accuracy at every level.

    Examples
    --------
    >>> noise_area((0.0, 0.5, 1.0), [1.0, 0.8, 0.4])
    0.75
    """
    curve = torch.tensor([levels, values], dtype=torch.float64)
    return float(torch.trapezoid(curve[1], curve[0]))


def mean_interval(values: list[float], examples: int) -> dict[str, float]:
    """Return the mean of a share over seeds with its 95 % interval.

    Parameters
    ----------
    values
        The share in every seed.
    examples
        Number of test examples of one seed.

    Returns
    -------
    dict
        `mean`, and the ends `low` and `high` of the interval within [0, 1]: Student's t interval over the seeds, or
        for one seed Wilson's interval over the examples.

    Examples
    --------
    >>> {name: round(value, 4) for name, value in mean_interval([0.4, 0.5, 0.6], examples=50).items()}
    {'mean': 0.5, 'low': 0.2516, 'high': 0.7484}
    """
    mean = sum(values) / len(values)
    if len(values) == 1:
        low, high = wilson_interval(mean, examples)
    else:
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        half = student_quantile(len(values) - 1) * deviation / math.sqrt(len(values))
        low, high = max(0.0, mean - half), min(1.0, mean + half)
    return {"mean": mean, "low": low, "high": high}


def wilson_interval(share: float, examples: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share.

    Parameters
    ----------
    share
        The share; it may be a mean over seeds, so that `share * examples` need not be an integer.
    examples
        Number of examples.

    Returns
    -------
    tuple of float
        Lower and upper end, within [0, 1].

    Examples
    --------
    >>> low, high = wilson_interval(0.9, 50)
    >>> round(low, 4), round(high, 4)
    (0.7864, 0.9565)
    """
    from scipy import stats

    z = float(stats.norm.ppf(UPPER))
    centre = (share + z * z / (2 * examples)) / (1 + z * z / examples)
    half = z * math.sqrt(share * (1 - share) / examples + z * z / (4 * examples**2)) / (1 + z * z / examples)
    return max(0.0, centre - half), min(1.0, centre + half)


def exact_interval(count: int, examples: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) interval of a share.

    Parameters
    ----------
    count
        Number of examples that have the property.
    examples
        Number of examples.
    level
        Confidence of the two-sided interval.

    Returns
    -------
    tuple of float
        Lower and upper end, within [0, 1].

    Examples
    --------
    >>> low, high = exact_interval(0, 100)
    >>> low, round(high, 4)
    (0.0, 0.0362)
    """
    from scipy import stats

    interval = stats.binomtest(count, examples).proportion_ci(level, method="exact")
    return float(interval.low), float(interval.high)


def upper_bound(successes: int, examples: int, confidence: float) -> float:
    """Return the exact (Clopper-Pearson) upper confidence bound of a share.

    Parameters
    ----------
    successes, examples
        How many of how many examples.
    confidence
        Probability with which the true share is at most the bound, whatever it is.

    Returns
    -------
    float
        The bound; 1 where all examples have the property.

    Examples
    --------
    >>> round(upper_bound(5, 100, 0.95), 4), round(upper_bound(0, 100, 0.95), 4)
    (0.1023, 0.0295)
    """
    from scipy import stats

    left = examples - successes
    return 1.0 if left <= 0 else float(stats.beta.ppf(confidence, successes + 1, left))


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution.

    Parameters
    ----------
    freedom
        Degrees of freedom.

    Returns
    -------
    float
        The factor of the standard error in a two-sided 95 % interval.

    Examples
    --------
    >>> round(student_quantile(4), 4)
    2.7764
    """
    from scipy import stats

    return float(stats.t.ppf(UPPER, freedom))
