"""What is kept of streamed documents gives the figures of whole parts over the vocabulary."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from redx.adapters.composed import ComposedLM
from redx.adapters.documents import Window
from redx.adapters.shortlist import shortlist
from redx.adapters.streaming import CONTROLLED, KEYED, PLAIN, shortlisted_parts, stream
from redx.composition.evaluation import Banks, certify, evaluate
from redx.composition.parts import Losses, Parts, Pieces
from redx.composition.risk import RiskControl, harm_thresholds
from redx.composition.rules import RULES
from redx.config import BankId
from redx.models.router import NetworkRouter, TrainedRouter

NAMES = ("a", "b", "c")
RED = RULES["red"]


def network(gates: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return NetworkRouter(32, gates, "linear").eval()


@pytest.fixture
def routed(composed: ComposedLM) -> ComposedLM:
    composed.router, composed.routing = TrainedRouter(network(3, 0), NAMES), "router"
    composed.ownership = {name: network(2, seed) for seed, name in enumerate(NAMES, start=1)}
    return composed


def windows(composed: ComposedLM, count: int = 24) -> list[Window]:
    """Return windows of which the base predicts about two thirds."""
    draw, found = torch.Generator().manual_seed(0), []
    for length in (20, 37):
        tokens = torch.randint(3, 75, (count // 2, 1), generator=draw)
        while tokens.shape[1] < length:
            likely = composed.stack.forward([None] * len(tokens), tokens).logits[:, -1].argmax(-1, keepdim=True)
            other = torch.randint(3, 75, likely.shape, generator=draw)
            tokens = torch.cat([tokens, torch.where(torch.rand(likely.shape, generator=draw) < 0.66, likely, other)], 1)
        found += [Window(row, index % 3) for index, row in enumerate(tokens)]
    return found


def rows_of(banks: Banks) -> dict[tuple[Any, ...], float]:
    rows = evaluate(banks, task="t", seed=0, domains=NAMES, rules=["base", "red", "fixed", "red-oracle", "average"])
    keys = ("rule", "bank", "noise", "level", "domain", "metric")
    return {tuple(row[key] for key in keys): row["value"] for row in rows if row["value"] is not None}


def test_kept_parts_have_the_figures_of_whole_parts(routed: ComposedLM) -> None:
    whole = [piece.parts("contest") for piece in stream(routed, windows(routed))]
    control = RiskControl(0.2).calibrate(Pieces(whole))
    assert math.isfinite(control.cutoffs.simplex)
    assert control.units == 24
    routed.stack.merge("linear", "linear", [0.5] * 3, list(NAMES))
    kept = shortlisted_parts(routed, windows(routed), "contest", control, ["linear"])
    assert list(kept) == [PLAIN, KEYED, CONTROLLED, BankId("averaged", "linear")]
    assert kept[PLAIN].base.shape[1] == 68 < 80, "a shortlist"

    joined = Parts.concatenate(whole)
    ownership = torch.cat([piece.ownership for piece in stream(routed, windows(routed), ["linear"])])
    merged = torch.cat([piece.logits[4] for piece in stream(routed, windows(routed), ["linear"])])
    plain = replace(joined, confidences=None)
    banks = {PLAIN: plain, KEYED: plain.with_gates(ownership), CONTROLLED: control.apply(joined)}
    common = (plain.labels, plain.domains)
    banks[BankId("averaged", "linear")] = Parts(
        plain.base, merged[:, None], torch.zeros(len(plain), 1), *common, groups=plain.groups
    )
    expected, found = rows_of(banks), rows_of(kept)
    compared = 0
    for key, value in found.items():
        if key in expected and "loss@" in key[-1] and not key[-1].endswith(("@0", "@1")):
            assert value >= expected[key] - 1e-4, "the chord"
        elif key in expected:
            # with weights in between, a position with more than 64 rivals may count as wrong
            assert value == pytest.approx(expected[key], abs=2e-3 if key[0] in ("red", "fixed") else 1e-5), key
            compared += 1
    assert compared > 200
    losses = {(rule, bank) for rule, bank, *_, metric in found if metric == "loss"}
    assert losses == {(rule, bank) for rule, bank, *_ in found}, "every rule has its loss"
    assert not [key for key in found if key[-1] in ("ece", "macro_f1", "confusion")], "columns are no classes"


def test_worst_loss_is_at_a_vertex(routed: ComposedLM) -> None:
    control = RiskControl(1.0).calibrate(
        Pieces([piece.parts("contest") for piece in stream(routed, windows(routed, 4))])
    )
    kept = shortlisted_parts(routed, windows(routed, 4), "contest", control, [])[PLAIN]
    whole = Parts.concatenate([piece.parts("contest") for piece in stream(routed, windows(routed, 4))])
    assert kept.losses is not None
    worst = kept.losses.experts.amax(-1)
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        weights = torch.rand(len(whole), 3, generator=draw).softmax(-1)
        scores = whole.base + (weights[..., None] * whole.residuals).sum(1)
        loss = nn.functional.cross_entropy(scores, whole.true_labels(), reduction="none")
        assert bool((loss <= worst + 1e-4).all())


def random_rows(classes: int, positions: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    base = 2 * torch.randn(positions, classes, generator=draw)
    rows = torch.cat([base[None], base + 0.7 * torch.randn(3, positions, classes, generator=draw)])
    labels = torch.where(torch.rand(positions, generator=draw) < 0.7, base.argmax(-1), 0)
    return rows, labels, torch.randn(positions, 3, generator=draw)


def record(rows: Tensor, labels: Tensor, sure: Tensor) -> Parts:
    return Parts(rows[0], (rows[1:] - rows[0]).transpose(0, 1), torch.zeros_like(sure), labels, None, sure)


@pytest.mark.parametrize("width", [1, 4, 64, 500])
def test_shortlist_is_exact_at_vertices_and_sound_between(width: int) -> None:
    rows, labels, sure = random_rows(400)
    weights = torch.rand(len(labels), 3, generator=torch.Generator().manual_seed(2)).softmax(-1)
    whole = record(rows, labels, sure)
    logits, places = shortlist(rows, labels, width)
    short = record(logits, places, sure)
    assert torch.equal(logits.argmax(-1) == places, rows.argmax(-1) == labels)
    assert torch.equal(harm_thresholds(RED, short), harm_thresholds(RED, whole))
    assert bool((harm_thresholds(RED, whole) > -math.inf).any())
    exact, found = certify(RED, whole, weights), certify(RED, short, weights)
    right, counted = exact.predicted == labels, found.predicted == places
    assert not bool((counted & ~right).any()), "nothing counts as right that is not"
    assert bool((found.radius[counted] <= exact.radius[counted] + 1e-6).all())
    if width >= 64:
        assert torch.equal(counted, right)
        assert torch.allclose(found.radius[right], exact.radius[right], atol=1e-6)


def test_losses_survive_a_file_and_a_choice_of_rows() -> None:
    losses = Losses(torch.rand(4), torch.rand(4, 2), {"red": torch.rand(4)}, -math.inf)
    again = Losses.from_tensors(losses.tensors())
    assert again.cutoff == -math.inf
    assert torch.equal(again.mixed["red"], losses.mixed["red"])
    assert Losses.from_tensors(Losses(losses.base, losses.experts, {}).tensors()).cutoff is None
    chosen = losses.only(torch.tensor([2, 0]))
    assert torch.equal(chosen.experts, losses.experts[[2, 0]])
    assert losses.keep([1]).mixed == {}, "a mixture of all experts is none of one"
