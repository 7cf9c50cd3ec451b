"""Comparisons on the same examples: paired differences of rules, and what each expert adds where.

All functions are pure functions of `Parts`, or of tensors that say which answers are correct.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from redx.composition.evaluation import Banks, match_banks, predict
from redx.composition.metrics import group_means
from redx.composition.parts import Parts
from redx.composition.rules import Rule, RuleId, contributing, general_rules, get_rule
from redx.seeding import generator

RESAMPLES = 10_000  # of the bootstrap


def correct_answers(banks: Banks, main: dict[str, str], rules: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Return which examples every rule answers correctly.

    Parameters
    ----------
    banks
        Records of the same N examples by bank.
    main
        The main bank of every form; its answers also appear under the rule's name alone.
    rules
        Rules as `evaluate` takes them; by default all that exist whatever the base is.

    Returns
    -------
    dict
        Boolean tensors of shape (N,) by `RULE/BANK` and `RULE`.
    """
    answers: dict[str, Tensor] = {}
    for rule, bank, parts in match_banks(banks, general_rules() if rules is None else rules):
        correct = predict(rule, parts) == parts.true_labels()
        if bank:
            answers[str(RuleId(rule.name, bank))] = correct
        if not bank or main.get(rule.form) == bank:
            answers[rule.name] = correct
    return answers


def paired_difference(differences: Tensor, seed: int = 0) -> dict[str, float | int]:
    """Return the mean difference of two accuracies on the same examples, with interval and test.

    The interval is a 95 % percentile interval of the bootstrap over examples. The test is the exact sign test over the
    examples on which the two differ; with one answer per example it is McNemar's exact test.

    Parameters
    ----------
    differences
        One number per example, (N,): correct answers of the first less those of the second, such as -1, 0 and 1, or
        the mean of these over several seeds.
    seed
        Decides the draws of the bootstrap.

    Returns
    -------
    dict
        `difference`, the ends `low` and `high` of its interval, `p`, and the numbers of examples on which the first is
        `better` and `worse` than the second.

    Examples
    --------
    >>> first, second = torch.ones(8), torch.tensor([0.0, 0, 0, 0, 0, 0, 1, 1])
    >>> result = paired_difference(first - second)
    >>> result["difference"], result["better"], result["worse"], round(result["p"], 4)
    (0.75, 6, 0, 0.0312)
    """
    import numpy
    from scipy import stats

    values, counts = differences.double().unique(return_counts=True)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    examples = len(differences)
    draw = numpy.random.default_rng(generator(seed, "bootstrap").initial_seed())
    # Drawing how often each distinct value occurs is the same as drawing examples, and takes no memory for them.
    drawn = draw.multinomial(examples, counts.double().numpy() / examples, RESAMPLES)  # (RESAMPLES, values)
    low, high = numpy.quantile(drawn @ values.numpy() / examples, (0.025, 0.975))
    test = float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0
    mean = float(differences.double().mean())
    return {"difference": mean, "low": float(low), "high": float(high), "p": test, "better": better, "worse": worse}


def difference_over_seeds(
    pairs: list[tuple[Tensor, Tensor]], shared: bool, groups: Sequence[Tensor | None] = ()
) -> Tensor:
    """Return the differences of correct answers, one number per example, or per group where examples come in groups.

    Parameters
    ----------
    pairs
        For every seed, which examples the first and the second answer correctly, (N,) each.
    shared
        Whether the examples of all seeds are the same. Their differences are then averaged over the seeds; otherwise
        the examples of all seeds are independent and stand one after the other.
    groups
        The groups of the examples of every seed, such as documents, (N,) each, or None; groups are independent then,
        and their mean differences are returned.
    """
    by_seed = [first.double() - second.double() for first, second in pairs]
    grouped = zip(by_seed, groups, strict=True) if groups else ((one, None) for one in by_seed)
    by_seed = [values if own is None else group_means(values, own) for values, own in grouped]
    return torch.stack(by_seed).mean(0) if shared else torch.cat(by_seed)


