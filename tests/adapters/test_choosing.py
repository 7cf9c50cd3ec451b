"""The router alone: the scores of the composed model, one matrix product, and a cut-off below which it abstains."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import redx
from helpers.adapters import save_library
from redx.adapters.choosing import PromptRouter, StackedScores
from redx.adapters.composed import ComposedLM
from redx.adapters.library import OWNERSHIP
from redx.composition.risk import RiskControl
from redx.errors import RedxError

PROMPT = "What is 12 plus 30?"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_library(tmp_path_factory.mktemp("choosing"))


@pytest.fixture(scope="module")
def router(run: Path) -> PromptRouter:
    return PromptRouter.from_pretrained(run)


def control_of(score: str, names: tuple[str, ...] = ("a", "b", "c"), risk: float = 0.1) -> RiskControl:
    thresholds = {"simplex": torch.linspace(-1, 3, 99), "box": torch.linspace(-1, 3, 99)}
    return RiskControl.from_thresholds(thresholds, risk, None, score, names=names)


def test_scores_and_weights_are_those_of_keys(run: Path, router: PromptRouter) -> None:
    composed = ComposedLM.from_pretrained(run, "keys")
    tokens = torch.tensor(composed.base.tokenizer(PROMPT)["input_ids"])[None]
    gates = composed.gates(composed.read_states(tokens).mean(1))[0]
    choice = router.route(PROMPT)
    assert list(choice.scores.values()) == pytest.approx(gates.tolist(), abs=1e-4)
    assert list(choice.weights.values()) == pytest.approx(gates.softmax(-1).tolist(), abs=1e-5)
    assert choice.weights == pytest.approx(composed.generate(PROMPT, 1).weights, abs=1e-5)


def test_the_surest_adapter_is_chosen_above_the_cutoff_alone(router: PromptRouter) -> None:
    choice = router.route(PROMPT)
    best = max(choice.scores, key=choice.scores.__getitem__)
    assert choice.cutoff == 0.0
    assert choice.risk is None
    assert choice.adapter == (best if choice.scores[best] > 0 else None)
    for cutoff, adapter in ((choice.scores[best] + 1e-3, None), (choice.scores[best] - 1e-3, best), (math.inf, None)):
        router.cutoff = cutoff
        assert router.route(PROMPT).adapter == adapter
        assert router.route(PROMPT).abstain == (adapter is None)
    assert router.route(PROMPT).to_dict()["cutoff"] == "inf"
    router.cutoff = 0.0


def test_a_calibrated_cutoff_counts_where_it_is_of_ownership_scores(router: PromptRouter) -> None:
    base, names = router.base, router.names
    composed = ComposedLM.from_pretrained(Path(base.folder).parent / "run")
    given = composed.ownership
    calibrated = control_of("ownership")
    cutoff = calibrated.cutoffs.simplex

    def router_of(control: RiskControl, cutoff: float | None = None) -> PromptRouter:
        return PromptRouter(base, names, given, cutoff, control)

    assert (router_of(calibrated).cutoff, router_of(calibrated).risk) == (cutoff, 0.1)
    assert router_of(control_of("all")).cutoff == 0.0
    assert router_of(control_of("all")).risk is None
    assert router_of(calibrated, 100.0).risk == 0.1, "a larger cut-off only silences adapters"
    assert router_of(calibrated, -100.0).risk is None
    assert router_of(control_of("ownership", ("a", "b"))).risk is None, "an adapter came later"
    assert router_of(control_of("ownership", risk=0.0)).route(PROMPT).abstain, "no cut-off keeps this risk"
    assert router_of(control_of("ownership", risk=1.0)).cutoff == -math.inf


def test_scores_that_are_no_numbers_choose_nothing(router: PromptRouter) -> None:
    before = router.stacked.bias.clone()
    router.stacked.bias.fill_(math.nan)
    choice = router.route(PROMPT)
    router.stacked.bias.copy_(before)
    assert choice.abstain
    assert all(math.isfinite(score) for score in choice.scores.values())


def test_a_thousand_scores_are_one_product(router: PromptRouter) -> None:
    scores = [*ComposedLM.from_pretrained(Path(router.base.folder).parent / "run").ownership.values()] * 334
    states = torch.randn(4, router.base.width, generator=torch.Generator().manual_seed(0))
    stacked = StackedScores(scores, router.base.width)(states)
    with torch.no_grad():
        each = torch.stack([score(states)[:, 0] - score(states)[:, 1] for score in scores], 1)
    assert stacked.shape == (4, 1002)
    torch.testing.assert_close(stacked, each, atol=1e-4, rtol=1e-4)


def test_only_the_beginning_of_a_long_prompt_is_read(router: PromptRouter) -> None:
    beginning = "ab" * 128  # the tiny model reads 256 tokens
    assert router.route(beginning + "xyz" * 50_000) == router.route(beginning)


def test_faults_are_one_sentence(router: PromptRouter, run: Path, tmp_path: Path) -> None:
    with pytest.raises(RedxError, match="prompt is empty"):
        router.route("  ")
    with pytest.raises(RedxError, match="NaN"):
        PromptRouter.from_pretrained(run, math.nan)
    other = save_library(tmp_path / "other")
    for file in other.rglob(OWNERSHIP):
        file.unlink()
    with pytest.raises(RedxError, match="no ownership scores"):
        PromptRouter.from_pretrained(other)


@pytest.mark.slow
def test_a_run_routes_its_own_texts(adapters: redx.Run) -> None:
    router = PromptRouter.from_pretrained(adapters.folder)
    assert router.route("0123456789+=0123456789").adapter == "digits"
    assert router.route("KLMNOPQRSTKLMNOPQRST").adapter == "upper"
