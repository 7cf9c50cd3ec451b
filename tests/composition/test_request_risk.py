"""The risk of a request: excess log-loss under the worst router that is constant over it, kept by one cut-off."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from helpers.parts import draw_parts
from redx.composition.parts import Losses, Parts, Pieces
from redx.composition.request_risk import RequestExcess, by_request, worst_excess
from redx.composition.risk import RiskControl, risk_cutoff
from redx.composition.rules import compose
from redx.errors import RedxError
from redx.io.files import write_tensors
from redx.io.safetensors_files import read_tensors
from redx.models.calibration import read_calibration, write_calibration
from redx.seeding import generator


def draw_requests(requests: int = 60, tokens: int = 4, experts: int = 3, seed: int = 0, scale: float = 0.5) -> Parts:
    """Requests of equally many tokens, with one confidence each and experts that help some and harm others."""
    parts = draw_parts(requests * tokens, experts, 5, seed)
    groups = torch.arange(requests).repeat_interleave(tokens)
    sure = torch.randn(requests, experts, dtype=torch.float64, generator=generator(seed, "sure"))
    return replace(parts, residuals=scale * parts.residuals, groups=groups, confidences=sure[groups])


def excess_by_definition(parts: Parts, weights: Tensor) -> Tensor:
    """By how much a router that is constant over requests raises their mean loss, (G,); weights are (K,)."""
    labels = parts.true_labels()
    mixed = cross_entropy(compose("red", parts, weights.expand(len(parts), -1)), labels, reduction="none")
    rise = mixed - cross_entropy(parts.base, labels, reduction="none")
    assert parts.groups is not None
    return torch.stack([rise[parts.groups == group].mean() for group in parts.groups.unique()])


def mean_excess(parts: Parts, cutoff: float, bound: float) -> float:
    excess = RequestExcess()
    excess.update(parts)
    values, confidences, _ = excess.means()
    return float(worst_excess(values, confidences > cutoff, bound).mean())


def test_no_constant_router_exceeds_the_excess_and_one_reaches_it() -> None:
    parts = draw_requests(20)
    excess = RequestExcess()
    excess.update(parts)
    worst = excess.means()[0].amax(-1)
    drawn = torch.rand(200, 3, dtype=torch.float64, generator=generator(0, "routers"))
    for weights in drawn / drawn.sum(-1, keepdim=True):
        assert bool((excess_by_definition(parts, weights) <= worst + 1e-12).all())
    vertices = torch.stack([excess_by_definition(parts, row) for row in torch.eye(3, dtype=torch.float64)])
    assert torch.allclose(vertices.amax(0), worst)


def test_harm_never_rises_with_the_cutoff_and_the_cutoff_is_the_smallest() -> None:
    parts, bound, risk = draw_requests(), 0.5, 0.1
    control = RiskControl(risk, loss="log", bound=bound).calibrate(parts)
    assert (control.units, control.examples) == (60, 60)
    assert control.cutoffs.box == math.inf
    levels = sorted({-math.inf, *control.thresholds["simplex"].tolist()})
    curve = [mean_excess(parts, level, bound) for level in levels]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(curve))
    allowed = [level for level, value in zip(levels, curve, strict=True) if (60 * value + bound) / 61 <= risk]
    assert control.cutoffs.simplex == min(allowed)
    assert math.isfinite(control.cutoffs.simplex), "the case has an answer between all and nothing"


@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.2, 1.0]), st.sampled_from([0.1, 0.5, 2.0]))
def test_any_steps_keep_the_risk_on_the_calibration_requests(seed: int, share: float, bound: float) -> None:
    parts = draw_requests(30, 2, 2, seed)
    control = RiskControl(share * bound, loss="log", bound=bound).calibrate(parts)
    kept = mean_excess(parts, float(control.cutoffs.simplex), bound)
    assert (30 * kept + bound) / 31 <= share * bound + 1e-9
    assert all(
        later.cutoffs.simplex <= control.cutoffs.simplex
        for later in (control.at(bound), control.at(min(1, 2 * share) * bound))
    )


@pytest.mark.parametrize("risk", [0.05, 0.1])
def test_the_mean_excess_of_new_requests_is_at_most_the_risk(risk: float) -> None:
    bound, many = 0.5, draw_requests(3000, 3)
    excess = RequestExcess()
    excess.update(many)
    values, confidences, _ = excess.means()
    steps = excess.steps(bound)
    source = generator(0, "divisions")
    found = []
    for _ in range(2000):
        order = torch.randperm(3000, generator=source)
        used = torch.zeros(3000, dtype=torch.bool).index_fill_(0, order[:40], True)
        rows = used[steps.groups]
        cutoff = risk_cutoff(steps.thresholds[rows], risk / bound, None, steps.groups[rows], steps.amounts[rows])
        found.append(float(worst_excess(values[~used], confidences[~used] > cutoff, bound).mean()))
    mean = sum(found) / len(found)
    error = float(torch.tensor(found).std()) / math.sqrt(len(found))
    assert mean <= risk + 3 * error
    assert mean > risk - 3 * bound / 41, "no more is given up than the finite number costs"


def test_the_mean_excess_in_every_domain_is_at_most_the_risk() -> None:
    """2,000 calibrations of two domains; the risk is kept in each of them, and so for any mix of them."""
    risk, bound, many = 0.1, 0.5, by_domain(draw_requests(2000, 3))
    excess = RequestExcess()
    excess.update(many, many.named)
    values, confidences, _ = excess.means()
    steps, named = excess.steps(bound, by_domain=True), torch.arange(2000) % 2
    source, found = generator(0, "divisions"), torch.zeros(2000, 2)
    assert steps.domains is not None
    for trial in range(2000):
        used = torch.zeros(2000, dtype=torch.bool).index_fill_(0, torch.randperm(2000, generator=source)[:60], True)
        rows = used[steps.groups]
        thresholds = {"simplex": steps.thresholds[rows], "box": steps.thresholds[rows]}
        settings = {"loss": "log", "bound": bound, "by": "domain", "small": "silent", "domain_names": ("x", "y")}
        chosen = {"groups": steps.groups[rows], "domains": steps.domains[rows], "amounts": steps.amounts[rows]}
        control = RiskControl.from_thresholds(thresholds, risk, **settings, **chosen)  # pyright: ignore[reportArgumentType]
        cutoffs = control.domain_cutoffs("simplex")[named]
        worst = worst_excess(values, confidences > cutoffs[:, None], bound)
        found[trial] = torch.stack([worst[~used & (named == index)].mean() for index in range(2)])
    assert bool((found.mean(0) <= risk + 3 * found.std(0) / math.sqrt(2000)).all())
    assert float(found.mean(0)[1]) > risk - 3 * bound / 30


def test_with_a_confidence_fewer_calibrations_exceed_the_risk() -> None:
    bound, risk, many = 0.5, 0.15, draw_requests(2000, 3)
    excess = RequestExcess()
    excess.update(many)
    values, confidences, _ = excess.means()
    steps = excess.steps(bound)
    source, exceeded = generator(0, "divisions"), 0
    for _ in range(500):
        used = torch.zeros(2000, dtype=torch.bool).index_fill_(0, torch.randperm(2000, generator=source)[:60], True)
        rows = used[steps.groups]
        cutoff = risk_cutoff(steps.thresholds[rows], risk / bound, 0.9, steps.groups[rows], steps.amounts[rows])
        exceeded += float(worst_excess(values[~used], confidences[~used] > cutoff, bound).mean()) > risk
    assert exceeded <= 50 + 3 * math.sqrt(45)


def test_pieces_give_what_the_whole_gives() -> None:
    parts = draw_requests(30, 5)
    whole = RiskControl(0.1, loss="log").calibrate(parts)
    pieces = Pieces([parts.only(slice(start, start + 7)) for start in range(0, 150, 7)])
    apart = RiskControl(0.1, loss="log").calibrate(pieces)
    assert apart.cutoffs == whole.cutoffs
    assert torch.equal(whole.thresholds["simplex"], apart.thresholds["simplex"])
    assert whole.amounts is not None
    assert apart.amounts is not None
    assert torch.allclose(whole.amounts, apart.amounts, rtol=0, atol=1e-12)
    joined = Parts.concatenate(list(whole.apply(pieces)))
    assert torch.equal(joined.active("simplex"), whole.apply(parts).active("simplex"))


def test_an_expert_is_active_in_all_of_a_request_or_in_none() -> None:
    parts = draw_requests()
    control = RiskControl(0.05, loss="log").calibrate(parts)
    active = control.apply(parts).active("simplex").view(60, 4, 3)
    assert torch.equal(active, active[:, :1].expand_as(active))
    assert 0 < float(active.double().mean()) < 1
    assert not bool(control.apply(parts).active("box").any()), "free weights are not covered"
    assert parts.confidences is not None
    changing = replace(parts, confidences=parts.confidences + torch.arange(240.0, dtype=torch.float64)[:, None])
    with pytest.raises(RedxError, match="change within a request"):
        RiskControl(0.05, loss="log").calibrate(changing)
    assert RiskControl(0.05, loss="log").calibrate(by_request(changing)).units == 60
    crossing = Pieces(
        [parts.only(slice(0, 2)), replace(parts.only(slice(2, 240)), confidences=parts.confidences[2:] + 1)]
    )
    with pytest.raises(RedxError, match="change within a request"):
        RiskControl(0.3, loss="log").calibrate(crossing)


def test_the_own_expert_that_helps_costs_nothing() -> None:
    parts = draw_requests(99, experts=1)
    own = torch.nn.functional.one_hot(parts.true_labels(), 5).double()[:, None]
    control = RiskControl(0.01, loss="log").calibrate(replace(parts, residuals=own))
    assert control.cutoffs.simplex == -math.inf


def test_confidences_of_logits_are_means_over_requests() -> None:
    parts = replace(draw_requests(), confidences=None)
    control = RiskControl(0.05, loss="log").calibrate(parts)
    sure = control.apply(parts).confidences
    assert sure is not None
    assert torch.equal(sure.view(60, 4, 3), sure.view(60, 4, 3)[:, :1].expand(60, 4, 3))


def test_examples_without_groups_are_requests() -> None:
    parts = replace(draw_requests(60, 1), groups=None)
    alone = RiskControl(0.1, loss="log").calibrate(parts)
    grouped = RiskControl(0.1, loss="log").calibrate(replace(parts, groups=torch.arange(60)))
    assert alone.cutoffs == grouped.cutoffs
    halves = RiskControl(0.1, loss="log").calibrate(Pieces([parts.only(slice(0, 25)), parts.only(slice(25, 60))]))
    assert halves.cutoffs == alone.cutoffs
    assert halves.units == 60


def test_losses_of_a_shortlist_are_used() -> None:
    parts = draw_requests()
    labels = parts.true_labels()
    base = cross_entropy(parts.base, labels, reduction="none")
    alone = [cross_entropy(parts.base + parts.residuals[:, k], labels, reduction="none") for k in range(3)]
    short = replace(parts, losses=Losses(base, torch.stack(alone, -1), {}), residuals=parts.residuals * 0)
    expected = RiskControl(0.1, loss="log").calibrate(parts)
    assert RiskControl(0.1, loss="log").calibrate(short).cutoffs == expected.cutoffs


def test_too_few_requests_and_other_mistakes_give_one_sentence() -> None:
    parts = draw_requests(9)
    with pytest.raises(
        RedxError, match=r"A risk of 0\.01 nats cannot be promised with 9 calibration requests; .*0\.05"
    ):
        RiskControl(0.01, loss="log").calibrate(parts)
    control = RiskControl(None, loss="log").calibrate(parts)
    assert control.risk == pytest.approx(0.05)
    assert control.at(0.2).risk == 0.2
    with pytest.raises(RedxError, match="9 calibration requests"):
        control.at(0.01)
    with pytest.raises(RedxError, match="between 0 and the bound"):
        RiskControl(0.6, loss="log")
    with pytest.raises(RedxError, match="positive number of nats"):
        RiskControl(0.1, loss="log", bound=0.0)
    with pytest.raises(RedxError, match="harm or log"):
        RiskControl(0.1, loss="square")
    with pytest.raises(RedxError, match="leave budget out"):
        RiskControl(0.1, loss="log", budget="routing")
    with pytest.raises(RedxError, match="regression"):
        RiskControl(0.1, loss="log").calibrate(draw_parts(60, 2, 1))
    assert RiskControl(0.0, loss="log").calibrate(parts).cutoffs.simplex == math.inf


def by_domain(parts: Parts) -> Parts:
    """The same requests, of which the base says one of two domains; experts cost more in the second."""
    assert parts.groups is not None
    named = (parts.groups % 2).long()
    return replace(parts, named=named, residuals=parts.residuals * (0.2 + named.double())[:, None, None])


@pytest.mark.parametrize("small", ["merge", "silent"])
def test_every_domain_keeps_the_risk(small: str) -> None:
    parts = by_domain(draw_requests(200))
    control = RiskControl(0.1, loss="log", by="domain", small=small).calibrate(parts, domain_names=("x", "y"))
    assert control.domain_counts == (100, 100)
    cutoffs = control.domain_cutoffs("simplex")
    assert cutoffs[0] < cutoffs[1]
    for index in range(2):
        assert parts.named is not None
        alone = replace(parts.only(parts.named == index), named=None)
        assert float(cutoffs[index]) == RiskControl(0.1, loss="log").calibrate(alone).cutoffs.simplex
        assert (100 * mean_excess(alone, float(cutoffs[index]), 0.5) + 0.5) / 101 <= 0.1
    report = control.report(parts)
    assert set(report["domains"]) == {"x", "y"}
    assert control.by_domain(parts) == report["domains"]
    assert all(
        one["excess"] <= 0.1 and one["low"] <= one["excess"] <= one["high"] for one in report["domains"].values()
    )
    applied = control.apply(parts)
    assert applied.cutoffs is not None
    assert torch.equal(torch.as_tensor(applied.cutoffs.simplex), cutoffs[parts.named])


def test_domains_of_requests_are_given_and_constant() -> None:
    parts = by_domain(draw_requests(60))
    few = RiskControl(0.1, loss="log", by="domain", small="silent")
    rare = replace(parts, named=(parts.groups == 0).long())  # pyright: ignore[reportAttributeAccessIssue]
    assert few.calibrate(rare, domain_names=("x", "y")).domain_cutoffs("simplex")[1] == math.inf
    with pytest.raises(RedxError, match="changes within a request"):
        RiskControl(0.1, loss="log", by="domain").calibrate(
            replace(parts, named=torch.arange(240) % 2), domain_names=("x", "y")
        )
    with pytest.raises(RedxError, match="do not name one domain for a request"):
        RiskControl(0.1, loss="log", by="domain").calibrate(parts, class_domains=[0, 0, 1, 1, 1])
    single = replace(draw_requests(60, 1), groups=None)
    control = RiskControl(0.2, loss="log", by="domain").calibrate(single, class_domains=[0, 0, 1, 1, 1])
    assert control.domain_counts == tuple((single.base.argmax(-1) > 1).long().bincount().tolist())
    assert set(control.report(single)["domains"]) == {"0", "1"}


def test_the_report_says_what_the_cutoff_keeps() -> None:
    parts = draw_requests(200)
    report = RiskControl(0.1, loss="log").calibrate(parts).report(draw_requests(200, seed=1))
    assert (report["loss"], report["bound"], report["examples"], report["calibration"]) == ("log", 0.5, 200, 200)
    assert report["after"]["excess"] < report["before"]["excess"]
    assert report["after"]["low"] <= report["after"]["excess"] <= report["after"]["high"]
    assert report["after"]["worst"] < report["before"]["worst"]
    labels = parts.true_labels()
    again = RiskControl(0.1, loss="log").calibrate(parts).report(parts)
    base = cross_entropy(parts.base, labels, reduction="none")
    assert again["before"]["base"] == pytest.approx(float(base.mean()))


@pytest.mark.parametrize("by", ["all", "domain"])
def test_files_keep_the_promise(tmp_path: Path, by: str) -> None:
    parts = by_domain(draw_requests(60))
    control = RiskControl(0.1, loss="log", bound=0.4, by=by).calibrate(parts, domain_names=("x", "y"))
    control.names = ("a", "b", "c")
    write_calibration(tmp_path / "risk.json", tmp_path / "thresholds.safetensors", control)
    again = read_calibration(tmp_path)
    assert again is not None
    assert (again.loss, again.bound, again.by, again.examples) == ("log", 0.4, by, 60)
    assert again.cutoffs == control.cutoffs
    assert again.to_json() == control.to_json()
    assert again.at(0.2).cutoffs == control.at(0.2).cutoffs
    assert torch.equal(again.domain_cutoffs("simplex"), control.domain_cutoffs("simplex"))
    about = json.loads((tmp_path / "risk.json").read_text())
    assert (about["loss"], about["bound"], about["calibration"]) == ("log", 0.4, 60)


@pytest.mark.parametrize(
    "change",
    [{"loss": "harm"}, {"loss": "square"}, {"bound": 0.0}, {"bound": 0.05}, {"calibration": 59}, {"budget": "routing"}],
    ids=str,
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    control = RiskControl(0.1, loss="log").calibrate(draw_requests(60))
    control.names = ("a", "b", "c")
    write_calibration(tmp_path / "risk.json", tmp_path / "thresholds.safetensors", control)
    about = json.loads((tmp_path / "risk.json").read_text()) | change
    (tmp_path / "risk.json").write_text(json.dumps(about))
    with pytest.raises(RedxError):
        read_calibration(tmp_path)


def test_amounts_that_no_request_has_are_refused(tmp_path: Path) -> None:
    control = RiskControl(0.1, loss="log").calibrate(draw_requests(60))
    control.names = ("a", "b", "c")
    write_calibration(tmp_path / "risk.json", tmp_path / "thresholds.safetensors", control)
    tensors = read_tensors(tmp_path / "thresholds.safetensors")
    for wrong in (-tensors["amounts"], tensors["amounts"] + 0.9, tensors["amounts"][1:], tensors["amounts"].float()):
        write_tensors(tmp_path / "thresholds.safetensors", tensors | {"amounts": wrong.clone()})
        with pytest.raises(RedxError, match="does not belong"):
            read_calibration(tmp_path)
