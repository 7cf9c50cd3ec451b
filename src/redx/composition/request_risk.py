"""What experts cost a request: the excess of its log-loss above the base's, as a step function of the cut-off.

A request is a group of examples, such as the tokens of a text, and a router that is constant over it chooses one point
of the simplex for all of them. The log-loss is convex in that point, so the worst such router trusts one expert. Expert
k is active in all of request d or in none of it, by one confidence s_dk. With T_d tokens and a bound B in nats,

    L_d(λ) = min(1, max(0, max over k with s_dk > λ of (NLL_k(d) - NLL_base(d)) / (T_d B)))

lies between 0 and 1 and never rises with λ, since a larger λ only silences experts. The requests are exchangeable. On n
of them that nothing was trained or chosen on, conformal risk control sets the smallest λ with

    (Σ_d L_d(λ) + 1) / (n + 1) ≤ risk / B

Then `E[B · L_d(λ)] ≤ risk` for a new request: no router that is constant over a request raises its log-loss a token
above the base's by more than `risk` nats on average, where an excess above B counts as B and a negative one as zero.

L_d is a step function: it is kept as confidences, in descending order, and by how much it rises below each.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from redx.composition.log_loss import expert_losses
from redx.composition.parts import Parts
from redx.errors import RedxError
from redx.schema import DEFAULT_RISK

log = logging.getLogger("redx")

BOUND = 0.5  # nats a token: an excess above it counts as this
TINY = 1e-12  # by which risks may differ from rounding


def by_request(parts: Parts) -> Parts:
    """Return a record in which the confidence of an expert is its mean over the request.

    Parameters
    ----------
    parts
        The record of N examples with confidences, whose groups are whole requests; without groups every example is one.

    Returns
    -------
    Parts
        The same record with one confidence for each request and expert.

    Examples
    --------
    >>> base, gates, groups = torch.zeros(2, 2), torch.zeros(2, 1), torch.tensor([0, 0])
    >>> sure = torch.tensor([[1.0], [3.0]])
    >>> parts = Parts(base, torch.zeros(2, 1, 2), gates, confidences=sure, groups=groups)
    >>> by_request(parts).confidences
    tensor([[2.],
            [2.]])
    """
    if parts.confidences is None:
        raise RedxError("These parts hold no confidences, so no expert can be silenced; give Parts(confidences=…).")
    if parts.groups is None or not len(parts):
        return parts
    _, index, sizes = parts.groups.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(sizes), parts.experts, dtype=torch.float64)
    means = sums.index_add_(0, index, parts.confidences.double()) / sizes[:, None]
    return parts.with_confidences(means.to(parts.confidences.dtype)[index], parts.cutoffs)


def check_requests(parts: Parts) -> Parts:
    """Return a record unchanged, or refuse one whose confidences or domains change within a request."""
    if parts.groups is None or not len(parts):
        return parts
    _, index = parts.groups.unique(return_inverse=True)
    first = _first_rows(index)
    assert parts.confidences is not None
    if not torch.equal(parts.confidences, parts.confidences[first[index]]):
        raise RedxError(_CHANGES)
    if parts.named is not None and not torch.equal(parts.named, parts.named[first[index]]):
        raise RedxError(
            "Parts.named changes within a request, so the request has no one cut-off; name one domain for it."
        )
    return parts


_CHANGES = (
    "Confidences change within a request, so experts would be silenced in the middle of it; give one for each request, "
    "such as redx.composition.request_risk.by_request(parts) has."
)


def _first_rows(index: Tensor) -> Tensor:
    """Return the first row of every request, (G,), from the request of every row as an index, (N,)."""
    rows = torch.arange(len(index))
    return torch.full((int(index.max()) + 1,), len(index)).scatter_reduce_(0, index, rows, "amin")


@dataclass(frozen=True)
class Steps:
    """The step functions L_d of n requests, one row for each step; every request has at least one row.

    Attributes
    ----------
    thresholds
        The confidence below which a cut-off lets the excess rise, (R,).
    amounts
        By how much L_d rises there, in units of the bound, (R,).
    groups
        The request of every row, (R,).
    domains
        The domain that the base names for the request of every row, (R,); None where it is not known.
    """

    thresholds: Tensor
    amounts: Tensor
    groups: Tensor
    domains: Tensor | None = None


@dataclass
class RequestExcess:
    """By how much every expert raises the log-loss of requests above the base's, collected piece by piece.

    Examples
    --------
    >>> parts = Parts(
    ...     torch.zeros(1, 2), torch.tensor([[[0.0, 1.0]]]), torch.zeros(1, 1), torch.tensor([0]),
    ...     confidences=torch.tensor([[0.7]]),
    ... )
    >>> excess = RequestExcess()
    >>> excess.update(parts)
    >>> steps = excess.steps(bound=1.0)
    >>> steps.thresholds, steps.amounts
    (tensor([0.7000,   -inf]), tensor([0.6201, 0.0000], dtype=torch.float64))
    """

    excess: dict[int, Tensor] = field(default_factory=dict)  # (K,): summed over the tokens of a request
    base: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    confidences: dict[int, Tensor] = field(default_factory=dict)  # (K,)
    domains: dict[int, int] = field(default_factory=dict)
    singles: int = 0

    def update(self, parts: Parts, domains: Tensor | None = None) -> None:
        """Add a piece with known labels and one confidence for each request and expert; cut-offs do not count.

        Parameters
        ----------
        parts
            The record; a request may stand in several pieces.
        domains
            The domain that the base names for each example, (N,), the same for all of a request.
        """
        if not len(parts):
            return
        confidences = check_requests(parts).confidences
        assert confidences is not None
        groups = parts.groups
        if groups is None:  # every example is a request
            groups = torch.arange(self.singles, self.singles + len(parts))
            self.singles += len(parts)
        losses, alone = expert_losses(parts)
        names, index, sizes = groups.unique(return_inverse=True, return_counts=True)
        base = torch.zeros(len(names), dtype=torch.float64).index_add_(0, index, losses)
        excess = torch.zeros(len(names), parts.experts, dtype=torch.float64)
        excess.index_add_(0, index, alone - losses[:, None])
        for place, (group, row) in enumerate(zip(names.tolist(), _first_rows(index).tolist(), strict=True)):
            known = self.confidences.setdefault(group, confidences[row])
            named = None if domains is None else int(domains[row])
            if not torch.equal(known, confidences[row]) or self.domains.setdefault(group, named or 0) != (named or 0):
                raise RedxError(_CHANGES)
            self.excess[group] = self.excess[group] + excess[place] if group in self.excess else excess[place]
            self.base[group] = self.base.get(group, 0.0) + float(base[place])
            self.tokens[group] = self.tokens.get(group, 0) + int(sizes[place])

    def __len__(self) -> int:
        return len(self.tokens)

    def means(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return, in ascending order of requests, excess a token and confidences, (n, K), and the base's loss, (n,)."""
        order = sorted(self.tokens)
        if not order:
            return torch.zeros(0, 0, dtype=torch.float64), torch.zeros(0, 0), torch.zeros(0, dtype=torch.float64)
        tokens = torch.tensor([self.tokens[group] for group in order], dtype=torch.float64)
        excess = torch.stack([self.excess[group] for group in order]) / tokens[:, None]
        base = torch.tensor([self.base[group] for group in order], dtype=torch.float64) / tokens
        return excess, torch.stack([self.confidences[group] for group in order]), base

    def steps(self, bound: float = BOUND, by_domain: bool = False) -> Steps:
        """Return the step functions of all requests, which are numbered from 0 in ascending order of groups.

        Parameters
        ----------
        bound
            The excess in nats a token that counts as 1.
        by_domain
            Whether to return the domains that `update` was given.
        """
        excess, confidences, _ = self.means()
        shares = (excess / check_bound(bound)).clamp(0, 1)  # (n, K)
        order = confidences.argsort(-1, descending=True)
        thresholds = confidences.gather(1, order)
        highest = shares.gather(1, order).cummax(-1).values if shares.shape[1] else shares
        first = torch.zeros(len(self), 1, dtype=torch.float64)
        thresholds = torch.cat([thresholds, thresholds.new_full((len(self), 1), -math.inf)], -1)  # a row without a step
        amounts = torch.cat([highest.diff(dim=-1, prepend=first[: len(highest)]), first], -1)
        kept = amounts > 0
        kept[:, -1] = True
        rows = kept.nonzero()[:, 0]
        named = torch.tensor([self.domains[group] for group in sorted(self.tokens)], dtype=torch.int64)
        return Steps(thresholds[kept], amounts[kept], rows, named[rows] if by_domain else None)


