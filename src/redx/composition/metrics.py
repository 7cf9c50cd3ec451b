"""How good the answers are: torchmetrics where it has the figure, a few lines where it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassRecall,
)

from redx.composition.parts import predicted_classes


@dataclass
class Tally:
    """Figures of one rule, gathered chunk by chunk; `outputs` is C and `answers` how many answers there are."""

    outputs: int
    domains: tuple[str, ...]
    answers: int
    right: list[Tensor] = field(default_factory=list)
    base_right: list[Tensor] = field(default_factory=list)
    domain: list[Tensor] = field(default_factory=list)
    loss: float = 0.0

    def __post_init__(self) -> None:
        self.counts = MetricCollection(
            {
                "macro_precision": MulticlassPrecision(self.answers),
                "macro_recall": MulticlassRecall(self.answers),
                "macro_f1": MulticlassF1Score(self.answers),
                "weighted_f1": MulticlassF1Score(self.answers, average="weighted"),
            }
        )
        self.confusion = MulticlassConfusionMatrix(self.answers)
        self.calibration = MulticlassCalibrationError(self.outputs, n_bins=15) if self.outputs > 1 else None

    def update(self, logits: Tensor, base: Tensor, labels: Tensor, domains: Tensor) -> None:
        """Count one chunk: composed logits, the base's logits, labels and domains."""
        predicted = predicted_classes(logits)
        self.right.append(predicted == labels)
        self.base_right.append(predicted_classes(base) == labels)
        self.domain.append(domains)
        inside = predicted.clamp(0, self.answers - 1)  # a regression may answer anything
        self.counts.update(inside, labels)
        self.confusion.update(inside, labels)
        if self.calibration is None:
            self.loss += float((logits[:, 0] - labels).square().sum())
        else:
            self.calibration.update(logits.softmax(-1), labels)
            self.loss += float(cross_entropy(logits, labels, reduction="sum"))

    def compute(self) -> dict[str, float | None]:
        """All figures by name; `domain:NAME` is the accuracy in a domain."""
        right, base = torch.cat(self.right).double(), torch.cat(self.base_right).double()
        per_domain = by_domain(right, torch.cat(self.domain), self.domains)
        return {
            "accuracy": float(right.mean()),
            **{name: float(value) for name, value in self.counts.compute().items()},
            "ece": None if self.calibration is None else float(self.calibration.compute()),
            "loss": self.loss / len(right),
            "harm": float(((base == 1) & (right == 0)).double().mean()),
            "help": float(((base == 0) & (right == 1)).double().mean()),
            "worst_domain": min(per_domain.values()),
            **{f"domain:{name}": value for name, value in per_domain.items()},
        }


def by_class(confusion: Tensor) -> dict[str, list[float]]:
    """Precision, recall and F1 of every class, from the confusion matrix with the truth in rows."""
    hits, truth, said = (part.double() for part in (confusion.diagonal(), confusion.sum(1), confusion.sum(0)))
    parts = {"precision": hits / said.clamp_min(1), "recall": hits / truth.clamp_min(1)}
    return {name: part.tolist() for name, part in {**parts, "f1": 2 * hits / (truth + said).clamp_min(1)}.items()}


def by_domain(right: Tensor, domains: Tensor, names: tuple[str, ...]) -> dict[str, float]:
    """Accuracy in each domain that occurs."""
    shares = {name: right[domains == index].double().mean() for index, name in enumerate(names)}
    return {name: float(share) for name, share in shares.items() if not share.isnan()}


def noise_area(levels: tuple[float, ...], values: list[float]) -> float:
    """Area under the noise curve, by trapezoids: 1 would be perfect at every level from 0 to 1."""
    steps = zip(levels, levels[1:], values, values[1:], strict=False)
    return sum((right - left) * (before + after) / 2 for left, right, before, after in steps)


def mean_interval(values: list[float], examples: int) -> dict[str, float]:
    """Mean with a 95 % interval: Student's t over seeds, or for one seed Wilson's over the test examples."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        low, high = wilson_interval(mean, examples)
    else:
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        half = student_quantile(len(values) - 1) * deviation / math.sqrt(len(values))
        low, high = max(0.0, mean - half), min(1.0, mean + half)
    return {"mean": mean, "low": low, "high": high}


def wilson_interval(share: float, examples: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of so many examples."""
    z = 1.959964
    centre = (share + z * z / (2 * examples)) / (1 + z * z / examples)
    half = z * math.sqrt(share * (1 - share) / examples + z * z / (4 * examples**2)) / (1 + z * z / examples)
    return max(0.0, centre - half), min(1.0, centre + half)


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by bisection on its density's integral."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        at = torch.linspace(0, middle, 4001, dtype=torch.float64)
        inside = float(torch.trapezoid(scale * (1 + at * at / freedom) ** (-(freedom + 1) / 2), at))
        low, high = (middle, high) if inside < 0.475 else (low, middle)
    return (low + high) / 2
