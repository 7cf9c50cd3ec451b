"""Metrics against counts by hand, torchmetrics' functions and printed tables."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import multiclass_calibration_error, multiclass_precision, multiclass_recall

from helpers.parts import draw_parts
from redx.composition.metrics import Tally, by_domain, mean_interval, noise_area, student_quantile, wilson_interval
from redx.composition.parts import Parts, predicted_classes

NAMES = ("north", "south", "east")


def tally(parts: Parts, step: int | None = None) -> dict[str, float | None]:
    """Figures of expert 0 as the composed answer, counted in steps of so many examples."""
    outputs = parts.base.shape[1]
    counting = Tally(outputs, NAMES, outputs if outputs > 1 else 10)
    for start in range(0, len(parts), step or len(parts)):
        part = parts.only(slice(start, start + (step or len(parts))))
        counting.update(part.residuals[:, 0], part.base, part.true_labels(), part.true_domains())
    return counting.compute()


def f1_by_hand(predicted: torch.Tensor, labels: torch.Tensor, classes: int) -> list[float]:
    hits = [((predicted == c) & (labels == c)).sum().item() for c in range(classes)]
    seen = [(predicted == c).sum().item() + (labels == c).sum().item() for c in range(classes)]
    return [2 * hit / all_of if all_of else 0.0 for hit, all_of in zip(hits, seen, strict=True)]


def test_accuracy_f1_ece_and_loss_agree_with_a_count_by_hand() -> None:
    parts = draw_parts(400, experts=3, classes=6)
    logits, labels = parts.residuals[:, 0], parts.true_labels()
    confidence, predicted = logits.softmax(-1).max(-1)
    right = (predicted == labels).double()
    f1 = f1_by_hand(predicted, labels, 6)
    shares = labels.bincount(minlength=6).double() / 400
    bins = (confidence * 15).ceil().long()
    gaps = [abs(float((right - confidence)[bins == b].sum())) / 400 for b in bins.unique()]
    metrics = tally(parts)
    assert metrics["accuracy"] == float(right.mean())
    assert metrics["macro_f1"] == pytest.approx(sum(f1) / 6, rel=1e-6)
    assert metrics["weighted_f1"] == pytest.approx(float(shares @ torch.tensor(f1, dtype=torch.float64)), rel=1e-6)
    assert metrics["ece"] == pytest.approx(sum(gaps), rel=1e-5)
    assert metrics["loss"] == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-9)


def test_precision_recall_and_ece_agree_with_torchmetrics() -> None:
    parts = draw_parts(400, experts=3, classes=6)
    probabilities, labels = parts.residuals[:, 0].softmax(-1), parts.true_labels()
    metrics = tally(parts)
    expected = {
        "macro_precision": multiclass_precision(probabilities, labels, 6, average="macro"),
        "macro_recall": multiclass_recall(probabilities, labels, 6, average="macro"),
        "ece": multiclass_calibration_error(probabilities, labels, 6, n_bins=15),
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(float(value), rel=1e-6)


@pytest.mark.parametrize("classes", [1, 6])
@pytest.mark.parametrize("step", [1, 7, 100])
def test_chunks_count_the_same_as_the_whole(classes: int, step: int) -> None:
    parts = draw_parts(100, experts=3, classes=classes)
    whole, chunked = tally(parts), tally(parts, step)
    assert whole.keys() == chunked.keys()
    for name, value in whole.items():
        assert chunked[name] == (None if value is None else pytest.approx(value, rel=1e-6))


@pytest.mark.parametrize("classes", [1, 6])
def test_harm_and_help_count_what_the_experts_changed(classes: int) -> None:
    parts = draw_parts(400, experts=3, classes=classes)
    before = [int(x) for x in predicted_classes(parts.base) == parts.labels]
    after = [int(x) for x in predicted_classes(parts.residuals[:, 0]) == parts.labels]
    metrics = tally(parts)
    pairs = list(zip(before, after, strict=True))
    assert metrics["harm"] == pairs.count((1, 0)) / 400 > 0
    assert metrics["help"] == pairs.count((0, 1)) / 400 > 0


def test_a_regression_is_right_when_rounding_is_and_has_no_ece() -> None:
    parts = draw_parts(400, experts=3, classes=1)
    outputs = parts.residuals[:, 0, 0]
    metrics = tally(parts)
    assert metrics["accuracy"] == float((outputs.round() == parts.labels).double().mean())
    assert metrics["loss"] == pytest.approx(float((outputs - parts.true_labels()).square().mean()))
    assert metrics["ece"] is None


def test_the_worst_domain_is_the_lowest_of_those_that_occur() -> None:
    parts = draw_parts(400, experts=3, classes=6)
    metrics = tally(parts.only(parts.domains != 1))
    by_name = {name: metrics[f"domain:{name}"] for name in ("north", "east")}
    assert metrics["worst_domain"] == min(value for value in by_name.values() if value is not None)
    assert "domain:south" not in metrics


def test_accuracy_by_domain_is_a_plain_share() -> None:
    right, domains = torch.tensor([1, 0, 1, 1]).bool(), torch.tensor([0, 0, 2, 2])
    assert by_domain(right, domains, NAMES) == {"north": 0.5, "east": 1.0}


def test_area_of_constant_straight_and_uneven_curves() -> None:
    assert noise_area((0.0, 0.1, 0.5, 1.0), [0.7] * 4) == pytest.approx(0.7)
    assert noise_area((0.0, 1.0), [1.0, 0.0]) == pytest.approx(0.5)
    assert noise_area((0.0, 0.25, 1.0), [1.0, 0.0, 0.0]) == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("freedom", "table"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042), (999, 1.962)]
)
def test_student_agrees_with_the_table(freedom: int, table: float) -> None:
    assert student_quantile(freedom) == pytest.approx(table, abs=6e-4)


@pytest.mark.parametrize(
    ("share", "examples", "low", "high"),
    [(0.5, 100, 0.4038, 0.5962), (1.0, 10, 0.7225, 1.0), (0.0, 10, 0.0, 0.2775), (0.9, 50, 0.7864, 0.9565)],
)
def test_wilson_agrees_with_the_table(share: float, examples: int, low: float, high: float) -> None:
    assert wilson_interval(share, examples) == pytest.approx((low, high), abs=1e-4)


def test_spread_is_wilson_for_one_seed_and_student_for_several() -> None:
    assert mean_interval([0.9], 50) == {
        "mean": 0.9,
        "low": wilson_interval(0.9, 50)[0],
        "high": wilson_interval(0.9, 50)[1],
    }
    metrics = mean_interval([0.4, 0.5, 0.6], 50)  # deviation 0.1, so half the interval is 4.303 · 0.1 / √3
    assert metrics["mean"] == pytest.approx(0.5)
    assert (metrics["low"], metrics["high"]) == pytest.approx((0.25159, 0.74841), abs=1e-4)
    same = mean_interval([0.8, 0.8], 50)
    assert (same["low"], same["high"]) == pytest.approx((0.8, 0.8))
    assert mean_interval([0.0, 1.0], 50) == {"mean": 0.5, "low": 0.0, "high": 1.0}
