"""Compare a model before and after a change of experts on choice examples: flips, gain and loss, certificates.

Calibration and test examples play no part in it, so whoever compares many changes and keeps the best of them leaves
the promise of risk control and the figures of the test split as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from redx.composition import certificate
from redx.composition.evaluation import CertifiedPredictions, certify
from redx.composition.parts import Parts, predicted_classes
from redx.composition.risk import RiskControl, harm_figures, smallest_risk
from redx.composition.rules import Rule
from redx.config import RunConfig
from redx.data.dataset import Split
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.io.reading import guarded
from redx.model.model import Model
from redx.models.contribution import Contribution
from redx.models.expert import Expert
from redx.models.router import KEYS
from redx.runs.calibration import risk_figures
from redx.runs.folder import ask_model, choose_seed
from redx.runs.promises import describe_quarantine
from redx.tasks import get_task
from redx.training.datasets import read_choices, read_inputs

MAX_FLIPS = 200  # flipped examples that are listed one by one


@dataclass(frozen=True)
class SplitAnswers:
    """The answers of a model on the examples of a split."""

    rule: Rule
    domain_names: tuple[str, ...]  # as `parts.domains` counts them
    parts: Parts
    certified: CertifiedPredictions
    classes: tuple[str, ...] = ()  # in the order of the logits; empty for a regression
    control: RiskControl | None = None  # which was set on these examples themselves

    @staticmethod
    def compute(model: Model, split: Split) -> SplitAnswers:
        """Run a model, with the rule, router and cut-off that it uses now, on features of a split."""
        rule, bank_id = model.rule_and_bank()
        parts = model.parts_of(split.inputs, bank_id, split.labels, model.expert_index(split.domains))
        return SplitAnswers(rule, model.domain_names, parts, certify(rule, parts), model.classes)

    @staticmethod
    def on_choices(model: Model, choices: Split) -> SplitAnswers:
        """Run a model on features of choice examples, with a cut-off that is set on them instead of calibrated.

        The risk is that of the model, or the smallest that so many examples support.
        """
        answers = SplitAnswers.compute(model, choices)
        if not len(choices) or answers.parts.confidences is None:
            return answers
        promised = model.current_control()
        risk = max(promised.risk, smallest_risk(len(choices), promised.confidence))
        plain = answers.parts.with_confidences(answers.parts.confidences, None)
        promise: dict[str, Any] = {"by": promised.by, "small": promised.small, "budget": promised.budget}
        known = {"class_domains": promised.class_domains, "domain_names": promised.domain_names}
        trials = {"experts": promised.experts, "trials": promised.trials}
        control = RiskControl(risk, promised.confidence, **promise).calibrate(plain, **known, **trials)
        parts = control.apply(plain)
        certified = certify(answers.rule, parts)
        return SplitAnswers(answers.rule, answers.domain_names, parts, certified, answers.classes, control)

    def name(self, label: int) -> Any:
        """Return the label of a class index; the number itself for a regression."""
        return self.classes[label] if self.classes else label

    def correct(self) -> torch.Tensor:
        """Return which answers are correct, (N,)."""
        return self.certified.predicted == self.parts.labels

    def base_correct(self) -> torch.Tensor:
        """Return which answers of the base are correct, (N,)."""
        return predicted_classes(self.parts.base) == self.parts.labels

    def always_correct(self) -> torch.Tensor:
        """Return which answers are correct whatever the router does, (N,)."""
        return self.correct() & (self.certified.radius >= 1)

    def figures(self) -> dict[str, Any] | None:
        """Return `examples`, `risk` and the figures of `harm_figures`; None where the rule has no risk control."""
        if self.control is None:
            return None
        return {"examples": len(self.parts), "risk": self.control.risk, **harm_figures(self.rule, self.parts)}

    def quarantine(self) -> dict[str, Any]:
        """Return the experts in quarantine or admitted, as `describe_quarantine` does."""
        return {} if self.control is None else describe_quarantine(self.control)


def compare_domains(before: SplitAnswers, after: SplitAnswers, model: Model, split: Split) -> dict[str, Any]:
    """Return the accuracy of the base, of the rule, and of the rule under any router, before and after a change.

    Parameters
    ----------
    before, after
        The answers to the same examples.
    model
        The model, for the names of the domains.
    split
        The examples.

    Returns
    -------
    dict
        `count` of examples, `base`, `accuracy` (of the rule) and `worst` (under any router), each with `before`
        and `after`; and `domains`: the same by domain, where `before` and `after` are of the rule, with the numbers of
        examples that are `gained` and `lost`.
    """
    was, now = before.correct(), after.correct()
    pairs = {
        "base": (before.base_correct(), after.base_correct()),
        "worst": (before.always_correct(), after.always_correct()),
    }

    def shares(pair: tuple[torch.Tensor, torch.Tensor], rows: torch.Tensor) -> dict[str, float]:
        return {side: float(one[rows].double().mean()) for side, one in zip(("before", "after"), pair, strict=True)}

    domains = {}
    for index, name in enumerate(model.info.domains):
        mine = split.domains == index
        if not mine.any():
            continue
        domains[name] = {
            "examples": int(mine.sum()),
            **shares((was, now), mine),
            "gained": int((mine & now & ~was).sum()),
            "lost": int((mine & was & ~now).sum()),
            **{key: shares(pair, mine) for key, pair in pairs.items()},
        }
    everything = torch.ones(len(split), dtype=torch.bool)
    return {
        "count": len(split),
        "accuracy": shares((was, now), everything),
        **{key: shares(pair, everything) for key, pair in pairs.items()},
        "domains": domains,
    }


def compare_answers(
    before: SplitAnswers, after: SplitAnswers, model: Model, split: Split, epsilons: tuple[float, ...]
) -> dict[str, Any]:
    """Return which examples of a split flip, gain and loss by domain, and which certificates break or appear."""
    was, now = before.correct(), after.correct()
    flipped = _flipped(before, after).nonzero()[:, 0]
    certificates = {}
    for epsilon in epsilons:
        held, holds = (answers.correct() & (answers.certified.radius >= epsilon) for answers in (before, after))
        certificates[f"{epsilon:g}"] = {
            "before": certificate.certified_accuracy(before.certified.radius, was, epsilon),
            "after": certificate.certified_accuracy(after.certified.radius, now, epsilon),
            "broken": int((held & ~holds).sum()),
            "appeared": int((holds & ~held).sum()),
        }
    return compare_domains(before, after, model, split) | {
        "choice": {"before": before.figures(), "after": after.figures()},
        "experts": {"before": _expert_names(before), "after": _expert_names(after)},
        "quarantine": {"before": before.quarantine(), "after": after.quarantine()},
        "classes": {
            "added": [label for label in after.classes if label not in before.classes],
            "removed": [label for label in before.classes if label not in after.classes],
        },
        "flips": len(flipped),
        "gained": int((now & ~was).sum()),
        "lost": int((was & ~now).sum()),
        "certificates": certificates,
        "examples": [_describe_flip(model, before, after, split, row) for row in flipped[:MAX_FLIPS].tolist()],
    }


def _flipped(before: SplitAnswers, after: SplitAnswers) -> torch.Tensor:
    """Return where two models answer differently, (N,); the columns of new classes may have moved."""
    was, now = before.certified.predicted, after.certified.predicted
    if before.classes == after.classes:
        return was != now
    column = {label: index for index, label in enumerate(after.classes)}
    return torch.tensor([column.get(label, -1) for label in before.classes])[was] != now


def _expert_names(answers: SplitAnswers) -> list[str]:
    return list(answers.domain_names[: answers.parts.experts])


def _describe_flip(model: Model, before: SplitAnswers, after: SplitAnswers, split: Split, row: int) -> dict[str, Any]:
    return {
        "row": row,
        "domain": model.info.domains[int(split.domains[row])],
        "label": before.name(int(split.labels[row])),
        "before": before.name(int(before.certified.predicted[row])),
        "after": after.name(int(after.certified.predicted[row])),
        "radius": {"before": float(before.certified.radius[row]), "after": float(after.certified.radius[row])},
    }


def diff_experts(
    run: Path,
    added: Sequence[Path] = (),
    removed: Sequence[str] = (),
    rule: str | None = None,
    router: str | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Return what removing and adding experts would do to the answers on the choice examples; nothing is written.

    Parameters
    ----------
    run
        The run folder.
    added
        Folders of experts to add.
    removed
        Names of experts to remove; a name that is also added is replaced.
    rule
        The rule to compare by; the model's own by default.
    router
        `router` or `keys`; by default `keys` where the trained router lacks a gate for one of the experts.
    seed
        Which seed of the run; the first by default.

    Returns
    -------
    dict
        On the choice examples, with a cut-off that is set on them: what `compare_domains` returns, experts, flips,
        certificates, the examples that flip, `choice`, the figures under risk control before and after, and
        `quarantine`, the experts that are in it before and after, with their trials.
        `owners`: what the statistics of each added or removed expert do to the base, the fields of `Contribution` and
        `harmful`.
        `now`: cut-off and figures on the test split of the run as it stands, as `risk_figures` returns them; nothing of
        the change is in it.
    """
    if not added and not removed:
        raise RedxError("There is nothing to compare; give --add FOLDER or --remove NAME.")
    config, seed = choose_seed(run, seed)
    number, features = seed, run / f"seed-{seed}" / "features.safetensors"

    def ask(model: Model) -> dict[str, Any]:
        choices = read_choices(features, config.ownership.calibration, number)
        return _diff(config, model, choices, added, removed, rule, router)

    comparison = ask_model(run, seed, ask)
    flips = comparison["examples"]
    if get_task(config.task).text and flips:
        rows = torch.tensor([flip["row"] for flip in flips])
        inputs = read_inputs(features, "choice", comparison["count"])
        with guarded(features, "does not hold the texts of its choice examples", "repeat the run"):
            texts = unpack_texts(inputs[rows])
        comparison["examples"] = [flip | {"text": text} for flip, text in zip(flips, texts, strict=True)]
    return comparison | {"now": risk_figures(run, seed), "seed": seed}


