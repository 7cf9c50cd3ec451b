"""Records over a shortlist of the classes: losses that are known, rules that are refused, means over groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from redx.composition.comparison import compare_rules
from redx.composition.evaluation import certify, evaluate, known_losses, match_banks
from redx.composition.metrics import unit_mean
from redx.composition.parts import Cutoffs, Losses, Parts
from redx.composition.rules import RULES
from redx.composition.summary import summarise
from redx.config import BankId
from redx.errors import RedxError

PLAIN, RISK = BankId("residual", "plain"), BankId("residual", "risk")
DRAW = torch.Generator().manual_seed(0)


def make(cutoff: float | None = None) -> Parts:
    base, residuals = torch.randn(12, 5, generator=DRAW), torch.randn(12, 2, 5, generator=DRAW)
    confidences = torch.tensor([[1.0, -1.0]]).expand(12, -1).contiguous()
    losses = Losses(torch.rand(12), 2 + torch.rand(12, 2), {"red": torch.full((12,), 1.5)}, cutoff)
    return Parts(
        base,
        residuals,
        torch.zeros(12, 2),
        torch.zeros(12, dtype=torch.int64),
        torch.arange(12) % 2,
        None if cutoff is None else confidences,
        None if cutoff is None else Cutoffs(cutoff, cutoff),
        torch.arange(12) // 4,
        losses,
    )


def test_losses_come_from_the_record() -> None:
    parts = make()
    rows = evaluate({PLAIN: parts}, task="t", seed=0, domains=("x", "y"), kinds=[])
    figures = summarise(rows, {"residual": "plain"}, 3)
    assert parts.losses is not None
    assert set(figures) == {
        "base",
        *(f"{rule}{bank}" for rule in ("red", "fixed", "red-oracle") for bank in ("", "/plain")),
    }
    assert figures["base"]["loss"] == pytest.approx(float(parts.losses.base.mean()))
    assert figures["red"]["loss"] == pytest.approx(1.5)
    assert figures["fixed"]["loss"] is None, "it was not computed"
    own = parts.losses.experts.gather(1, parts.true_domains()[:, None])[:, 0]
    assert figures["red-oracle"]["loss"] == pytest.approx(float(own.mean()))
    assert figures["red-oracle"]["per_domain_loss"]["y"] == pytest.approx(float(own[1::2].mean()))
    assert figures["red"]["worst_loss"] == pytest.approx(float(parts.losses.experts.amax(-1).mean()))
    assert figures["red"]["ece"] is None
    assert figures["red"]["per_class"] == {}


def test_losses_of_another_cutoff_are_not_shown() -> None:
    parts = make(0.0)
    red = RULES["red"]
    assert known_losses(red, parts, red.weights(parts)) is not None
    moved = replace(parts, cutoffs=Cutoffs(5.0, 5.0))
    assert known_losses(red, moved, red.weights(moved)) is None
    assert parts.losses is not None
    alone = RULES["red-oracle"]
    silent = known_losses(alone, moved, alone.weights(moved))
    assert silent is not None
    assert torch.equal(silent, parts.losses.base), "nobody is active, so the base's loss is known"


def test_free_weights_are_refused() -> None:
    parts = make()
    assert [rule.name for rule, _, _ in match_banks({PLAIN: parts}, ["red", "sum"])] == ["red"]
    with pytest.raises(RedxError, match="shortlist of the classes"):
        certify("sum", parts)


def test_harm_and_tests_count_groups() -> None:
    parts = make()
    rows = evaluate({PLAIN: parts}, task="t", seed=0, domains=("x", "y"), rules=["red"], kinds=[])
    certified = certify("red", parts)
    harmed = (parts.base.argmax(-1) == 0) & ~((certified.predicted == 0) & (certified.radius >= 1))
    worst = next(row["value"] for row in rows if row["metric"] == "worst_harm")
    assert worst == pytest.approx(float(harmed.view(3, 4).double().mean(1).mean()))
    assert unit_mean(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([7, 7, 9])) == 0.5
    pair = compare_rules([{PLAIN: parts}], {"residual": "plain"}, "red", shared=True)["base"]
    assert pair["better"] + pair["worse"] <= 3, "three documents"