def worst_excess(excess: Tensor, active: Tensor, bound: float = BOUND) -> Tensor:
    """Return the excess of requests under the worst router that is constant over them, in nats a token.

    Parameters
    ----------
    excess, active
        The excess of every expert and whether it is active, (n, K).
    bound
        What a larger excess counts as.

    Examples
    --------
    >>> worst_excess(torch.tensor([[0.2, 3.0], [-1.0, 0.3]]), torch.tensor([[True, True], [True, False]]))
    tensor([0.5000, 0.0000])
    """
    if not excess.shape[-1]:
        return excess.sum(-1)
    return excess.masked_fill(~active, 0.0).amax(-1).clamp(0, bound)


def check_bound(bound: float) -> float:
    """Return a bound unchanged, or refuse one that is no positive number of nats.

    Examples
    --------
    >>> check_bound(0.5)
    0.5
    """
    if not 0 < bound < math.inf:
        raise RedxError(f"A bound is a positive number of nats a token, not {bound:g}; choose one such as {BOUND:g}.")
    return bound


def supported_excess(risk: float | None, requests: int, bound: float, smallest: float, warn: bool = True) -> float:
    """Return the risk in nats a token to use with so many calibration requests.

    Parameters
    ----------
    risk
        The risk that the user chose; None for 0.01, or the smallest that the requests support, which is logged.
    requests
        Number of calibration requests.
    bound
        The largest excess of one request that counts.
    smallest
        The smallest risk in units of the bound that so many requests support.
    warn
        Whether a risk above 0.01 that was not chosen is logged.

    Raises
    ------
    RedxError
        Where the requests do not support the risk that the user chose.

    Examples
    --------
    >>> supported_excess(None, 49, 0.5, 1 / 50), supported_excess(None, 9, 0.5, 1 / 10, warn=False)
    (0.01, 0.05)
    """
    least = smallest * bound
    if risk is None:
        if warn and least > DEFAULT_RISK:
            text = "%d calibration requests support no risk below %.4f nats, so this is used instead of %g"
            log.warning(text, requests, least, DEFAULT_RISK)
        return min(bound, max(DEFAULT_RISK, least))
    if 0 < risk < least - TINY:
        raise RedxError(
            f"A risk of {risk:g} nats cannot be promised with {requests} calibration requests; choose at least "
            f"{math.ceil(least * 1e4) / 1e4:g}, a smaller bound, or give more requests."
        )
    return risk
