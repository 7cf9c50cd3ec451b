"""Certified log-loss: the largest negative log-likelihood of the label that any router can cause.

The log-loss of `softmax(base + Σ_k w_k r_k)` is convex in the weights w: it is the logarithm of a sum of exponentials
of affine functions, less an affine one. So is -log of a mixture of probabilities, which `uniform` answers with. A
convex function is largest at a vertex of a polytope. An adversary who moves a share ε of the routing weight makes `w`
into `(1-ε) w + ε v` with v on the simplex, as in the certificate of accuracy. So the largest log-loss of an example is

    max_k  NLL((1-ε) scores(w) + ε scores(e_k))             v may differ at every example
    max_k  Σ_i NLL((1-ε) scores_i(w_i) + ε scores_i(e_k))   one v for all examples i of a request

exactly, for K evaluations. The sum over a request is convex in its one v too. Whoever may move a share ε may also move
none: in ε the loss is convex for every v, so the largest over all shares up to ε is that at 0 or at ε.

For weights in the box [0, 1]^K there are 2^K vertices. The margins of the label over every other class are bounded one
by one instead: the result is exact for two classes, and never too small for more.

An adversary who may choose any weights within a total variation of ε takes ε from some experts and gives it to one:
the vertices of that region leave some experts nothing and take a part from at most one more, and there may be
exponentially many of them. `moved_losses` brackets the largest loss there.

Rounding. Losses are evaluated in float64. A bound on the rounding error of the scores of any router is added, so a
certified loss is never too small for the scores as they are computed; it is too large by twice that bound at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from redx.composition import certificate
from redx.composition.parts import Losses, Parts
from redx.composition.rules import Rule, UniformRule, compose, contributing, get_rule, to_logits, vertex_scores
from redx.errors import RedxError

PIECE = 2**19  # values of N·K·C that are processed at once: few enough for the cache in float64


def known_losses(rule: Rule, parts: Parts, weights: Tensor) -> Tensor | None:
    """Return the losses over all classes of a rule on a shortlist, (N,); None where they were not computed.

    Parameters
    ----------
    rule, parts, weights
        The rule, the record of N examples, and the weight of every expert, (N, K). Where no expert or one alone has
        weight, every cut-off's loss is known; a mixture's is known for the cut-off that it was computed with.
    """
    losses = parts.losses
    if losses is None:
        return None
    cutoff = None if parts.cutoffs is None else parts.cutoffs.simplex
    if rule.name in losses.mixed and cutoff == losses.cutoff:
        return losses.mixed[rule.name]
    used = (weights != 0).sum(-1)
    if bool(((used > 1) | ((used == 1) & (weights.sum(-1) != 1))).any()):
        return None
    if not parts.experts:
        return losses.base
    alone = active_losses(losses, parts).gather(1, weights.argmax(-1, keepdim=True))[:, 0]
    return torch.where(used == 1, alone, losses.base)


def active_losses(losses: Losses, parts: Parts) -> Tensor:
    """Return the losses where one expert has all the weight, under the cut-offs of a record: (N, K)."""
    return torch.where(parts.active("simplex"), losses.experts, losses.base[:, None])


def expert_losses(parts: Parts) -> tuple[Tensor, Tensor]:
    """Return the log-loss of the base and with one residual added in full, whatever the cut-offs are.

    Parameters
    ----------
    parts
        The record of N examples and K residual experts, with known labels and at least two classes.

    Returns
    -------
    tuple of Tensor
        Losses of the base, (N,), and with each expert, (N, K), in float64 and without a bound on rounding errors. Of a
        record that holds a shortlist, those that were computed over all classes.

    Examples
    --------
    >>> parts = Parts(torch.zeros(1, 2), torch.tensor([[[0.0, 1.0]]]), torch.zeros(1, 1), torch.tensor([0]))
    >>> expert_losses(parts)
    (tensor([0.6931], dtype=torch.float64), tensor([[1.3133]], dtype=torch.float64))
    """
    if parts.base.shape[1] == 1:
        raise RedxError(_REGRESSION)
    parts.true_labels()
    if parts.losses is not None:
        return parts.losses.base.double(), parts.losses.experts.double()
    red, found = get_rule("red"), []
    for _, part in parts.chunks(PIECE):
        base, labels = part.base.double(), part.true_labels()
        found.append((_losses(red, base, labels), _losses(red, base[:, None] + part.residuals, labels)))
    if not found:
        return torch.zeros(0, dtype=torch.float64), torch.zeros(0, parts.experts, dtype=torch.float64)
    base, alone = zip(*found, strict=True)
    return torch.cat(base), torch.cat(alone)


def log_losses(rule: Rule | str, parts: Parts, weights: Tensor | None = None) -> Tensor:
    """Return the log-loss of every example under a rule.

    Parameters
    ----------
    rule, parts
        The rule, or its name, and the record of N examples with known labels and at least two classes.
    weights
        The weight of every expert, (N, K); by default the rule's own.

    Returns
    -------
    Tensor
        Negative log-likelihoods of the labels in nats, (N,), in float64.

    Raises
    ------
    RedxError
        If the record is a regression, a label is unknown, or the record holds a shortlist of the classes and the losses
        of this mixture were not computed.

    Examples
    --------
    >>> parts = Parts(torch.zeros(1, 2), torch.zeros(1, 3, 2), torch.zeros(1, 3), labels=torch.tensor([0]))
    >>> log_losses("red", parts)
    tensor([0.6931], dtype=torch.float64)
    """
    rule = get_rule(rule)
    return _Adversary(rule, parts, rule.weights(parts) if weights is None else weights).plain


def moved_to_expert(rule: Rule | str, parts: Parts, epsilon: float = 1.0, weights: Tensor | None = None) -> Tensor:
    """Return the log-loss of every example where a share ε of the routing weight is moved to one expert.

    Parameters
    ----------
    rule, parts
        The rule, or its name, with an adversary on the simplex, and the record of N examples with known labels.
    epsilon
        Share of the routing weight that is moved, from 0 to 1.
    weights
        The weight of every expert, (N, K); by default the rule's own.

    Returns
    -------
    Tensor
        Losses of shape (N, K) in float64, rounded upwards. Where the record holds a shortlist of the classes, they are
        exact at ε = 1, and in between the chord, which a convex function does not exceed.

    Raises
    ------
    RedxError
        If the weights of the rule are free in the box, or as for `log_losses`.

    Examples
    --------
    >>> base, residuals = torch.zeros(1, 2), torch.tensor([[[0.0, 2.0], [2.0, 0.0]]])
    >>> parts = Parts(base, residuals, torch.zeros(1, 2), labels=torch.tensor([0]))
    >>> moved_to_expert("red", parts)
    tensor([[2.1269, 0.1269]], dtype=torch.float64)
    """
    certificate.check_epsilon(epsilon)
    rule = get_rule(rule)
    if rule.adversary == "box":
        raise RedxError(f"The weights of the rule {rule.name!r} are free, so no expert alone is worst; choose red.")
    return _Adversary(rule, parts, rule.weights(parts) if weights is None else weights).at_experts(epsilon)


def certified_losses(rule: Rule | str, parts: Parts, epsilon: float = 1.0, weights: Tensor | None = None) -> Tensor:
    """Return the largest log-loss of every example over all routers within ε.

    Parameters
    ----------
    rule, parts
        The rule, or its name, and the record of N examples with known labels; where it has cut-offs, they apply.
    epsilon
        Largest share of the routing weight that an adversary may move, at every example anew, from 0 to 1.
    weights
        The weight of every expert, (N, K); by default the rule's own.

    Returns
    -------
    Tensor
        Losses in nats, (N,), in float64: at ε = 0 the plain log-loss, otherwise rounded upwards. On the simplex they
        are exact but for rounding. In the box they are exact for two classes and an upper bound for more, on a
        shortlist of the classes exact at ε = 0 and ε = 1 and an upper bound in between.

    Raises
    ------
    RedxError
        As for `log_losses`.

    Examples
    --------
    >>> base, residuals = torch.zeros(1, 2), torch.tensor([[[0.0, 2.0], [2.0, 0.0]]])
    >>> parts = Parts(base, residuals, torch.tensor([[-9.0, 9.0]]), labels=torch.tensor([0]))
    >>> [round(float(certified_losses("red", parts, epsilon)), 4) for epsilon in (0, 0.5, 1)]
    [0.1269, 0.6932, 2.1269]
    """
    rule = get_rule(rule)
    return _Adversary(rule, parts, rule.weights(parts) if weights is None else weights).worst(epsilon)


def certified_request_losses(
    rule: Rule | str, parts: Parts, epsilon: float = 1.0, weights: Tensor | None = None
) -> Tensor:
    """Return the largest log-loss a token of every request, over all adversaries that do the same in all of it.

    Parameters
    ----------
    rule, parts
        The rule, or its name, with an adversary on the simplex, and the record of N examples with known labels, whose
        groups are the requests; without groups every example is one.
    epsilon
        Largest share of the routing weight that the adversary may move, to the same weights at every example of a
        request, from 0 to 1.
    weights
        The weight of every expert, (N, K); by default the rule's own.

    Returns
    -------
    Tensor
        Mean losses in nats, (G,), in ascending order of groups. At ε = 1 these are the largest over all routers that
        are constant over a request, or the rule's own loss where that is larger.

    Examples
    --------
    >>> base, residuals = torch.zeros(2, 2), torch.tensor([[[0.0, 2.0], [2.0, 0.0]], [[2.0, 0.0], [0.0, 2.0]]])
    >>> parts = Parts(
    ...     base, residuals, torch.zeros(2, 2), labels=torch.zeros(2, dtype=torch.int64), groups=torch.tensor([0, 0])
    ... )
    >>> certified_request_losses("red", parts), certified_losses("red", parts).mean()
    (tensor([1.1269], dtype=torch.float64), tensor(2.1269, dtype=torch.float64))
    """
    rule = get_rule(rule)
    certified = LossCertificate(rule, (certificate.check_epsilon(epsilon),))
    if not certified.by_request:
        raise RedxError(f"The weights of the rule {rule.name!r} are free, so no expert alone is worst; choose red.")
    groups = torch.arange(len(parts)) if parts.groups is None else parts.groups
    certified.update(parts, rule.weights(parts) if weights is None else weights, groups)
    sums = certified.requests[epsilon]
    if sums is None:
        raise RedxError(_NOT_COMPUTED)
    sizes = torch.tensor([certified.sizes[group] for group in sorted(sums)], dtype=torch.float64)
    return torch.stack([sums[group].amax() for group in sorted(sums)]) / sizes if sums else sizes


def moved_losses(
    rule: Rule | str, parts: Parts, epsilon: float, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return bounds on the largest log-loss over all routers within a total variation of ε.

    Parameters
    ----------
    rule, parts
        The rule, or its name, with an adversary on the simplex, and the record of N examples with known labels. It
        holds all classes.
    epsilon
        Total variation of the weights from the rule's own: `Σ_k max(0, w'_k - w_k)`, from 0 to 1.
    weights
        The weight of every expert, on the simplex, (N, K); by default the rule's own.

    Returns
    -------
    tuple of Tensor
        A loss that some such router reaches, and one that none exceeds, both (N,). They agree, but for rounding, where
        there are two classes, where some expert has at least the weight ε and it is worst to take all of it there, and
        at ε = 0 and 1. This adversary is at least as strong as that of `certified_losses`: who moves a share ε takes
        from all experts in proportion.

    Examples
    --------
    >>> base, residuals = torch.zeros(1, 2), torch.tensor([[[0.0, 2.0], [1.0, 0.0], [3.0, 0.0]]])
    >>> parts = Parts(base, residuals, torch.zeros(1, 3), labels=torch.tensor([0]))
    >>> low, high = moved_losses("red", parts, 0.25)
    >>> float(certified_losses("red", parts, 0.25)) < float(low) <= float(high) < float(low) + 1e-4
    True
    """
    certificate.check_epsilon(epsilon)
    rule = get_rule(rule)
    weights = rule.weights(parts) if weights is None else weights
    if rule.adversary != "simplex" or parts.losses is not None:
        raise RedxError("Total variation needs weights on the simplex and all classes; choose red on a whole record.")
    if bool((weights.double().sum(-1) - 1).abs().gt(1e-4).any()):
        raise RedxError("Total variation needs weights that sum to 1 at every example; choose a rule such as red.")
    found = [_moved(_Adversary(rule, part, weights[rows]), epsilon) for rows, part in parts.chunks(PIECE)]
    empty = torch.empty(0, dtype=torch.float64)
    low, high = zip(*found, strict=True) if found else ((empty,), (empty,))
    return torch.cat(low), torch.cat(high)


