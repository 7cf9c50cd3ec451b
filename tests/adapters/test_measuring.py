"""Streamed figures equal those of whole parts, shortlists are exact, and the cut-off over documents holds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from redx.adapters.composed import ComposedLM
from redx.adapters.documents import Window
from redx.adapters.measuring import confidences, document_cutoff, measure
from redx.adapters.routers import Head, KeysRouter, TrainedRouter, running_mean
from redx.adapters.shortlist import shortlist
from redx.composition import confidence
from redx.composition.evaluation import certify, worst_harm
from redx.composition.parts import Cutoffs, Parts
from redx.composition.risk import harm_thresholds
from redx.composition.rules import RULES, compose

RED = RULES["red"]


def head(seed: int, width: int = 32) -> Head:
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(width, generator=draw) / width**0.5
    return Head(torch.zeros(width), torch.ones(width), weight, torch.tensor(0.1), torch.linspace(-3, 0, 50))


@pytest.fixture
def router() -> TrainedRouter:
    return TrainedRouter({name: head(seed) for seed, name in enumerate("abc")})


@pytest.fixture
def keys() -> KeysRouter:
    return KeysRouter({name: head(seed + 5) for seed, name in enumerate("abc")})


def windows() -> list[Window]:
    draw = torch.Generator().manual_seed(0)
    return [Window(torch.randint(3, 75, (length,), generator=draw), length % 3) for length in (20, 37)]


def whole_parts(composed: ComposedLM, window: Window, keys: KeysRouter, cutoff: float | None) -> tuple[Parts, Tensor]:
    """Return the parts of all positions at once, and the mean states."""
    parts = composed.parts(window.tokens).only(slice(0, len(window.tokens) - 1))
    context = running_mean(composed.read_states(window.tokens[None, :-1]))[0]
    claims = keys.claims(context, composed.names)
    sure = confidence.confidences("contest", parts.base, parts.residuals, claims)
    cutoffs = None if cutoff is None else Cutoffs(cutoff, cutoff)
    tensors = parts.tensors() | {"confidences": sure}
    return Parts(**tensors, cutoffs=cutoffs), context


def test_streamed_figures_equal_whole_parts(composed: ComposedLM, router: TrainedRouter, keys: KeysRouter) -> None:
    cutoff = 0.3
    measured = measure(composed, windows(), router, keys, "contest", cutoff=cutoff)
    calibrated = measure(composed, windows(), router, keys, "contest", thresholds=True)
    for document, window in enumerate(windows()):
        parts, context = whole_parts(composed, window, keys, None)
        limited, _ = whole_parts(composed, window, keys, cutoff)
        weights = router.weights(context, composed.names)
        for way, scores in {
            "base": parts.base,
            "adapter b": parts.base + parts.residuals[:, 1],
            "uniform": compose(RULES["fixed"], parts, RULES["fixed"].weights(parts)),
            "router": compose(RED, parts, weights),
            "keys": compose(RED, parts, keys.weights(context, composed.names)),
            "router at risk": compose(RED, limited, weights),
        }.items():
            loss = F.cross_entropy(scores, parts.true_labels(), reduction="sum")
            assert measured.loss[way][document] == pytest.approx(float(loss), rel=1e-4), way
            assert measured.right[way][document] == int((scores.argmax(-1) == parts.labels).sum()), way
        for way, record in {"certified": parts, "certified at risk": limited}.items():
            certified = certify(RED, record, weights)
            for epsilon in (0.0, 0.25, 1.0):
                right = (certified.predicted == parts.labels) & (certified.radius >= epsilon)
                assert measured.right[f"{way} {epsilon:g}"][document] == int(right.sum())
        assert torch.allclose(calibrated.thresholds[document], harm_thresholds(RED, parts), atol=1e-3)


def test_worst_loss_is_at_a_vertex(composed: ComposedLM, router: TrainedRouter, keys: KeysRouter) -> None:
    window = windows()[0]
    measured = measure(composed, [window], router, keys, "contest")
    parts, _ = whole_parts(composed, window, keys, None)
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        weights = torch.rand(len(parts), 3, generator=draw).softmax(-1)
        loss = F.cross_entropy(compose(RED, parts, weights), parts.true_labels(), reduction="sum")
        assert float(loss) <= measured.loss["any router"][0] + 1e-3


def random_rows(classes: int, positions: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    base = 2 * torch.randn(positions, classes, generator=draw)
    rows = torch.cat([base[None], base + 0.7 * torch.randn(3, positions, classes, generator=draw)])
    labels = torch.where(torch.rand(positions, generator=draw) < 0.7, base.argmax(-1), 0)
    return rows, labels, torch.randn(positions, 3, generator=draw)


@pytest.mark.parametrize("width", [4, 16, 500])
def test_shortlist_is_exact(width: int) -> None:
    rows, labels, sure = random_rows(400)
    zeros = torch.zeros_like(labels)
    whole = Parts(rows[0], (rows[1:] - rows[0]).transpose(0, 1), torch.zeros_like(sure), labels, zeros, sure)
    weights = torch.rand(len(labels), 3, generator=torch.Generator().manual_seed(2)).softmax(-1)
    certified, limits = certify(RED, whole, weights), harm_thresholds(RED, whole)
    radii = torch.full((len(labels),), -1.0)
    thresholds = torch.full((len(labels),), -math.inf)
    narrow = 0
    for chosen, parts in shortlist(rows, labels, sure, width):
        narrow += len(chosen) * (parts.base.shape[1] < 400)
        found = certify(RED, parts, weights[chosen])
        radii[chosen] = torch.where(found.predicted == parts.labels, found.radius, -1.0)
        thresholds[chosen] = harm_thresholds(RED, parts)
    expected = torch.where(certified.predicted == labels, certified.radius, -1.0)
    assert torch.allclose(radii, expected, atol=1e-6)
    assert torch.equal(thresholds, limits)
    assert (limits > -math.inf).any()
    assert (expected > 0).any()
    assert narrow > 0 or width == 500


@pytest.mark.parametrize("score", list(confidence.SCORES))
def test_confidences_from_log_odds(score: str) -> None:
    rows, _, claims = random_rows(60)
    odds = confidence.answer_log_odds(rows)
    residuals = (rows[1:] - rows[0]).transpose(0, 1)
    expected = confidence.confidences(score, rows[0], residuals, claims)
    assert torch.allclose(confidences(score, odds, claims), expected, atol=1e-4)


def test_cutoff_over_documents_is_the_smallest_that_fits() -> None:
    draw = torch.Generator().manual_seed(0)
    thresholds = [torch.randn(5 + index % 7, generator=draw) for index in range(80)]
    thresholds = [torch.where(row > 0, row, -math.inf) for row in thresholds]

    def harm(cutoff: float) -> float:
        return sum(float((row > cutoff).double().mean()) for row in thresholds)

    for risk in (0.05, 0.1, 0.3):
        cutoff = document_cutoff(thresholds, risk)
        assert (harm(cutoff) + 1) / 81 <= risk + 1e-6
        below = max((float(row[row < cutoff].max()) for row in thresholds if (row < cutoff).any()), default=-math.inf)
        assert (harm(below) + 1) / 81 > risk
    assert document_cutoff(thresholds, 0.01) == math.inf
    assert document_cutoff([torch.full((3,), -math.inf)] * 200, 0.01) == -math.inf


def test_cutoff_keeps_the_expected_harm_of_new_documents() -> None:
    draw = torch.Generator().manual_seed(3)
    risk, means = 0.1, []
    for _ in range(400):
        scale = torch.rand(31, 1, generator=draw)  # tokens of one document resemble each other
        values = scale + 0.1 * torch.randn(31, 12, generator=draw)
        cutoff = document_cutoff(list(values[:30]), risk)
        means.append(float((values[30] > cutoff).double().mean()))
    assert sum(means) / len(means) <= risk + 0.02


def test_harm_of_the_worst_router_is_bounded_by_the_thresholds(
    composed: ComposedLM, router: TrainedRouter, keys: KeysRouter
) -> None:
    """The composed answer at a cut-off is harmed exactly where the threshold exceeds it."""
    measured = measure(composed, windows(), router, keys, "contest", thresholds=True)
    cutoff = float(torch.cat(measured.thresholds).nan_to_num(neginf=-9).median())
    for document, window in enumerate(windows()):
        limited, context = whole_parts(composed, window, keys, cutoff)
        harmed = worst_harm(limited, certify(RED, limited, router.weights(context, composed.names)))
        assert int(harmed.sum()) <= int((measured.thresholds[document] > cutoff).sum())
