"""What a change of experts does to the answers: flips, gain and loss by domain, certificates broken and won."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from redx.composition import certificate
from redx.composition.evaluation import CertifiedPredictions, certify
from redx.composition.parts import Parts
from redx.data.dataset import Split
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.models.composed import Model
from redx.models.expert import Expert
from redx.runs.folder import choose_seed, load_seed
from redx.tasks import get_task
from redx.training import features

SHOWN = 200  # flipped examples that are told one by one


@dataclass(frozen=True)
class TestView:
    """What a model answers on the test split, as it stands."""

    names: tuple[str, ...]  # domains, as `parts` counts them
    parts: Parts
    judged: CertifiedPredictions

    @staticmethod
    def of(model: Model, test: Split) -> TestView:
        """By the model's rule; where its router lacks a gate, by the experts' own scores."""
        rule, bank = model.rule_and_bank()
        parts = model.parts_of(test.inputs, bank, test.labels, model.expert_index(test.domains))
        return TestView(model.domain_names, parts, certify(rule, parts))

    def right(self) -> torch.Tensor:
        return self.judged.predicted == self.parts.labels


def compare_views(
    before: TestView, after: TestView, model: Model, test: Split, epsilons: tuple[float, ...]
) -> dict[str, Any]:
    """Which test examples flip, gain and loss by domain, and which certificates break or appear."""
    was, now = before.right(), after.right()
    flipped = (before.judged.predicted != after.judged.predicted).nonzero()[:, 0]
    domains = {}
    for place, name in enumerate(model.info.domains):
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
        "experts": {"before": _expert_names(before), "after": _expert_names(after)},
        "accuracy": {"before": float(was.double().mean()), "after": float(now.double().mean())},
        "flips": len(flipped),
        "gained": int((now & ~was).sum()),
        "lost": int((was & ~now).sum()),
        "domains": domains,
        "certificates": certificates,
        "examples": [_describe_flip(model, before, after, test, row) for row in flipped[:SHOWN].tolist()],
    }


def _expert_names(view: TestView) -> list[str]:
    return list(view.names[: view.parts.experts])


def _describe_flip(model: Model, before: TestView, after: TestView, test: Split, row: int) -> dict[str, Any]:
    def name(label: int) -> Any:
        return model.classes[label] if model.classes else label

    return {
        "row": row,
        "domain": model.info.domains[int(test.domains[row])],
        "label": name(int(test.labels[row])),
        "before": name(int(before.judged.predicted[row])),
        "after": name(int(after.judged.predicted[row])),
        "radius": {"before": float(before.judged.radius[row]), "after": float(after.judged.radius[row])},
    }


def test_texts(test: Split, rows: list[int]) -> list[str]:
    """The texts of some test examples, where they are texts."""
    return unpack_texts(test.inputs[torch.tensor(rows, dtype=torch.long)]) if test.inputs.dtype == torch.uint8 else []


def diff_experts(
    run: Path,
    added: Sequence[Path] = (),
    removed: Sequence[str] = (),
    rule: str | None = None,
    router: str | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """What removing and adding experts would do to the test split; nothing is written."""
    if not added and not removed:
        raise RedxError("There is nothing to compare; give --add FOLDER or --remove NAME.")
    config, seed = choose_seed(run, seed)
    model = load_seed(run / f"seed-{seed}", config)
    raw = get_task(config.task).load(config, seed).test
    test = features.embed_split(config, model.base, raw)
    newcomers = [Expert.load(folder) for folder in added]
    unrouted = {expert.name for expert in newcomers} | set(model.experts.names)
    router = router or ("keys" if unrouted - set(model.info.routed) else None)  # both sides by one router
    with model.using(rule, router=router):
        before = TestView.of(model, test)
        with model.experts.changing() as library:
            for name in set(removed) - {expert.name for expert in newcomers}:
                library.remove(name)
            for expert in newcomers:
                library.replace(expert.name, expert) if expert.name in removed else library.add(expert)
            found = compare_views(before, TestView.of(model, test), model, test, config.epsilons)
    texts = test_texts(raw, [each["row"] for each in found["examples"]]) if get_task(config.task).text else []
    for each, text in zip(found["examples"], texts, strict=False):
        each["text"] = text
    return {"rule": model.rule if rule is None else rule, "router": router or model.routing, "seed": seed} | found