def compare_rules(
    by_seed: list[Banks], main: dict[str, str], reference: str, shared: bool, rules: Sequence[str] | None = None
) -> dict[str, dict[str, float | int]]:
    """Return the paired difference of one rule to every other.

    Parameters
    ----------
    by_seed
        The records of every seed, by bank.
    main
        The main bank of every form.
    reference
        The rule that is compared with the others; a difference above 0 means that it answers more correctly.
    shared
        Whether all seeds have the same test examples.
    rules
        The other rules, as `evaluate` takes them; by default all that exist whatever the base is.

    Returns
    -------
    dict
        What `paired_difference` returns, by the name of the other rule; empty where the reference does not exist.
    """
    answers = [correct_answers(banks, main, rules) for banks in by_seed]
    names = [name for name in answers[0] if all(name in one for one in answers)]
    if reference not in names:
        return {}
    groups = [groups_of(banks) for banks in by_seed]
    return {
        name: paired_difference(difference_over_seeds([(one[reference], one[name]) for one in answers], shared, groups))
        for name in names
        if name != reference
    }


def groups_of(banks: Banks) -> Tensor | None:
    """Return the groups of the examples of a run, (N,), or None where there are none."""
    return next(iter(banks.values())).groups


def mean_contributions(rule: Rule | str, parts: Parts, domains: int) -> Tensor:
    """Return what every expert adds to the true answer, by domain.

    An expert adds its weight times its residual at the true class, less the mean of its residual over all classes,
    since a constant on all logits changes nothing. For a regression it is weight times residual.

    Parameters
    ----------
    rule, parts
        The rule that gives the weights, and the record of N examples.
    domains
        Number of domains.

    Returns
    -------
    Tensor
        Means over the examples of a domain, (domains, K); NaN for a domain without an example.
    """
    rule, labels, own = get_rule(rule), parts.true_labels(), parts.true_domains()
    sums = torch.zeros(domains, parts.experts, dtype=torch.float64)
    counts = torch.bincount(own, minlength=domains)[:domains]
    weights = rule.weights(parts)
    for rows, chunk in parts.chunks():
        part = contributing(rule, chunk)
        added = part.residuals[..., 0]  # (N, K)
        if part.residuals.shape[2] > 1:
            index = labels[rows][:, None, None].expand(-1, part.experts, 1)
            added = part.residuals.gather(2, index)[..., 0] - part.residuals.mean(2)
        sums.index_add_(0, own[rows], (weights[rows] * added).double())
    return sums / counts[:, None]


def answers_without(rule: Rule | str, parts: Parts) -> Tensor:
    """Return the answer to every example without each of the experts, (N, K).

    The other experts stay: the router's gates are restricted to them, and confidences and cut-offs remain those of all
    experts together, so nothing is trained or calibrated anew.

    Parameters
    ----------
    rule, parts
        The rule that composes, and the record of N examples and K experts.

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0], [0.0, 0.0]]])
    >>> answers_without("red", Parts(base, residuals, torch.tensor([[5.0, 0.0]]), torch.tensor([1])))
    tensor([[0, 1]])
    """
    everyone = range(parts.experts)
    kept = ([expert for expert in everyone if expert != left_out] for left_out in everyone)
    answers = [predict(rule, parts.keep(experts)) for experts in kept]
    return torch.stack(answers, 1) if answers else torch.empty(len(parts), 0, dtype=torch.int64)


def grow_and_shrink(rule: Rule | str, parts: Parts, without: Tensor | None = None) -> dict[str, Any]:
    """Return the accuracy as experts are added one by one, and without each of them.

    Gates, confidences and cut-offs stay those of all experts together, so nothing is trained or calibrated anew.

    Parameters
    ----------
    rule, parts
        The rule that composes, and the record of N examples and K experts.
    without
        The answers without each expert, (N, K), where `answers_without` has computed them already.

    Returns
    -------
    dict
        `one_by_one`: accuracies with the first 0 … K experts; `without`: for each expert the accuracy without it, the
        numbers of answers that its absence makes wrong (`lost`) and right (`gained`), and of all answers that change
        (`flips`).
    """
    labels, count = parts.true_labels(), parts.experts
    curve = [predict(rule, parts.keep(list(range(experts)))) for experts in range(count + 1)]
    before, changes = curve[-1], []
    was = before == labels
    for after in (answers_without(rule, parts) if without is None else without).unbind(1):
        now = after == labels
        figures = {"lost": was & ~now, "gained": now & ~was, "flips": after != before}
        counts = {name: int(rows.sum()) for name, rows in figures.items()}
        changes.append({"accuracy": float(now.double().mean()), **counts})
    return {"one_by_one": [float((answers == labels).double().mean()) for answers in curve], "without": changes}
