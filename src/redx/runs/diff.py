"""Compare a model before and after a change of experts: flips, gain and loss by domain, certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from redx.composition import certificate
from redx.composition.evaluation import CertifiedPredictions, certify
from redx.composition.parts import Parts
from redx.composition.risk import RiskControl, harm_figures, smallest_risk
from redx.config import RunConfig
from redx.data.dataset import Split
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.io.reading import guarded
from redx.model.model import Model
from redx.models.expert import Expert
from redx.models.router import KEYS
from redx.runs.calibration import describe_risk
from redx.runs.folder import ask_model, choose_seed
from redx.tasks import get_task
from redx.training.datasets import read_feature_split, read_test_inputs, split_validation

MAX_FLIPS = 200  # flipped examples that are listed one by one


@dataclass(frozen=True)
class SplitAnswers:
    """The answers of a model on the test split."""

    domain_names: tuple[str, ...]  # as `parts.domains` counts them
    parts: Parts
    certified: CertifiedPredictions
    calibration: RiskControl | None = None  # where the rule's bank has risk control
    classes: tuple[str, ...] = ()  # in the order of the logits; empty for a regression

    @staticmethod
    def compute(model: Model, test: Split) -> SplitAnswers:
        """Run a model, with the rule and router that it uses now, on features of the test split."""
        rule, bank_id = model.rule_and_bank()
        parts = model.parts_of(test.inputs, bank_id, test.labels, model.expert_index(test.domains))
        calibration = model.current_control() if parts.cutoffs else None
        return SplitAnswers(model.domain_names, parts, certify(rule, parts), calibration, model.classes)

    def name(self, label: int) -> Any:
        """Return the label of a class index; the number itself for a regression."""
        return self.classes[label] if self.classes else label

    def correct(self) -> torch.Tensor:
        """Return which answers are correct, (N,)."""
        return self.certified.predicted == self.parts.labels


def compare_answers(
    before: SplitAnswers, after: SplitAnswers, model: Model, test: Split, epsilons: tuple[float, ...]
) -> dict[str, Any]:
    """Return which test examples flip, gain and loss by domain, and which certificates break or appear."""
    was, now = before.correct(), after.correct()
    flipped = _flipped(before, after).nonzero()[:, 0]
    domains = {}
    for index, name in enumerate(model.info.domains):
        mine = test.domains == index
        if not mine.any():
            continue
        shares = [float(correct[mine].double().mean()) for correct in (was, now)]
        domains[name] = {
            "examples": int(mine.sum()),
            "before": shares[0],
            "after": shares[1],
            "gained": int((mine & now & ~was).sum()),
            "lost": int((mine & was & ~now).sum()),
        }
    certificates = {}
    for epsilon in epsilons:
        held, holds = (answers.correct() & (answers.certified.radius >= epsilon) for answers in (before, after))
        certificates[f"{epsilon:g}"] = {
            "before": certificate.certified_accuracy(before.certified.radius, was, epsilon),
            "after": certificate.certified_accuracy(after.certified.radius, now, epsilon),
            "broken": int((held & ~holds).sum()),
            "appeared": int((holds & ~held).sum()),
        }
    risk = None
    if before.calibration and after.calibration:
        risk = {
            "before": describe_risk(before.calibration, before.parts),
            "after": describe_risk(after.calibration, after.parts),
        }
    return {
        "risk": risk,
        "experts": {"before": _expert_names(before), "after": _expert_names(after)},
        "classes": {
            "added": [label for label in after.classes if label not in before.classes],
            "removed": [label for label in before.classes if label not in after.classes],
        },
        "accuracy": {"before": float(was.double().mean()), "after": float(now.double().mean())},
        "flips": len(flipped),
        "gained": int((now & ~was).sum()),
        "lost": int((was & ~now).sum()),
        "domains": domains,
        "certificates": certificates,
        "examples": [_describe_flip(model, before, after, test, row) for row in flipped[:MAX_FLIPS].tolist()],
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


def _describe_flip(model: Model, before: SplitAnswers, after: SplitAnswers, test: Split, row: int) -> dict[str, Any]:
    return {
        "row": row,
        "domain": model.info.domains[int(test.domains[row])],
        "label": before.name(int(test.labels[row])),
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
    """Return what removing and adding experts would do to the answers on the test split; nothing is written.

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
        Experts, accuracy, flips, gains and losses by domain, certificates, the examples that flip, and `choice`:
        figures on the choice examples before and after, which are the ones to choose by.
    """
    if not added and not removed:
        raise RedxError("There is nothing to compare; give --add FOLDER or --remove NAME.")
    config, seed = choose_seed(run, seed)
    number, features = seed, run / f"seed-{seed}" / "features.safetensors"

    def ask(model: Model) -> dict[str, Any]:
        validation = read_feature_split(features, "validation")
        choices = validation.only(split_validation(validation, config.ownership.calibration, number)[0])
        return _diff(config, model, read_feature_split(features, "test"), choices, added, removed, rule, router)

    comparison = ask_model(run, seed, ask)
    flips = comparison["examples"]
    if get_task(config.task).text and flips:
        rows, inputs = torch.tensor([flip["row"] for flip in flips]), read_test_inputs(features)
        with guarded(features, "does not hold the texts of its test examples", "repeat the run"):
            texts = unpack_texts(inputs[rows])
        comparison["examples"] = [flip | {"text": text} for flip, text in zip(flips, texts, strict=True)]
    return comparison | {"seed": seed}


def _diff(
    settings: RunConfig,
    model: Model,
    test: Split,
    choices: Split,
    added: Sequence[Path],
    removed: Sequence[str],
    rule: str | None,
    router: str | None,
) -> dict[str, Any]:
    """Return the comparison of one model before and after the change."""
    new = {expert.name: expert for expert in map(Expert.load, added)}
    names = [*model.experts.names, *new]
    if router is None and model.router is not None and model.router.missing(names):
        router = KEYS  # both sides by the same router
    with model.using(rule, router=router):
        before, chosen = SplitAnswers.compute(model, test), {"before": choice_figures(model, choices)}
        with model.experts.changing() as library:
            for name in set(removed) - set(new):
                library.remove(name)
            for name, expert in new.items():
                library.replace(name, expert) if name in removed else library.add(expert)
            comparison = compare_answers(before, SplitAnswers.compute(model, test), model, test, settings.epsilons)
            chosen["after"] = choice_figures(model, choices)
    return {"rule": rule or model.rule, "router": router or model.routing, "choice": chosen} | comparison


def choice_figures(model: Model, choices: Split) -> dict[str, Any] | None:
    """Return what a model does on the choice examples, to choose by; calibration examples play no part in it.

    Parameters
    ----------
    model
        The model, with the rule and router that it uses now.
    choices
        Features of the choice examples, on which the cut-off of these figures is set too.

    Returns
    -------
    dict or None
        `examples`, `risk` (that of the model, or the smallest that so many examples support), and the figures of
        `harm_figures`; None where there are no choice examples or the rule has no risk control.
    """
    rule, bank_id = model.rule_and_bank()
    if not len(choices) or bank_id != model.config.controlled_bank:
        return None
    parts = model.parts_of(choices.inputs, bank_id, choices.labels, model.expert_index(choices.domains))
    if parts.confidences is None:
        return None
    promised = model.current_control()
    risk = max(promised.risk, smallest_risk(len(choices), promised.confidence))
    plain = parts.with_confidences(parts.confidences, None)
    control = RiskControl(risk, promised.confidence).calibrate(plain)
    return {"examples": len(choices), "risk": risk, **harm_figures(rule, control.apply(plain))}
