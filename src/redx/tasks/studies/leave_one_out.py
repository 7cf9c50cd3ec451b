"""The study of what each expert brings: the model without it, on its own domain and on the others.

All other experts stay, and the router is restricted to them. Cut-offs stay those of all experts together, so nothing is
trained or calibrated anew. All figures follow from the parts of the test split alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from redx.composition.comparison import answers_without, difference_over_seeds, grow_and_shrink, paired_difference
from redx.composition.evaluation import predict
from redx.composition.parts import Parts
from redx.composition.rules import Rule

OWN = "without_own"  # key of the summary: every example is answered without the expert of its own domain


def study(rule: Rule, records: Sequence[Parts], experts: Sequence[str], shared: bool) -> dict[str, Any]:
    """Return what changes when each expert leaves, and as experts join one by one.

    Parameters
    ----------
    rule
        The rule that composes.
    records
        The record of the test split of every seed, with domains and the same K experts.
    experts
        The names of the experts; expert k is that of domain k.
    shared
        Whether all seeds have the same test examples.

    Returns
    -------
    dict
        `one_by_one`: accuracies with the first 0 … K experts. `without`, by expert: accuracy and counts of changed
        answers on all examples, and for its own domain (`own`) and the other domains (`others`) the accuracy `before`
        and `after` it leaves and the paired difference. `without_own`: the same where every example is answered without
        the expert of its own domain. All are means over the seeds.
    """
    left_out = [answers_without(rule, record) for record in records]
    changes = [grow_and_shrink(rule, record, answers) for record, answers in zip(records, left_out, strict=True)]
    before = [predict(rule, record) == record.true_labels() for record in records]
    after = [answers == record.true_labels()[:, None] for record, answers in zip(records, left_out, strict=True)]
    groups = [record.groups for record in records]
    domains = [record.true_domains() for record in records]

    def compare(now: Sequence[Tensor], rows: Sequence[Tensor]) -> dict[str, float | int] | None:
        """Return the accuracies of these rows and their paired difference; None where a seed has no such row."""
        if not all(bool(one.any()) for one in rows):
            return None
        pairs = [(was[one], is_now[one]) for was, is_now, one in zip(before, now, rows, strict=True)]
        grouped = [None if own is None else own[one] for own, one in zip(groups, rows, strict=True)]
        means = torch.tensor([[float(one.double().mean()) for one in pair] for pair in pairs], dtype=torch.float64)
        accuracies = dict(zip(("before", "after"), means.mean(0).tolist(), strict=True))
        return accuracies | paired_difference(difference_over_seeds(pairs, shared, grouped))

    without: dict[str, Any] = {}
    for index, name in enumerate(experts):
        alone = [change["without"][index] for change in changes]
        figures: dict[str, Any] = {key: sum(one[key] for one in alone) / len(alone) for key in alone[0]}
        now = [right[:, index] for right in after]
        figures["own"] = compare(now, [domain == index for domain in domains])
        figures["others"] = compare(now, [domain != index for domain in domains])
        without[name] = figures
    answered = [_without_own(*one) for one in zip(before, after, domains, strict=True)]
    curves = torch.tensor([change["one_by_one"] for change in changes], dtype=torch.float64)
    every = compare(answered, [torch.ones_like(one, dtype=torch.bool) for one in before])
    return {"one_by_one": curves.mean(0).tolist(), "without": without, OWN: every}


def _without_own(before: Tensor, after: Tensor, domains: Tensor) -> Tensor:
    """Return which examples are right without the expert of their own domain, (N,); where there is none, with all."""
    count = after.shape[1]
    if not count:
        return before
    has_expert = (domains >= 0) & (domains < count)
    own = after.gather(1, domains.clamp(0, count - 1)[:, None])[:, 0]
    return torch.where(has_expert, own, before)
