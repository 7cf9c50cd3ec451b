"""Risk by domain: a cut-off for each domain keeps the risk in every domain, where one cut-off keeps it on average."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from redx.composition.evaluation import certify
from redx.composition.parts import Cutoffs, Parts
from redx.composition.risk import RiskControl, harm_outcomes, harm_thresholds, risk_cutoff
from redx.composition.rules import get_rule
from redx.errors import RedxError

RED, CLASS_DOMAINS = get_rule("red"), (0, 0, 1, 1, 2)
HARMFUL = (0.02, 0.1, 0.3)  # share of an expert's claims that are harmful, by domain


def draw(count: int, seed: int, experts: int = 3) -> Parts:
    """Return examples of three domains, on which experts do harm more often in some domains than in others."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(CLASS_DOMAINS), (count,), generator=generator)
    base = 2 * torch.nn.functional.one_hot(labels, len(CLASS_DOMAINS)).float()
    wrong = torch.rand(count, generator=generator) < 0.1
    base[wrong] = base[wrong].roll(1, -1)
    domains = torch.tensor(CLASS_DOMAINS)[labels]
    bad = torch.rand(count, experts, generator=generator) < torch.tensor(HARMFUL)[domains][:, None]
    away = torch.nn.functional.one_hot((labels + 2) % len(CLASS_DOMAINS), len(CLASS_DOMAINS)).float()
    residuals = 5 * bad[..., None] * away[:, None]
    sure = (
        torch.randn(count, experts, generator=generator) + bad.float() * torch.tensor([0.0, 1.0, 2.0])[domains][:, None]
    )
    return Parts(base, residuals, torch.randn(count, experts, generator=generator), labels, domains, sure)


def harm(parts: Parts) -> Tensor:
    return harm_outcomes(RED, parts)[:, 3].double()


def harmed_at(control: RiskControl, thresholds: Tensor, domains: Tensor) -> Tensor:
    """Return which test examples are harmed, (N,), given their thresholds: only the cut-off of their domain counts."""
    if control.by == "all":
        return (thresholds > control.cutoffs.simplex).double()
    return (thresholds > control.domain_cutoffs("simplex")[domains]).double()


@pytest.mark.parametrize("experts", [1, 3, 10, 50])
def test_the_risk_is_kept_in_every_domain_and_so_in_any_mix(experts: int) -> None:
    test, risk, rounds = draw(4000, 10**6, experts), 0.05, 2000
    thresholds, domains = harm_thresholds(RED, test), test.true_domains()
    found = {"all": torch.zeros(rounds, 3).double(), "domain": torch.zeros(rounds, 3).double()}
    calibrated = RiskControl(risk, by="domain")
    for number in range(rounds):
        calibrated.calibrate(draw(150, number, experts), class_domains=CLASS_DOMAINS)
        for by in found:
            control = calibrated.at(risk, by=by)
            harmed = harmed_at(control, thresholds, domains)
            if number < 3:
                assert torch.equal(harmed, harm(control.apply(test)))
            found[by][number] = torch.stack([harmed[domains == index].mean() for index in range(3)])
    mean, error = found["domain"].mean(0), found["domain"].std(0) / rounds**0.5
    of_test = torch.tensor([(risk * (1 - risk) / int((domains == index).sum())) ** 0.5 for index in range(3)])
    assert bool((mean <= risk + 3 * (error + of_test)).all())
    if experts > 1:  # one cut-off for all protects the mean alone
        assert float(found["all"].mean(0).max()) > 1.5 * risk
    mixes = torch.distributions.Dirichlet(torch.ones(3, dtype=torch.double)).sample((1000,))
    assert float((mixes @ mean).max()) <= risk + 3 * float((error + of_test).max())