def _moved(adversary: _Adversary, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the two bounds of `moved_losses` for one piece."""
    scores, vertices, weights = adversary.scores, adversary.vertices, adversary.weights.double()
    labels, plain = adversary.labels, adversary.plain
    if epsilon == 0 or not vertices.shape[1]:
        return plain, plain
    low, high = plain, plain
    own = vertices.gather(-1, labels[:, None, None].expand(*vertices.shape[:2], 1))
    lead = vertices - own  # (N, K, C): what an expert gives a class above the label
    taken = _fill(lead.transpose(1, 2).neg(), weights[:, None], epsilon)  # (N, C, K): from whom to take for a class
    without = scores - (taken * vertices.transpose(1, 2)).sum(-1) + (taken * own.transpose(1, 2)).sum(-1)
    for receiver in vertices.unbind(1):
        given = scores[:, None] + epsilon * (receiver[:, None] - vertices)  # (N, K, C): all of it from one expert
        alone = _losses(adversary.rule, given, labels)  # (N, K)
        share = _fill(alone, weights, epsilon)  # (N, K)
        chord = (share * alone).sum(-1) / epsilon
        own_gain = epsilon * (receiver - receiver.gather(-1, labels[:, None]))
        apart = without + own_gain  # (N, C): every class as far above the label as it can come by itself
        apart = apart.scatter(-1, labels[:, None], scores.gather(-1, labels[:, None]))
        bound = chord if adversary.is_mixed else torch.minimum(chord, _losses(adversary.rule, apart, labels))
        high = torch.maximum(high, bound)
        reached = scores + epsilon * receiver - (share[..., None] * vertices).sum(1)
        low = torch.maximum(low, _losses(adversary.rule, reached, labels))
    low = torch.maximum(low, adversary.worst(epsilon) - 2 * adversary.error)
    high = torch.minimum(high, adversary.worst(1.0)) + adversary.error
    return low, torch.maximum(low, high)


def _fill(values: Tensor, weights: Tensor, amount: float) -> Tensor:
    """Return how much to take of every expert, at most its weight, so that a linear function is largest: (..., K)."""
    order = values.argsort(-1, descending=True)
    ordered = weights.expand_as(values).gather(-1, order)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(values).scatter(-1, order, (amount - before).clamp_min(0).minimum(ordered))


def _losses(rule: Rule, scores: Tensor, labels: Tensor) -> Tensor:
    """Return the log-loss of scores in float64, (..., C) with labels (N,) to (...)."""
    logits = to_logits(rule, scores)
    own = logits.gather(-1, labels.view(-1, *[1] * (scores.ndim - 1)).expand(*scores.shape[:-1], 1))[..., 0]
    return logits.logsumexp(-1) - own


_REGRESSION = "A regression has no log-loss; choose a task with classes."
_NOT_COMPUTED = (
    "These parts hold a shortlist of the classes, and the losses of this mixture were not computed over all of them; "
    "choose ε = 1, or a rule whose losses are known."
)


class _Adversary:
    """What an adversary of a rule can do with the losses of one record, small enough to be processed at once."""

    def __init__(self, rule: Rule, parts: Parts, weights: Tensor) -> None:
        self.rule, self.weights, self.shortlist = rule, weights, parts.losses
        if parts.base.shape[1] == 1:
            raise RedxError(_REGRESSION)
        self.labels = parts.true_labels()
        self.is_mixed = isinstance(rule, UniformRule)  # probabilities are mixed, not logits
        if parts.losses is not None:
            self.known = known_losses(rule, parts, weights)
            self.alone = active_losses(parts.losses, parts).double()
            return
        composed = compose(rule, parts, weights)
        self.known = cross_entropy(to_logits(rule, composed), self.labels, reduction="none")
        if rule.adversary is None:
            return
        self.parts = part = contributing(rule, parts)
        self.scores = composed.double()
        self.base = rule.read(part.base).double() if rule.keeps_base else torch.zeros_like(self.scores)
        silent = ~weights.any(-1, keepdim=True) if not rule.keeps_base else torch.zeros(len(parts), 1, dtype=torch.bool)
        self.start = torch.where(silent, 0.0, self.scores)  # the scores from which an adversary moves towards experts
        self.vertices = vertex_scores(rule, part).double() if rule.adversary == "simplex" else self.scores[:, None]
        self.error = _rounding(self.base, rule.read(part.residuals), rule.adversary == "box", self.is_mixed)

    @property
    def plain(self) -> Tensor:
        """The losses of the rule itself, (N,)."""
        if self.known is None:
            raise RedxError(_NOT_COMPUTED)
        return self.known.double()

    def at_experts(self, epsilon: float) -> Tensor:
        """Return the losses with a share ε moved to one expert, (N, K), rounded upwards."""
        if self.shortlist is not None:
            return self.alone if epsilon == 1 else (1 - epsilon) * self.plain[:, None] + epsilon * self.alone
        moved = torch.lerp(self.start[:, None], self.vertices, epsilon)
        return _losses(self.rule, moved, self.labels) + self.error[:, None]

    def columns(self, epsilon: float) -> Tensor | None:
        """Return losses whose largest is the worst: with nothing moved, and at every vertex; None where unknown."""
        if self.rule.adversary is None or epsilon == 0:
            return None if self.known is None else self.known.double()[:, None]
        if self.known is None:
            if epsilon < 1:
                return None
            unknown = self.alone.new_full((len(self.alone), 1), -math.inf)  # of no account beside the vertices
            return torch.cat([unknown, self.alone], -1)
        columns = [self.plain[:, None]]
        if not self.rule.keeps_base:  # where no expert has weight, the experts answer once any weight is moved
            columns.append(_losses(self.rule, self.start, self.labels)[:, None])
        vertices = self.at_experts(epsilon) if self.rule.adversary == "simplex" else self._in_box(epsilon)[:, None]
        return torch.cat([*columns, vertices], -1)

    def worst(self, epsilon: float) -> Tensor:
        """Return the largest losses within ε, (N,)."""
        certificate.check_epsilon(epsilon)
        if (columns := self.columns(epsilon)) is None:
            raise RedxError(_NOT_COMPUTED)
        return columns.amax(-1)

    def _in_box(self, epsilon: float) -> Tensor:
        """Return an upper bound on the losses with a share ε moved anywhere in the box, (N,)."""
        part = self.parts
        worst = certificate.worst_in_box(part.base.double(), part.residuals.double(), self.labels)  # (N, C)
        margins = certificate.margins(self.start, self.labels)
        own = torch.nn.functional.one_hot(self.labels, margins.shape[-1]).bool()
        lead = ((epsilon - 1) * margins - epsilon * worst).masked_fill(own, 0.0)
        return lead.logsumexp(-1) + self.error


def _rounding(base: Tensor, residuals: Tensor, box: bool, probabilities: bool) -> Tensor:
    """Return a bound on how far rounding of the scores of any router moves the log-loss, (N,).

    Probabilities are not negative, so the relative error of a mixture is small, which is the error of its logarithm.
    """
    size = residuals.abs().double().amax(-1)  # (N, K)
    mixed = size.sum(-1) if box else size.amax(-1) if size.shape[1] else size.sum(-1)
    largest = base.abs().amax(-1) + mixed
    largest = largest.clamp_min(1.0) if probabilities else largest
    own, wide, steps = torch.finfo(residuals.dtype), torch.finfo(torch.float64), size.shape[1] + 8
    scores = 4 * steps * (own.eps * largest + own.tiny)  # of two scores, here and in the router's own computation
    return torch.where(mixed == 0, 0.0, scores) + (base.shape[-1] + steps) * wide.eps * (largest + 1)


@dataclass
class LossCertificate:
    """The certified log-loss of a rule, collected piece by piece.

    Parameters
    ----------
    rule
        The rule, with or without an adversary.
    epsilons
        Shares of the routing weight that an adversary may move.

    Attributes
    ----------
    examples
        Largest losses of all examples by ε, (N,) in pieces; None where the losses of a mixture are not known.
    requests
        By ε the sums over every request, with nothing moved and at every vertex, (1 + K,) by group; None where they are
        not known. Empty where the weights are free in the box.
    sizes
        The number of examples of every request.

    Examples
    --------
    >>> parts = Parts(torch.zeros(3, 2), torch.zeros(3, 1, 2), torch.zeros(3, 1), labels=torch.tensor([0, 1, 1]))
    >>> certified = LossCertificate(get_rule("red"), (0.0, 1.0))
    >>> certified.update(parts, torch.ones(3, 1))
    >>> certified.means()
    {0.0: 0.6931471824645996, 1.0: 0.6931471824645996}
    """

    rule: Rule
    epsilons: tuple[float, ...]
    examples: dict[float, list[Tensor] | None] = field(default_factory=dict)
    requests: dict[float, dict[int, Tensor] | None] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.examples = {certificate.check_epsilon(epsilon): [] for epsilon in self.epsilons}
        self.requests = {epsilon: {} for epsilon in self.epsilons if self.by_request}

    @property
    def by_request(self) -> bool:
        """Whether losses of requests are certified: not where the weights are free in the box."""
        return self.rule.adversary != "box"

    def update(self, parts: Parts, weights: Tensor, groups: Tensor | None = None) -> None:
        """Add a piece with known labels; `groups`, (N,), are the requests, None where only examples count."""
        for rows, part in parts.chunks(PIECE):
            adversary = _Adversary(self.rule, part, weights[rows])
            own = None if groups is None or not self.by_request else groups[rows].unique(return_inverse=True)
            if own is not None:
                for group, count in zip(own[0].tolist(), own[1].bincount().tolist(), strict=True):
                    self.sizes[group] = self.sizes.get(group, 0) + count
            for epsilon in self.epsilons:
                columns, collected = adversary.columns(epsilon), self.examples[epsilon]
                if columns is None or collected is None:
                    self.examples[epsilon] = None
                    self.requests.update({epsilon: None} if self.by_request else {})
                    continue
                collected.append(columns.amax(-1))
                if own is not None and (sums := self.requests[epsilon]) is not None:
                    added = columns.new_zeros(len(own[0]), columns.shape[1]).index_add_(0, own[1], columns)
                    for group, row in zip(own[0].tolist(), added, strict=True):
                        sums[group] = sums[group] + row if group in sums else row

    def means(self) -> dict[float, float | None]:
        """Return the mean over examples by ε; None where it is not known, NaN without examples."""
        return {
            epsilon: None if values is None else float(torch.cat(values).mean()) if values else math.nan
            for epsilon, values in self.examples.items()
        }

    def request_means(self) -> dict[float, float | None]:
        """Return by ε the mean over examples where an adversary does the same in all of a request."""
        return {
            epsilon: None if sums is None else sum(self._worst(sums).values()) / max(1, sum(self.sizes.values()))
            for epsilon, sums in self.requests.items()
            if sums is None or sums
        }

    def request_losses(self, epsilon: float) -> dict[int, float]:
        """Return the largest mean loss of every request at one of the shares; empty where it is not known."""
        sums = self.requests.get(epsilon) or {}
        return {group: total / self.sizes[group] for group, total in self._worst(sums).items()}

    @staticmethod
    def _worst(sums: dict[int, Tensor]) -> dict[int, float]:
        return {group: float(values.amax()) for group, values in sums.items()}