def _diff(
    settings: RunConfig,
    model: Model,
    choices: Split,
    added: Sequence[Path],
    removed: Sequence[str],
    rule: str | None,
    router: str | None,
) -> dict[str, Any]:
    """Return the comparison of one model before and after the change."""
    if not len(choices):
        raise RedxError("This run has no choice examples to compare on; repeat it with more validation examples.")
    new = {expert.name: expert for expert in map(Expert.load, added)}
    names = [*model.experts.names, *new]
    if router is None and model.router is not None and model.router.missing(names):
        router = KEYS  # both sides by the same router
    with model.using(rule, router=router):
        before = SplitAnswers.on_choices(model, choices)
        owners = {name: model.experts.contribution(name) for name in removed}
        with model.experts.changing() as library:
            for name in set(removed) - set(new):
                library.remove(name)
            for name, expert in new.items():
                library.replace(name, expert) if name in removed else library.add(expert)
            after = SplitAnswers.on_choices(model, choices)
            comparison = compare_answers(before, after, model, choices, settings.epsilons)
            owners |= {name: library.contribution(name) for name in new}
        comparison |= {"rule": model.rule, "router": model.routing, "owners": describe_owners(owners)}
    return comparison


def describe_owners(owners: Mapping[str, Contribution | None]) -> dict[str, Any]:
    """Return what the statistics of owners do to the base, for JSON; nothing of an owner that brings none."""
    return {name: asdict(one) | {"harmful": one.is_harmful} for name, one in owners.items() if one is not None}
