"""The model card: experts, data and measured figures as Markdown."""

from __future__ import annotations

from typing import Any

from redx.model.card import model_card
from redx.runs.presets import configure

EXPERT: dict[str, Any] = {
    "domain": "a|b",
    "training": {"examples": 12, "anchors": 7},
    "metrics": {"base": 0.5, "residual/anchored": 0.75},
    "dtype": "float16",
}
RULE = {
    "accuracy": {"mean": 0.8},
    "worst_domain": 0.6,
    "noise": {"swap": {"0.5": 0.7, "1": 0.65}},
    "certified": {"0.25": 0.55, "1": 0.45},
}
FIGURES = {
    "seeds": [0, 1],
    "data": {"train": 1000, "validation": 10, "test": 40, "split": "disjoint", "seen_in_train": 0.25},
    "rules": {"red": RULE | {"shares": "sums"}, "red/plain": RULE, "base": RULE | {"noise": {}}},
}


def card(figures: dict[str, Any]) -> str:
    return model_card(configure("features", "quick", file="x.npz"), ("no", "yes"), [EXPERT], figures)


def test_the_card_describes_every_expert() -> None:
    (row,) = [line for line in card({}).splitlines() if line.startswith("| a")]
    assert row == "| a\\|b | 12 | 7 | 0.5000 | 0.7500 | float16 |"
    assert "2 classes" in card({})
    assert "saved without an evaluation" in card({})


def test_the_card_shows_the_measured_figures() -> None:
    text = card(FIGURES)
    assert "| red | sums | 0.8000 | 0.6000 | 0.7000 | 0.6500 | 0.5500 | 0.4500 |" in text
    assert "| base | — | 0.8000 | 0.6000 | — | — | 0.5500 | 0.4500 |" in text
    assert "red/plain" not in text  # only rules with their main bank
    assert "1,000 examples for training" in text
    assert "25.0% of the test questions" in text