def test_small_domains_that_share_a_cutoff_keep_the_risk_together() -> None:
    test, risk, rounds = draw(20_000, 10**6), 0.05, 2000
    thresholds, domains = harm_thresholds(RED, test), test.true_domains()
    control, found = RiskControl(risk, by="domain"), torch.zeros(rounds, 2).double()
    rare = torch.tensor([1.0, 0.15, 0.1])  # how often an example of a domain is there at all
    counts = torch.zeros(3, dtype=torch.int64)
    for number in range(rounds):
        held = draw(200, number)
        there = torch.rand(200, generator=torch.Generator().manual_seed(number)) < rare[held.true_domains()]
        control.calibrate(held.only(there), class_domains=CLASS_DOMAINS)
        counts += torch.tensor(control.domain_counts)
        harmed = harmed_at(control, thresholds, domains)
        mix = rare[domains].double()  # the test examples are as rare
        for place, small in enumerate((False, True)):  # alone, and sharing a cut-off
            groups = [group for group in control.merged if (len(group) > 1) == small]
            where = torch.isin(domains, torch.tensor([index for group in groups for index in group] or [-1]))
            found[number, place] = (harmed * mix * where).sum() / (mix * where).sum().clamp_min(1e-9)
    assert int(counts[1:].max()) / rounds < 19  # too few for the risk alone
    mean, error = found.mean(0), found.std(0) / rounds**0.5
    assert bool((mean <= risk + 3 * error + 0.003).all())


def shared(parts: Parts, seed: int) -> Parts:
    """Return the record with a domain that the base names, which is wrong for a quarter of the examples."""
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(parts), generator=generator) < 0.25
    domains = parts.true_domains()
    return replace(parts, named=torch.where(wrong, (domains + 1) % 3, domains))


def test_where_domains_share_classes_the_risk_is_kept_where_the_base_names_a_domain() -> None:
    test, risk, rounds = shared(draw(4000, 10**6), 1), 0.05, 2000
    assert test.named is not None
    thresholds, found = harm_thresholds(RED, test), torch.zeros(rounds, 3).double()
    control = RiskControl(risk, by="domain")
    for number in range(rounds):
        control.calibrate(shared(draw(200, number), number), domain_names="abc")
        harmed = harmed_at(control, thresholds, test.named)
        if number < 3:
            assert torch.equal(harmed, harm(control.apply(test)))
        found[number] = torch.stack([harmed[test.named == index].mean() for index in range(3)])
    mean, error = found.mean(0), found.std(0) / rounds**0.5
    of_test = torch.tensor([(risk / int((test.named == index).sum())) ** 0.5 for index in range(3)])
    assert bool((mean <= risk + 3 * (error + of_test)).all())
    control.names = ("a", "b", "c")
    figures = control.by_domain(test)
    for index, one in enumerate(figures.values()):
        mine = harm(control.apply(test))[test.true_domains() == index]
        assert one["true"]["examples"] == len(mine)
        assert one["true"]["harm"] == pytest.approx(float(mine.mean()))
        assert one["true"]["low"] <= one["true"]["harm"] <= one["true"]["high"]
    with pytest.raises(RedxError, match="give Parts\\(named=…\\)"):
        control.apply(draw(10, 0))
    with pytest.raises(RedxError, match="counts other domains"):
        control.apply(replace(test, named=test.named + 3))


def test_the_cutoff_is_that_of_the_domain_of_the_bases_answer() -> None:
    held, new = draw(600, 0), draw(50, 1)
    control = RiskControl(0.05, by="domain").calibrate(held, class_domains=CLASS_DOMAINS, domain_names="abc")
    cutoffs = control.cutoffs_for(new.base)
    named = torch.tensor(CLASS_DOMAINS)[new.base.argmax(-1)]
    for region, values in cutoffs._asdict().items():
        assert isinstance(values, Tensor)
        assert torch.equal(values, control.domain_cutoffs(region)[named])
    of_domain = held.only(held.true_domains() == 1)
    alone = RiskControl(0.05).calibrate(of_domain)  # what the owner of the domain computes alone
    assert float(control.domain_cutoffs("simplex")[1]) == alone.cutoffs.simplex
    gates = replace(new, gates=new.gates.flip(-1))  # no router changes the cut-off
    assert torch.equal(control.apply(gates).active("simplex"), control.apply(new).active("simplex"))


def test_harm_never_rises_with_the_cutoffs() -> None:
    parts, before = draw(400, 3), torch.ones(400).double()
    for level in (-2.0, 0.0, 1.0, 2.0, math.inf):
        shifted = torch.linspace(-0.5, 0.5, 400) + level
        now = harm(replace(parts, cutoffs=Cutoffs(shifted, shifted)))
        assert bool((now <= before).all())
        before = now
    assert not before.any()


