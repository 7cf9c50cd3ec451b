"""Quarantine: an expert that harms more than it helps is composed with weight zero until its owner mends it.

Every expert is tried on examples that are for choices. Alone beside the base it harms example i where the base is right
and it is wrong, and helps where the base is wrong and it is right. Both count only where the expert is at least as
confident as experts are usually allowed to be: above the median, over the experts, of the cut-off that keeps each alone
at the risk. A minority of bad experts moves this median little, whatever they claim.

Of h + p examples on which an expert of no consequence makes a difference, the number of harmed ones is binomial with
probability one half. An expert is put in quarantine where so many harmed ones have a probability below the level, which
is divided by the number of experts.

An expert can also do harm without changing an answer: where it claims the examples of all others, their confidences
fall in the contest, and they are cut off. Where every class belongs to one domain, an expert claims an example if its
ownership score is positive and the largest. At most half of its claims may be on examples of others; where there is no
example of its own, at most half of all examples. This is tested alike, and the two tests share the level.

The worst expert goes first, and the others are tried again without it, since it changes the confidences of all.

Calibration examples take no part in it. So whatever the trials decide, the decision is fixed before calibration, and
the promise of risk control holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from redx.composition.parts import Parts, predicted_classes
from redx.composition.risk import risk_cutoff, smallest_risk
from redx.composition.rules import get_rule, vertex_scores

LEVEL = 0.01  # how often some expert that does no harm is put in quarantine, at most


@dataclass(frozen=True)
class Trial:
    """What one expert does on the examples that are for choices.

    Attributes
    ----------
    examples
        The number of examples.
    helped, harmed
        Examples where it is confident and right and the base is wrong, and the reverse.
    p
        The probability of at least so many harmed ones where the expert does as much good as harm.
    claimed, misclaimed
        Examples of its own domain and of others that it claims; none where claims are not tried.
    p_claims
        The probability of at least so many claims on examples of others where half of its claims are wrong.
    quarantined
        Whether it is composed with weight zero.
    admitted
        Whether the user lets it take part whatever the trial says.
    """

    examples: int
    helped: int
    harmed: int
    p: float
    quarantined: bool = False
    admitted: bool = False
    claimed: int = 0
    misclaimed: int = 0
    p_claims: float = 1.0

    @property
    def smallest(self) -> float:
        """The smaller of the two probabilities."""
        return min(self.p, self.p_claims)

    def __str__(self) -> str:
        if self.p_claims < self.p:
            return (
                f"of {self.examples} choice examples, it claims {self.misclaimed} of other domains and {self.claimed} "
                f"of its own (p = {self.p_claims:.2g})"
            )
        return (
            f"of {self.examples} choice examples, where it is confident, it makes {self.harmed} wrong that the base "
            f"answers correctly and {self.helped} right that the base does not (p = {self.p:.2g})"
        )


def try_experts(
    parts_without: Callable[[Tensor], Parts],
    count: int,
    risk: float,
    admitted: Collection[int] = (),
    level: float = LEVEL,
    claims: bool = False,
) -> list[Trial]:
    """Return the trial of every expert.

    Parameters
    ----------
    parts_without
        From the experts in quarantine, (K,), to the record of choice examples with labels and confidences.
    count
        The number of experts K.
    risk
        The risk that the experts are to keep; where the examples support only a larger one, that is used.
    admitted
        Experts that take part whatever their trial says.
    level
        How often some expert that does no harm is put in quarantine, at most.
    claims
        Whether the gates of the record are ownership scores, and claims on examples of other domains are tried too.

    Examples
    --------
    >>> base, labels = torch.tensor([[1.0, 0.0]]).repeat(40, 1), torch.arange(40) % 4 // 3
    >>> good = torch.nn.functional.one_hot(labels, 2) * 3.0
    >>> parts = Parts(base, torch.stack([good, 3 - good, good], 1), torch.zeros(40, 3), labels)
    >>> trials = try_experts(lambda quarantined: parts.with_confidences(torch.ones(40, 3), None), 3, risk=0.1)
    >>> [(trial.helped, trial.harmed, trial.quarantined) for trial in trials]
    [(10, 0, False), (0, 30, True), (10, 0, False)]
    """
    out = torch.zeros(count, dtype=torch.bool)
    parts = parts_without(out)
    ends: dict[int, Trial] = {}
    while True:
        trials = _count(parts, ~out, risk)
        if claims:
            trials = _count_claims(parts, ~out, trials)
        for index in admitted:
            trials[index] = replace(trials[index], admitted=True)
        free = [index for index in range(count) if not out[index] and index not in admitted]
        worst = min(free, key=lambda index: (trials[index].smallest, -trials[index].harmed), default=None)
        if worst is None or trials[worst].smallest >= level / (2 * count if claims else count):
            return [ends.get(index, trials[index]) for index in range(count)]
        out[worst] = True
        ends[worst] = replace(trials[worst], quarantined=True)
        parts = parts_without(out)


def _count(parts: Parts, tried: Tensor, risk: float) -> list[Trial]:
    """Return the trial of every expert, given which ones are not in quarantine, (K,)."""
    from scipy.stats import binom

    labels, confidences = parts.true_labels(), parts.confidences
    assert confidences is not None
    right = predicted_classes(parts.base) == labels
    correct = predicted_classes(vertex_scores(get_rule("red"), replace(parts, cutoffs=None))) == labels[:, None]
    harmed, helped = right[:, None] & ~correct, ~right[:, None] & correct  # (N, K)
    risk = max(risk, smallest_risk(len(parts)))
    alone = [risk_cutoff(confidences[:, k].masked_fill(~harmed[:, k], -torch.inf), risk) for k in range(parts.experts)]
    usual = torch.tensor([cutoff for cutoff, one in zip(alone, tried.tolist(), strict=True) if one])
    sure = confidences > (float(usual.median()) if len(usual) else torch.inf)
    trials = []
    for bad, good in zip((harmed & sure).sum(0).tolist(), (helped & sure).sum(0).tolist(), strict=True):
        p = float(binom.sf(bad - 1, bad + good, 0.5)) if bad else 1.0
        trials.append(Trial(len(parts), good, bad, p))
    return trials


def _count_claims(parts: Parts, tried: Tensor, trials: list[Trial]) -> list[Trial]:
    """Return the trials with the claims of every expert, given which ones are not in quarantine, (K,)."""
    from scipy.stats import binom

    ownership = parts.gates.masked_fill(~tried, -torch.inf)
    claims = (ownership == ownership.amax(-1, keepdim=True)) & (ownership > 0)  # (N, K)
    own = parts.true_domains()[:, None] == torch.arange(parts.experts)  # (N, K)
    counted = []
    for k, trial in enumerate(trials):
        right, wrong = int((claims[:, k] & own[:, k]).sum()), int((claims[:, k] & ~own[:, k]).sum())
        among = right + wrong if bool(own[:, k].any()) else len(parts)
        p = float(binom.sf(wrong - 1, among, 0.5)) if wrong else 1.0
        counted.append(replace(trial, claimed=right, misclaimed=wrong, p_claims=p))
    return counted
