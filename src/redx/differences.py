"""What a change of experts does to the answers: flips, gain and loss by domain, certificates broken and won."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from redx.composition import certificate
from redx.composition.evaluation import CertifiedPredictions, certify
from redx.composition.parts import Parts
from redx.data.dataset import Split
from redx.data.text import unpack_texts
from redx.models.composed import Model

SHOWN = 200  # flipped examples that are told one by one


@dataclass(frozen=True)
class View:
    """What a model answers on the test split, as it stands."""

    names: tuple[str, ...]  # domains, as `parts` counts them
    parts: Parts
    judged: CertifiedPredictions

    @staticmethod
    def of(model: Model, test: Split) -> View:
        """By the model's rule; where its router lacks a gate, by the experts' own scores."""
        rule, bank = model.chosen()
        parts = model.describe(test.inputs, bank, test.labels, model.places(test.domains))
        return View(model.name_domains(), parts, certify(rule, parts))

    def right(self) -> torch.Tensor:
        return self.judged.predicted == self.parts.labels


def compare(before: View, after: View, model: Model, test: Split, epsilons: tuple[float, ...]) -> dict[str, Any]:
    """Which test examples flip, gain and loss by domain, and which certificates break or appear."""
    was, now = before.right(), after.right()
    flipped = (before.judged.predicted != after.judged.predicted).nonzero()[:, 0]
    domains = {}
    for place, name in enumerate(model.facts.domains):
        mine = test.domains == place
        if not mine.any():
            continue
        shares = [float(right[mine].double().mean()) for right in (was, now)]
        domains[name] = {
            "examples": int(mine.sum()),
            "before": shares[0],
            "after": shares[1],
            "gained": int((mine & now & ~was).sum()),
            "lost": int((mine & was & ~now).sum()),
        }
    certificates = {}
    for epsilon in epsilons:
        held, holds = (view.right() & (view.judged.radius >= epsilon) for view in (before, after))
        certificates[f"{epsilon:g}"] = {
            "before": certificate.certified_accuracy(before.judged.radius, was, epsilon),
            "after": certificate.certified_accuracy(after.judged.radius, now, epsilon),
            "broken": int((held & ~holds).sum()),
            "appeared": int((holds & ~held).sum()),
        }
    return {
        "experts": {"before": _experts(before), "after": _experts(after)},
        "accuracy": {"before": float(was.double().mean()), "after": float(now.double().mean())},
        "flips": len(flipped),
        "gained": int((now & ~was).sum()),
        "lost": int((was & ~now).sum()),
        "domains": domains,
        "certificates": certificates,
        "examples": [_tell(model, before, after, test, row) for row in flipped[:SHOWN].tolist()],
    }


def _experts(view: View) -> list[str]:
    return list(view.names[: view.parts.experts])


def _tell(model: Model, before: View, after: View, test: Split, row: int) -> dict[str, Any]:
    def name(label: int) -> Any:
        return model.classes[label] if model.classes else label

    return {
        "row": row,
        "domain": model.facts.domains[int(test.domains[row])],
        "label": name(int(test.labels[row])),
        "before": name(int(before.judged.predicted[row])),
        "after": name(int(after.judged.predicted[row])),
        "radius": {"before": float(before.judged.radius[row]), "after": float(after.judged.radius[row])},
    }


def words(test: Split, rows: list[int]) -> list[str]:
    """The texts of some test examples, where they are texts."""
    return unpack_texts(test.inputs[torch.tensor(rows, dtype=torch.long)]) if test.inputs.dtype == torch.uint8 else []
