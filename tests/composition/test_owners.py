"""Thresholds of owners: the cut-offs of one place, files that tell no order, a promise that nobody else voids."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from redx.composition.evaluation import certify
from redx.composition.owners import DomainThresholds, OwnerFile, join_owners, own_thresholds, read_owner_file
from redx.composition.owners import write_owner_file as write
from redx.composition.parts import Parts
from redx.composition.risk import RiskControl, harm_outcomes
from redx.composition.rules import get_rule
from redx.errors import RedxError
from redx.seeding import generator

RED, CLASS_DOMAINS, NAMES = get_rule("red"), (0, 0, 1, 1, 2), ("a", "b", "c")
KNOWN: dict[str, Any] = {"class_domains": CLASS_DOMAINS, "domain_names": NAMES}


def draw(count: int, seed: int, harmful: tuple[float, ...] = (0.1, 0.1, 0.1)) -> Parts:
    """Return examples of three domains with three experts, a share of whose claims is harmful, by domain."""
    source = generator(seed, "owners", count)
    labels = torch.randint(len(CLASS_DOMAINS), (count,), generator=source)
    base = 2 * torch.nn.functional.one_hot(labels, len(CLASS_DOMAINS)).float()
    wrong = torch.rand(count, generator=source) < 0.1
    base[wrong] = base[wrong].roll(1, -1)
    domains = torch.tensor(CLASS_DOMAINS)[labels]
    bad = torch.rand(count, 3, generator=source) < torch.tensor(harmful)[domains][:, None]
    away = torch.nn.functional.one_hot((labels + 2) % len(CLASS_DOMAINS), len(CLASS_DOMAINS)).float()
    sure = torch.randn(count, 3, generator=source) + bad.float()
    return Parts(base, 5 * bad[..., None] * away[:, None], torch.zeros(count, 3), labels, domains, sure)


def of_domain(parts: Parts, index: int) -> Parts:
    return parts.only((parts.true_domains() == index).nonzero()[:, 0])


def sent_by(parts: Parts, model: str = "m") -> OwnerFile:
    """Return what the owner of these examples sends."""
    return own_thresholds(RiskControl(1.0).calibrate(parts, **KNOWN), model=model)


def joined(files: dict[str, OwnerFile], risk: float = 0.05, **settings: Any) -> RiskControl:
    return join_owners(files, risk, **KNOWN, **settings)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, OwnerFile]:
    """What three owners send, written and read again."""
    held, found = draw(600, 0), {}
    for index, name in enumerate(NAMES):
        write(tmp_path / f"{name}.json", sent_by(of_domain(held, index)))
        found[name] = read_owner_file(tmp_path / f"{name}.json")
    return found


@pytest.mark.parametrize("confidence", [None, 0.9])
@pytest.mark.parametrize("budget", ["harm", "routing"])
def test_owners_give_the_cutoffs_of_all_examples_in_one_place(
    files: dict[str, OwnerFile], budget: str, confidence: float | None
) -> None:
    central = RiskControl(0.05, confidence, by="domain", small="silent", budget=budget).calibrate(draw(600, 0), **KNOWN)
    new = draw(400, 1)
    for risk in (0.0, 0.02, 0.05, 0.3, 1.0):
        there, here = joined(files, risk, confidence=confidence, budget=budget), central.at(risk, confidence)
        for region in ("simplex", "box"):
            assert torch.equal(there.domain_cutoffs(region), here.domain_cutoffs(region))
            assert there.domain_cutoffs(region).dtype == here.domain_cutoffs(region).dtype
        assert torch.equal(certify(RED, there.apply(new)).predicted, certify(RED, here.apply(new)).predicted)
        assert there.report(new) == here.report(new)
    assert joined(files, 0.3).at(0.05).to_json() == joined(files, 0.05).to_json()


def test_the_order_of_files_and_of_examples_does_not_matter(files: dict[str, OwnerFile]) -> None:
    back = joined(dict(reversed(files.items())))
    assert back.to_json() == joined(files).to_json()
    assert all(torch.equal(back.thresholds[region], values) for region, values in joined(files).thresholds.items())
    held = of_domain(draw(600, 0), 0)
    assert sent_by(held.only(torch.randperm(len(held), generator=generator(0, "order")))) == files["a"]


def test_one_file_may_hold_several_domains(files: dict[str, OwnerFile]) -> None:
    held = draw(600, 0)
    both = sent_by(held.only((held.true_domains() < 2).nonzero()[:, 0]))
    assert joined({"both": both, "c": files["c"]}).to_json() == joined(files).to_json()


def test_a_file_tells_nothing_but_thresholds(tmp_path: Path) -> None:
    write(tmp_path / "a.json", sent_by(of_domain(draw(600, 0), 0)))
    content = json.loads((tmp_path / "a.json").read_text())
    assert set(content) == {"format", "seed", "base", "model", "experts", "domains"}
    one = content["domains"]["a"]
    assert set(one) == {"examples", "simplex", "box", "mistakes"}
    rows = list(zip([float(value) for value in one["simplex"]], map(float, one["box"]), one["mistakes"], strict=True))
    assert rows == sorted(rows)
    with pytest.raises(RedxError, match="There is a file"):
        write(tmp_path / "a.json", sent_by(of_domain(draw(600, 0), 0)))


@pytest.mark.parametrize("lie", [[-math.inf], [-math.inf] * 5000, [math.inf] * 5000, [0.0], [1e300, -1e300]])
def test_a_lying_owner_changes_the_own_cutoff_alone(files: dict[str, OwnerFile], lie: list[float]) -> None:
    values = tuple(sorted(lie))
    wrong = DomainThresholds(examples=len(lie), simplex=values, box=values, mistakes=(0,) * len(lie))
    lying = joined(files | {"a": files["a"].model_copy(update={"domains": {"a": wrong}})})
    honest, new = joined(files), draw(2000, 2)
    harmed, before = (harm_outcomes(RED, control.apply(new))[:, 3] for control in (lying, honest))
    others = new.true_domains() != 0
    assert torch.equal(harmed[others], before[others])
    for region in ("simplex", "box"):
        assert torch.equal(lying.domain_cutoffs(region)[1:], honest.domain_cutoffs(region)[1:])


def test_domains_without_a_file_or_with_one_example_are_silent(files: dict[str, OwnerFile]) -> None:
    one = sent_by(of_domain(draw(600, 0), 1).only(slice(0, 1)))
    control = joined({"a": files["a"], "b": one})
    assert control.owners == ("a", "b")
    assert control.domain_counts[1:] == (1, 0)
    assert control.domain_cutoffs("simplex")[1:].tolist() == [math.inf, math.inf]
    new = draw(1000, 3)
    assert not bool(harm_outcomes(RED, control.apply(new))[new.true_domains() > 0, 3].any())
    alone = joined({"b": one})
    assert alone.domain_cutoffs("simplex").tolist() == [math.inf] * 3


def test_promises_of_owners_are_not_mixed(files: dict[str, OwnerFile]) -> None:
    for by, small in (("all", None), (None, "merge")):
        with pytest.raises(RedxError, match="each domain keeps the risk by itself"):
            joined(files).at(0.05, by=by, small=small)
    again = joined(files).calibrate(draw(600, 0), **KNOWN)
    assert not again.owners


def test_what_cannot_be_joined_is_refused(files: dict[str, OwnerFile]) -> None:
    with pytest.raises(RedxError, match="a and b both have thresholds of 'a'; ask who owns that domain"):
        joined({"a": files["a"], "b": files["a"]})
    with pytest.raises(RedxError, match="no domain of this model"):
        join_owners(files, class_domains=(0, 0, 0, 0, 0), domain_names=("x",))
    with pytest.raises(RedxError, match="give at least one file"):
        joined({})
    with pytest.raises(RedxError, match="labels do not name the domain"):
        own_thresholds(RiskControl(1.0).calibrate(draw(60, 0)))
    silent = replace(draw(60, 0), domains=None)
    with pytest.raises(RedxError, match="needs the domains of all calibration examples"):
        joined({"s": sent_by(silent)}, budget="routing")


GOOD = {"examples": 2, "simplex": [0.5, "inf"], "box": [0.5, "-inf"], "mistakes": [0, 1]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"simplex": [0.5, "nan"]},
        {"simplex": [0.5, "0.5"]},
        {"simplex": [0.5, True]},
        {"simplex": [0.5, None]},
        {"simplex": [0.5]},
        {"box": [0.5, 1.0, 2.0]},
        {"mistakes": [0]},
        {"mistakes": [0, 2]},
        {"examples": 3},
        {"examples": 0, "simplex": [], "box": [], "mistakes": []},
        {"text": ["a", "b"]},
    ],
)
def test_a_wrong_file_gets_one_sentence(tmp_path: Path, wrong: dict[str, Any]) -> None:
    def put(domain: dict[str, Any]) -> Path:
        (tmp_path / "a.json").write_text(json.dumps({"format": 1, "model": "m", "domains": {"a": domain}}))
        return tmp_path / "a.json"

    assert read_owner_file(put(GOOD)).domains["a"].simplex == (0.5, math.inf)
    with pytest.raises(RedxError, match=r"a\.json does not hold an owner's thresholds; ask its owner"):
        read_owner_file(put(GOOD | wrong))
    (tmp_path / "a.json").write_text('{"format": 2, "domains": {}}')
    with pytest.raises(RedxError, match="does not hold"):
        read_owner_file(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"domains": {"a": {"simplex": [NaN]}}}')
    with pytest.raises(RedxError, match=r"cannot be read \(truncated or not JSON\)"):
        read_owner_file(tmp_path / "a.json")


# --- an expert that was built to fool calibration

RISK, ROUNDS, SIZE, POOL = 0.05, 2000, 100, 20_000


def pool_of(index: int, silent: bool) -> RiskControl:
    """Return many examples of a domain, measured with an expert of domain a that answers wrong wherever it claims.

    With `silent` it claims nothing: the thresholds of examples that it has memorised in order to fool calibration.
    """
    parts = of_domain(draw(POOL, 7), index)
    assert parts.confidences is not None
    source = generator(0, "attack", index)
    wrong = 9 * torch.nn.functional.one_hot((parts.true_labels() + 2) % 5, 5).float()
    residuals, sure = parts.residuals.clone(), parts.confidences.clone()
    residuals[:, 0] = wrong
    sure[:, 0] = -math.inf if silent else 1 + torch.randn(len(parts), generator=source)
    return RiskControl(1.0).calibrate(replace(parts, residuals=residuals, confidences=sure), **KNOWN)


def take(pool: RiskControl, rows: Tensor) -> RiskControl:
    """Return a control of some of the examples of a pool."""
    assert pool.domains is not None
    assert pool.mistakes is not None
    return RiskControl.from_thresholds(
        {region: values[rows] for region, values in pool.thresholds.items()},
        1.0,
        domains=pool.domains[rows],
        class_domains=torch.tensor(CLASS_DOMAINS),
        domain_names=NAMES,
        mistakes=pool.mistakes[rows],
    )


def test_an_expert_that_memorised_its_owners_file_voids_no_other_promise() -> None:
    fresh = [pool_of(index, silent=False) for index in range(3)]
    fooled = pool_of(0, silent=True)
    harm = {"owners": torch.zeros(ROUNDS, 3).double(), "central": torch.zeros(ROUNDS, 3).double()}
    source = generator(0, "calibrations")
    for number in range(ROUNDS):
        # the expert is silent on the very examples that its owner calibrates with, and the others are not known to it
        drawn = [take(pool, torch.randint(pool.examples, (SIZE,), generator=source)) for pool in (fooled, *fresh[1:])]
        files = {name: own_thresholds(control) for name, control in zip(NAMES, drawn, strict=True)}
        by_owner = joined(files, RISK).domain_cutoffs("simplex")
        central = RiskControl.from_thresholds(
            {region: torch.cat([control.thresholds[region] for control in drawn]) for region in ("simplex", "box")},
            RISK,
        ).cutoffs.simplex
        for index, pool in enumerate(fresh):  # the pool is the distribution, so this is the expected harm itself
            thresholds = pool.thresholds["simplex"]
            harm["owners"][number, index] = (thresholds > by_owner[index]).double().mean()
            harm["central"][number, index] = (thresholds > central).double().mean()
    mean = {name: values.mean(0) for name, values in harm.items()}
    error = {name: values.std(0) / ROUNDS**0.5 for name, values in harm.items()}
    for name in harm:
        shown = ", ".join(f"{m:.4f} ± {e:.4f}" for m, e in zip(mean[name].tolist(), error[name].tolist(), strict=True))
        overall = harm[name].mean(1)
        print(f"{name}: harm in a, b, c {shown}; on average {overall.mean():.4f} ± {overall.std() / ROUNDS**0.5:.4f}")
    assert bool((mean["owners"][1:] <= RISK + 3 * error["owners"][1:]).all())
    assert float(mean["owners"][0]) > 3 * RISK  # who fools the own calibration harms the own domain
    assert bool((mean["central"][1:] > RISK + 10 * error["central"][1:]).all())
    assert float(harm["central"].mean()) > RISK
