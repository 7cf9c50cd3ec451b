"""Facts for the report that need the answers to every test example: paired differences, who contributes where."""

from __future__ import annotations

from typing import Any

import torch

from redx.composition.comparison import compare_rules, mean_contributions
from redx.composition.listing import rules_of_run
from redx.composition.rules import get_rule
from redx.config import RunConfig
from redx.model.model import Model
from redx.runs.parts import StoredParts
from redx.tasks.studies import leave_one_out


def compare_answers(config: RunConfig, parts: dict[int, StoredParts], digests: list[str]) -> dict[str, Any]:
    """Return keys of summary.json: `paired`, and where there are residual or standalone experts `modularity`.

    Parameters
    ----------
    config
        Settings of the run.
    parts
        The parts of every seed.
    digests
        Hashes of the test splits of the seeds.
    """
    rule = next((name for name in ("red", "moe") if config.main_bank(get_rule(name).form) in _banks(parts)), None)
    if rule is None:
        return {}
    shared = len(set(digests)) == 1
    compared = rules_of_run(config, _banks(parts))
    differences = compare_rules([stored.banks for stored in parts.values()], config.main, rule, shared, compared)
    facts: dict[str, Any] = {"paired": {"reference": rule, "shared": shared, "rules": differences}}
    experts = {_experts(config, stored, rule) for stored in parts.values()}
    if len(experts) == 1:  # seeds whose experts were changed by hand cannot be averaged
        facts["modularity"] = _modularity(config, list(parts.values()), rule, experts.pop(), shared)
    return facts


def describe_experts(model: Model) -> dict[str, dict[str, Any]]:
    """Return precision and number of training examples of every expert of a model, as its expert.json states them."""
    return {
        expert.name: {
            "dtype": expert.info.get("dtype"),
            "examples": (expert.info.get("training") or {}).get("examples"),
        }
        for expert in model.experts
    }


def _banks(parts: dict[int, StoredParts]) -> set[Any]:
    return set.intersection(*(set(stored.banks) for stored in parts.values()))


def _experts(config: RunConfig, stored: StoredParts, rule: str) -> tuple[str, ...]:
    return stored.domains[: stored.banks[config.main_bank(get_rule(rule).form)].experts]


def _modularity(
    config: RunConfig, by_seed: list[StoredParts], name: str, experts: tuple[str, ...], shared: bool
) -> dict[str, Any]:
    """Return contributions by domain and expert, accuracies as experts come and go: means over the seeds."""
    rule = get_rule(name)
    records = [stored.banks[config.main_bank(rule.form)] for stored in by_seed]
    domains = by_seed[0].domains
    added = torch.stack([mean_contributions(rule, record, len(domains)) for record in records]).nanmean(0)
    rows = {domain: row.tolist() for domain, row in zip(domains, added, strict=True) if not bool(row.isnan().any())}
    changes = leave_one_out.study(rule, records, experts, shared)
    return {"rule": name, "experts": list(experts), "contributions": rows, **changes}