def test_cutoffs_of_examples_follow_rows_and_pieces() -> None:
    control = RiskControl(0.05, by="domain").calibrate(draw(600, 0), class_domains=CLASS_DOMAINS)
    parts = control.apply(draw(60, 1))
    rows = torch.arange(0, 60, 7)
    assert torch.equal(parts.only(rows).active("simplex"), parts.active("simplex")[rows])
    joined = Parts.concatenate([parts.only(slice(0, 25)), parts.only(slice(25, 60))])
    assert torch.equal(joined.active("box"), parts.active("box"))
    whole = certify(RED, parts)
    pieces = [certify(RED, piece).predicted for _, piece in parts.chunks(100)]
    assert torch.equal(torch.cat(pieces), whole.predicted)
    with pytest.raises(RedxError, match="one for each of the 60 examples"):
        parts.with_confidences(parts.confidences, Cutoffs(torch.zeros(3), 0.0))  # pyright: ignore


def test_small_domains_share_a_cutoff_or_are_silent() -> None:
    held = draw(600, 0)
    rows = torch.cat([(held.true_domains() == index).nonzero()[:count, 0] for index, count in enumerate((200, 8, 5))])
    few = held.only(rows)
    merged = RiskControl(0.05, by="domain").calibrate(few, class_domains=CLASS_DOMAINS)
    assert merged.domain_counts == (200, 8, 5)
    assert merged.merged == ((0, 1, 2),)  # 13 examples are too few for 0.05, so the next larger domain joins
    assert float(merged.domain_cutoffs("simplex")[2]) == risk_cutoff(merged.thresholds["simplex"], 0.05)
    silent = merged.at(0.05, small="silent")
    assert silent.merged == ((0,), (1,), (2,))
    assert silent.domain_cutoffs("simplex")[1:].tolist() == [math.inf, math.inf]
    figures = merged.report(held)["domains"]
    assert figures["1"]["together"] == ["0", "2"]
    assert figures["1"]["calibration"] == 8
    enough = merged.at(0.1)
    assert enough.merged == ((0,), (1, 2))  # 13 examples are enough for 0.1


def test_another_risk_and_another_form_need_no_new_examples() -> None:
    held, new = draw(600, 0), draw(200, 1)
    control = RiskControl(0.05).calibrate(held, class_domains=CLASS_DOMAINS)
    by_domain = control.at(0.02, by="domain")
    direct = RiskControl(0.02, by="domain").calibrate(held, class_domains=CLASS_DOMAINS)
    assert torch.equal(by_domain.domain_cutoffs("simplex"), direct.domain_cutoffs("simplex"))
    assert by_domain.at(0.05, by="all").cutoffs == control.cutoffs
    assert control.apply(new).cutoffs == control.cutoffs  # one for all is still one number
    assert by_domain.report(new)["by"] == "domain"


def test_a_class_of_no_domain_silences_the_experts() -> None:
    control = RiskControl(0.05, by="domain").calibrate(draw(600, 0), class_domains=CLASS_DOMAINS)
    base = torch.zeros(1, 6)
    base[0, 5] = 1  # a class that came later
    assert control.cutoffs_for(base).simplex.tolist() == [math.inf]  # pyright: ignore


def test_what_cannot_be_controlled_by_domain_is_refused() -> None:
    held = draw(600, 0)
    refused = {
        "give calibrate(…, class_domains=…)": {},
        "belong to several domains or to none": {"class_domains": (0, 0, -1, 1, 2)},
        "no classes of a domain": {"class_domains": (0, 0, 1)},
        "There are 3 domains, and 2 names": {"class_domains": CLASS_DOMAINS, "domain_names": ("a", "b")},
    }
    for words, settings in refused.items():
        with pytest.raises(RedxError, match=words.replace("(", r"\(").replace(")", r"\)")):
            RiskControl(0.05, by="domain").calibrate(held, **settings)  # pyright: ignore
    grouped = replace(held, groups=torch.arange(len(held)) // 2)
    with pytest.raises(RedxError, match="leave out the groups"):
        RiskControl(0.05, by="domain").calibrate(grouped, class_domains=CLASS_DOMAINS)
    with pytest.raises(RedxError, match="by all or by domain"):
        RiskControl(0.05, by="owner")
    with pytest.raises(RedxError, match="knows no domains"):
        RiskControl(0.05).calibrate(held).at(0.05, by="domain")
