"""Risk control: a cut-off on the experts' confidences that bounds the harm of the worst router.

Expert k contributes to example i only where its confidence s_ik exceeds the cut-off λ. The harm of example i,

    L_i(λ) = 1 if the base is right on it and some router makes the composed answer wrong, else 0,

never increases with λ, since a larger λ only deactivates experts. It is 1 exactly below the example's threshold, the
largest λ at which some router can still do harm. On n held-out examples that nothing was trained or chosen on,

    λ̂ = inf{ λ : (Σ_i L_i(λ) + 1) / (n + 1) ≤ risk }

keeps the expected harm of a new example at most at `risk`, for any data distribution, any number of experts and any
router (conformal risk control; Angelopoulos et al.). The second form replaces the left side by the exact binomial upper
bound of the harm: then the harm is at most `risk` with probability `confidence` over the draw of the held-out examples.

Budgets. The harm is made of an expert's own mistakes, where the base is right and the well-routed answer, the base plus
the residual of the example's own expert without any cut-off, is wrong; and of what routers do, where this answer is
right. With the budget `routing` only the second counts,

    R_i(λ) = 1 if base and well-routed answer are right and some router makes the composed answer wrong, else 0.

Whether the well-routed answer is right does not depend on λ, so R_i falls with λ as L_i does.

By domain. Where every class belongs to one domain, each domain d can have a cut-off λ_d of its own, calibrated on the
examples of d alone. At an example x the cut-off is that of g(x), the domain of the base's answer, which no router can
change. An example of d can be harmed only where the base is right on it, so only where g(x) = d: λ_d is the only
cut-off that matters for it, and `E[harm | true domain d] ≤ risk` for every d, hence for any mix of domains. Where
domains share classes, g is the answer of a domain head of the base, which no router can change either, and λ_d is
calibrated on the examples that this head sends to d: the risk holds within each of these groups.

Where examples come in groups, such as the tokens of documents, groups are exchangeable and examples are not. Then L_i
is the mean harm of the examples of group i, between 0 and 1, and n counts groups; with a confidence, Bentkus' bound for
means of such numbers takes the place of the binomial one.

Log-loss. With `loss="log"` the groups are requests, and L_d is the excess of a request's log-loss above the base's
under the worst router that is constant over it (`redx.composition.request_risk`). It rises in steps as the cut-off
falls; a threshold is the confidence at which it does, with the amount of the step.

Thresholds. A falling cut-off activates one expert after the other, in the order of their confidences, and the label
stays lost once it is lost. So the threshold is the confidence of the first expert with which some router makes the
label lose. Most examples are far from every tie; for these, bounds on the margins decide, in one pass over the
residuals (simplex) or expert by expert until the label is lost (box). `_exact_thresholds` decides all others, ties and
rounding included.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from redx.composition import certificate
from redx.composition.confidence import SCORES, confidences
from redx.composition.evaluation import certify, worst_harm
from redx.composition.metrics import exact_interval, upper_bound
from redx.composition.parts import Cutoffs, Held, Parts, Pieces, Record, in_pieces, predicted_classes
from redx.composition.request_risk import (
    BOUND,
    RequestExcess,
    by_request,
    check_bound,
    check_requests,
    supported_excess,
    worst_excess,
)
from redx.composition.rules import Rule, get_rule
from redx.errors import RedxError
from redx.schema import DEFAULT_RISK

if TYPE_CHECKING:
    from redx.composition.quarantine import Trial

log = logging.getLogger("redx")

BY, SMALL, BUDGETS = ("all", "domain"), ("merge", "silent"), ("harm", "routing")
LOSSES = ("harm", "log")  # what the risk bounds: the share of harmed examples, or the log-loss above the base's
SETTINGS = ("confidence", "by", "small", "budget")  # of a promise, beside the risk
REGIONS = {"simplex": "red", "box": "sum"}  # where wrong weights could lie, with a rule that allows them
CHUNK = 2**20  # values of N·K·C that are processed at once: few enough for the cache, enough for few calls
BOX_CHUNK = 2**22  # the same in the box, where only N·C of them are touched at a time
BOX_ROWS = 1024  # examples of a piece in the box, at least
COMPACT = 8  # experts after which decided examples are left out
SAFETY = 4  # factor on the bound of rounding errors


def smallest_risk(examples: int, confidence: float | None = None) -> float:
    """Return the smallest risk that this many calibration examples can support.

    Parameters
    ----------
    examples
        Number of calibration examples.
    confidence
        None for the expected form; otherwise the probability with which the bound has to hold.

    Examples
    --------
    >>> smallest_risk(99)
    0.01
    >>> round(smallest_risk(99, confidence=0.95), 4)
    0.0298
    """
    _check_confidence(confidence)
    if confidence is None:
        return 1 / (examples + 1)
    return 1 - (1 - confidence) ** (1 / examples) if examples else 1.0


def allowed_harm(examples: int, risk: float, confidence: float | None = None) -> int:
    """Return how many calibration examples may be harmed; -1 where even none does not support the risk.

    Examples
    --------
    >>> allowed_harm(999, risk=0.01), allowed_harm(999, risk=0.01, confidence=0.95), allowed_harm(50, risk=0.01)
    (9, 4, -1)
    """
    if not 0 <= risk <= 1:
        raise RedxError(f"A risk lies between 0 and 1, not {risk}; choose one such as 0.01.")
    _check_confidence(confidence)
    if confidence is None:
        return min(examples, math.floor(risk * (examples + 1) - 1 + 1e-9))
    if risk == 1:
        return examples
    low, high = -1, examples  # the upper bound grows with the number of harmed examples
    while low < high:
        middle = (low + high + 1) // 2
        if upper_bound(middle, examples, confidence) <= risk:
            low = middle
        else:
            high = middle - 1
    return low


def check_risk(risk: float, examples: int, confidence: float | None = None, unit: str = "examples") -> float:
    """Return a risk unchanged, or raise `RedxError` if it is none, or too small for so many calibration examples.

    Parameters
    ----------
    risk
        The bound on the harm.
    examples
        Number of calibration examples.
    confidence
        None for the expected form; otherwise the probability with which the bound has to hold.
    unit
        What is counted, for the message: examples or groups.

    Examples
    --------
    >>> check_risk(0.01, examples=99)
    0.01
    """
    if not 0 <= risk <= 1:
        raise RedxError(f"A risk lies between 0 and 1, not {risk:g}; choose one such as 0.01.")
    smallest = smallest_risk(examples, confidence)
    if 0 < risk < smallest - 1e-12:
        at_least = math.ceil(smallest * 1e4) / 1e4
        raise RedxError(
            f"A risk of {risk:g} cannot be promised with {examples} calibration {unit}; "
            f"choose at least {at_least:g}, or give more {'validation examples' if unit == 'examples' else unit}."
        )
    return risk


def supported_risk(
    risk: float | None, examples: int, confidence: float | None = None, warn: bool = True, unit: str = "examples"
) -> float:
    """Return the risk to use with so many calibration examples.

    Parameters
    ----------
    risk
        The risk that the user chose; None for 0.01, or the smallest that the examples support, which is logged.
    examples
        Number of calibration examples.
    confidence
        None for the bound on average, otherwise the probability with which it has to hold.
    warn
        Whether a risk above 0.01 that was not chosen is logged.
    unit
        What is counted, for messages: examples or groups.

    Raises
    ------
    RedxError
        Where the examples do not support the risk that the user chose.
    """
    if risk is not None:
        return check_risk(risk, examples, confidence, unit)
    smallest = smallest_risk(examples, confidence)
    if warn and smallest > DEFAULT_RISK:
        log.warning(
            "%d calibration %s support no risk below %.4f, so this is used instead of %g",
            examples,
            unit,
            smallest,
            DEFAULT_RISK,
        )
    return max(DEFAULT_RISK, smallest)


def group_confidence(confidence: float | None) -> float | None:
    """Return the confidence with which binomial bounds hold for means of groups: Bentkus' inequality costs e.

    The sum of n independent numbers between 0 and 1 is at most s with at most e times the probability with which a
    binomial variable of the same mean is at most ⌈s⌉.

    Examples
    --------
    >>> round(group_confidence(0.9), 4)
    0.9632
    """
    return None if confidence is None else 1 - (1 - confidence) / math.e


def risk_cutoff(
    thresholds: Tensor,
    risk: float,
    confidence: float | None = None,
    groups: Tensor | None = None,
    amounts: Tensor | None = None,
) -> float:
    """Return the smallest cut-off that keeps the harm of the worst router at the risk.

    Parameters
    ----------
    thresholds
        Thresholds of n calibration examples, (n,), as `harm_thresholds` returns them.
    risk
        The bound on the harm, from 0 to 1.
    confidence
        None bounds the expected harm; otherwise the harm is at most `risk` with this probability.
    groups
        The exchangeable unit that an example belongs to, (n,); None: every example is one. The harm of a group is the
        mean harm of its examples.
    amounts
        By how much the loss of a group, between 0 and 1, rises at each threshold, (n,), where it is no mean harm; every
        group has at least one threshold.

    Returns
    -------
    float
        The cut-off λ̂: minus infinity where every expert may contribute everywhere, infinity where none may because
        there are too few calibration examples for this risk.

    Examples
    --------
    >>> import torch
    >>> risk_cutoff(torch.arange(99.0), risk=0.1)
    89.0
    >>> risk_cutoff(torch.arange(5.0), risk=0.01)
    inf
    >>> risk_cutoff(torch.tensor([5.0, 1.0] * 19), risk=0.3, groups=torch.arange(19).repeat_interleave(2))
    5.0
    """
    if groups is not None:
        return _group_cutoff(thresholds, risk, confidence, groups, amounts)
    allowed = allowed_harm(len(thresholds), risk, confidence)
    if allowed < 0:
        return math.inf
    if allowed >= len(thresholds):
        return -math.inf
    return float(thresholds.topk(allowed + 1).values[-1])


def _group_cutoff(
    thresholds: Tensor, risk: float, confidence: float | None, groups: Tensor, amounts: Tensor | None
) -> float:
    """Return the smallest cut-off at which the summed mean harm of all groups does not exceed what is allowed."""
    _, index, sizes = groups.unique(return_inverse=True, return_counts=True)
    allowed = float(allowed_harm(len(sizes), risk, group_confidence(confidence)))
    if confidence is None:
        allowed = risk * (len(sizes) + 1) - 1  # not rounded down: the harm of a group is a share
    allowed += 1e-9  # rounding errors of sums
    if allowed < 0:
        return math.inf
    order = thresholds.argsort(descending=True)
    shares = (1 / sizes.double())[index] if amounts is None else amounts
    values, harm = thresholds[order], shares[order].cumsum(0)
    too_much = ((harm > allowed) & (values > -math.inf)).nonzero()
    return float(values[too_much[0, 0]]) if len(too_much) else -math.inf


def harm_figures(rule: Rule | str, record: Record) -> dict[str, float]:
    """Return what the worst router costs on these examples.

    Parameters
    ----------
    rule
        The rule that composes base and experts, or its name.
    record
        The record of N examples; where it has cut-offs, they apply. Examples of unknown label are left out.

    Returns
    -------
    dict
        `base`, `clean` and `worst`: accuracy of the base, of the rule, and of the rule under its worst router; `harm`:
        share of examples that the base answers correctly and the rule, with some router, does not, with the exact 95 %
        interval from `low` to `high`. Where examples come in groups, the harm is the mean over groups and the interval
        that of Bentkus for means of groups. Where the domains of all examples are known, also `routing_harm`, the part
        of the harm that routers do, with its interval from `routing_low` to `routing_high`.

    Raises
    ------
    RedxError
        If no label is known.

    Examples
    --------
    >>> import torch
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0], [0.0, 0.0]]])
    >>> parts = Parts(base, residuals, torch.tensor([[-9.0, 9.0]]), torch.tensor([0]))
    >>> figures = harm_figures("red", parts)
    >>> figures["clean"], figures["worst"], figures["harm"]
    (1.0, 0.0, 1.0)
    """
    return _count_harm(get_rule(rule), in_pieces(record), [lambda parts: parts])[0].figures()


def own_mistakes(parts: Parts) -> Tensor:
    """Return where the well-routed answer is wrong, (N,): whatever harm is done there is no router's.

    Parameters
    ----------
    parts
        The record of N examples with known labels and domains. The well-routed answer is that of the base plus the
        residual of the example's own expert, without a cut-off; where this expert is silent everywhere or missing, it
        is the base's.
    """
    domains, labels = parts.true_domains(), parts.true_labels()
    has_expert = (domains >= 0) & (domains < parts.experts)
    rows, own = has_expert.nonzero()[:, 0], domains[has_expert]
    residuals = parts.residuals[rows, own]  # (n, C)
    if parts.confidences is not None:
        residuals = residuals * (parts.confidences[rows, own] > -math.inf)[:, None]
    return predicted_classes(parts.base.index_add(0, rows, residuals)) != labels


def harm_outcomes(rule: Rule, parts: Parts) -> Tensor:
    """Return what happens to every example, (N, 4): base right, rule right, right under every router, harmed.

    Parameters
    ----------
    rule
        The rule that composes base and experts.
    parts
        The record of N examples with known labels; where it has cut-offs, they apply.
    """
    certified, labels = certify(rule, parts), parts.true_labels()
    right = certified.predicted == labels
    base = predicted_classes(parts.base) == labels
    return torch.stack([base, right, right & (certified.radius >= 1), worst_harm(parts, certified)], -1)


class _HarmCounts:
    """What the worst router costs under one rule, counted piece by piece."""

    def __init__(self) -> None:
        self.outcomes: list[Tensor] = []  # (N, 4): base right, rule right, right under every router, harmed
        self.routing: list[Tensor] = []  # (N,): harmed by a router; of pieces whose domains are known
        self.groups: list[Tensor | None] = []
        self.unknown = 0

    def update(self, rule: Rule, piece: Parts) -> None:
        """Add a piece."""
        parts = piece.labelled()
        self.unknown += len(piece) - len(parts)
        if not len(parts):
            return
        outcomes = harm_outcomes(rule, parts)
        self.outcomes.append(outcomes)
        if parts.domains is not None:
            self.routing.append(outcomes[:, 3] & ~own_mistakes(parts))
        self.groups.append(parts.groups)

    @property
    def examples(self) -> int:
        """The number of examples with a label."""
        return sum(map(len, self.outcomes))

    def figures(self) -> dict[str, float]:
        """Return the figures of `harm_figures`."""
        if not self.outcomes:
            raise RedxError(_no_labels(self.unknown))
        outcomes, groups = torch.cat(self.outcomes), _join_groups(self.groups)
        base, clean, worst, _ = outcomes.double().mean(0).tolist()
        harm, low, high = _share(outcomes[:, 3], groups)
        figures = {"base": base, "clean": clean, "worst": worst, "harm": harm, "low": low, "high": high}
        if len(self.routing) == len(self.outcomes):
            names = ("routing_harm", "routing_low", "routing_high")
            figures |= dict(zip(names, _share(torch.cat(self.routing), groups), strict=True))
        return figures


def _share(which: Tensor, groups: Tensor | None) -> tuple[float, float, float]:
    """Return the share of examples, (N,), or the mean share over groups, and its 95 % interval."""
    count = int(which.sum())
    if groups is None:
        return count / len(which), *exact_interval(count, len(which))
    _, index, sizes = groups.unique(return_inverse=True, return_counts=True)
    total = float((which.double() / sizes[index]).sum())
    return total / len(sizes), *group_interval(total, len(sizes))


def group_interval(total: float, groups: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean of numbers between 0 and 1, given their sum, for any distribution."""
    confidence = group_confidence(0.975)
    assert confidence is not None
    high = upper_bound(math.ceil(total - 1e-9), groups, confidence)
    low = 1 - upper_bound(math.ceil(groups - total - 1e-9), groups, confidence)
    return max(0.0, low), high


def _count_harm(rule: Rule, record: Pieces, changes: Sequence[Callable[[Parts], Parts]]) -> list[_HarmCounts]:
    """Return the counts of a rule under several changes of a record, in one pass over its pieces."""
    counts = [_HarmCounts() for _ in changes]
    for piece in record:
        for count, change in zip(counts, changes, strict=True):
            count.update(rule, change(piece))
    return counts


def _join_groups(groups: Sequence[Tensor | None]) -> Tensor | None:
    """Return the groups of all pieces, or None where no piece has any."""
    known = [one for one in groups if one is not None]
    if 0 < len(known) < len(groups):
        raise RedxError("Some pieces of the record hold groups and others do not; give them for all or for none.")
    return torch.cat(known) if known else None


def _no_labels(examples: int) -> str:
    return (
        f"No label of the {examples} examples is known, so harm and accuracy cannot be measured; give Parts(labels=…)."
    )


class RiskControl:
    """A cut-off on the experts' confidences that keeps the harm of every router at a risk.

    It needs the logits of base and experts and nothing else, so it works for any model. Labels are needed to calibrate
    and to report, not to apply.

    Parameters
    ----------
    risk
        Bound on the harm of the worst router: the share of examples that the base answers correctly and the composed
        model, with some router, does not. None: 0.01, or the smallest that the calibration examples support.
    confidence
        None: the bound holds on average over calibration sets. Otherwise it holds with this probability.
    score
        How an expert's confidence is computed where a record has no confidences: `answer` or `gain`. Scores that also
        use ownership, such as `contest`, stand for the part of them that logits alone give, which is `gain`. Where the
        record brings confidences, this is only their name.
    by
        `all`: one cut-off, and the bound holds for the mean over all examples. `domain`: a cut-off for each domain, and
        the bound holds in every domain, so for any mix of them.
    small
        What happens with domains that have too few calibration examples for the risk: `merge` them with one another,
        and with the next larger ones, until there are enough, so that they share a cut-off and a promise; or keep the
        experts `silent` where the base's answer names them.
    budget
        `harm`: the risk bounds all harm. `routing`: it bounds the harm that routers do, where the well-routed answer
        without a cut-off is right; an expert's own mistakes come on top. It needs the domains of the examples.
    loss
        What the risk bounds. `harm`: the share of harmed examples. `log`: the log-loss of a request, in nats an
        example, above that of the base, under the worst router that is constant over the request. `Parts.groups` are
        the requests; without groups every example is one. Experts are active in all of a request or in none of it, so
        their confidences are the same in all of it. The risk is then a number of nats up to the bound, weights in the
        box are not covered, and experts are silent there.
    bound
        With `log`: an excess above so many nats an example counts as this.

    Attributes
    ----------
    amounts
        With `log`: by how much the excess of a request rises at each threshold, in units of the bound; the thresholds
        are then confidences of requests, and `groups` and `domains` are those of the request of each. None otherwise.
    mistakes
        Which calibration examples an expert's own mistake harms, whatever the router does, (n,); None where some
        domains are not known.
    trials
        How every expert did on examples that are for choices, in the order of the experts; empty where none was tried.
    domains
        By domain: the domain of every calibration example, (n,).
    class_domains, domain_names
        By domain: the domain of every class, (C,), and the names of the domains.
    owners
        The domains whose owners computed the thresholds of their own examples; empty where they come from one place.
    head
        Where domains share classes: what names the domain of an example from its features, kept here for the model
        that computes `Parts.named` with it.
    thresholds
        The threshold of every calibration example, (n,), by region of the adversary: simplex and box; empty before
        `calibrate`.
    groups
        The groups of the calibration examples, (n,); None where every example is a unit of its own.
    unknown
        How many calibration examples were left out because their label is unknown.
    given
        Whether the calibration examples brought their own confidences.
    experts, names
        The experts that were calibrated together, where they are at hand, and their names.
    answers
        Whether the experts' answers were added to their ownership scores, as is done where experts bring classes.

    Examples
    --------
    >>> base = torch.tensor([[1.0, 0.0]]).expand(99, -1)
    >>> residuals = torch.tensor([[[0.0, 2.0]], [[0.0, 0.5]], [[2.0, 0.0]]]).repeat(33, 1, 1)
    >>> parts = Parts(base, residuals, torch.zeros(99, 1), torch.zeros(99, dtype=torch.int64))
    >>> control = RiskControl(risk=0.1).calibrate(parts)
    >>> figures = control.report(parts)
    >>> round(figures["before"]["harm"], 2), figures["after"]["harm"]
    (0.33, 0.0)
    """

    def __init__(
        self,
        risk: float | None = DEFAULT_RISK,
        confidence: float | None = None,
        score: str = "contest",
        by: str = "all",
        small: str = "merge",
        budget: str = "harm",
        loss: str = "harm",
        bound: float = BOUND,
    ) -> None:
        if loss not in LOSSES:
            raise RedxError(f"A loss is {' or '.join(LOSSES)}, not {loss!r}; choose one of them.")
        self.loss, self.bound = loss, check_bound(bound)
        if risk is not None and loss == "log" and not 0 <= risk <= bound:
            raise RedxError(
                f"A risk of log-loss lies between 0 and the bound of {bound:g} nats, not {risk:g}; choose one such as "
                "0.02, or a larger bound."
            )
        if risk is not None and loss == "harm" and not 0 <= risk <= 1:
            raise RedxError(f"A risk lies between 0 and 1, not {risk:g}; choose one such as 0.01.")
        _check_confidence(confidence)
        if score not in SCORES:
            raise RedxError(f"There is no score {score!r}; choose one of {', '.join(SCORES)}.")
        if by not in BY:
            raise RedxError(f"Risk is controlled by {' or by '.join(BY)}, not by {by!r}; choose one of them.")
        if small not in SMALL:
            raise RedxError(f"Small domains are {' or '.join(SMALL)}, not {small!r}; choose one of them.")
        if budget not in BUDGETS:
            raise RedxError(f"A budget is one of {' or '.join(BUDGETS)}, not {budget!r}; choose one of them.")
        if loss == "log" and budget != "harm":
            raise RedxError("A log-loss has no budget 'routing', since no answer is right or wrong; leave budget out.")
        self.amounts: Tensor | None = None
        self._risk, self.confidence, self.score = risk, confidence, score
        self.by, self.small, self.budget = by, small, budget
        self.mistakes: Tensor | None = None
        self.trials: tuple[Trial, ...] = ()
        self.domains: Tensor | None = None
        self.class_domains: Tensor | None = None
        self.domain_names: tuple[str, ...] = ()
        self.owners: tuple[str, ...] = ()
        self.head: Tensor | None = None
        self._by_domain: dict[str, Tensor] | None = None
        self.thresholds: dict[str, Tensor] = {}
        self.groups: Tensor | None = None
        self.unknown, self.given = 0, True
        self.experts: tuple[Any, ...] = ()
        self.names: tuple[str, ...] = ()
        self.answers = False
        self._cutoffs: Cutoffs | None = None

    def __repr__(self) -> str:
        state = f"{self.examples} examples" if self.thresholds else "not calibrated"
        return f"RiskControl(risk={self._risk}, confidence={self.confidence}, score={self.score!r}): {state}"

    @property
    def risk(self) -> float:
        """The risk; where none was chosen, the one that the calibration examples support."""
        return self._supported(None, self._unit_confidence, warn=False) if self._risk is None else self._risk

    def _supported(self, risk: float | None, held: float | None, warn: bool = True) -> float:
        """Return the risk to use with this confidence for units, or refuse one that the units do not support."""
        if self.loss == "log":
            return supported_excess(risk, self.units, self.bound, smallest_risk(self.units, held), warn)
        return supported_risk(risk, self.units, held, warn, self._unit)

    @property
    def _share(self) -> float:
        """The risk as a number between 0 and 1: of log-loss, in units of the bound."""
        return self.risk / self.bound if self.loss == "log" else self.risk

    @property
    def promise(self) -> tuple[float, float | None, str, str, str]:
        """What is promised: risk, confidence, by, small and budget, as `at` takes them."""
        return self.risk, self.confidence, self.by, self.small, self.budget

    @property
    def examples(self) -> int:
        """The number of calibration examples, for a log-loss of requests; 0 before `calibrate`."""
        if self.loss == "log":
            return self.units
        return len(self.thresholds["simplex"]) if self.thresholds else 0

    @property
    def units(self) -> int:
        """The number of exchangeable calibration units: groups, or examples where there are no groups."""
        if self.groups is None:
            return len(self.thresholds["simplex"]) if self.thresholds else 0
        return len(self.groups.unique())

    @property
    def cutoffs(self) -> Cutoffs:
        """The cut-offs that keep the risk over all examples, by region of the adversary."""
        self._check_calibrated()
        if self._cutoffs is None:
            self._cutoffs = Cutoffs(*(self._cutoff(region) for region in Cutoffs._fields))
        return self._cutoffs

    def _cutoff(self, region: str, rows: Tensor | None = None) -> float:
        """Return the cut-off that keeps the risk over some of the thresholds, by default over all of them."""
        values = self.counted(region)
        if self.loss == "log" and region == "box":
            return math.inf  # the worst of free weights is no single expert
        chosen = [one if one is None or rows is None else one[rows] for one in (values, self.groups, self.amounts)]
        assert chosen[0] is not None
        return risk_cutoff(chosen[0], self._share, self.confidence, *chosen[1:])

    def counted(self, region: str) -> Tensor:
        """Return the thresholds of the calibration examples that count for the budget, (n,), in a region.

        With the budget `routing` they are minus infinity where an expert's own mistake does the harm.
        """
        self._check_calibrated()
        if self.budget == "harm":
            return self.thresholds[region]
        if self.mistakes is None:
            raise RedxError(
                "The budget 'routing' needs the domains of all calibration examples, to tell an expert's own mistakes "
                "from a router's; give Parts(domains=…), or choose budget='harm'."
            )
        return self.thresholds[region].masked_fill(self.mistakes, -math.inf)

    @property
    def quarantined(self) -> Tensor | None:
        """Which experts are in quarantine, (K,); None where none is."""
        out = torch.tensor([trial.quarantined for trial in self.trials], dtype=torch.bool)
        return out if bool(out.any()) else None

    def _check_calibrated(self) -> None:
        if not self.thresholds:
            raise RedxError("This risk control is not calibrated; call calibrate(parts) with held-out examples first.")

    @property
    def merged(self) -> tuple[tuple[int, ...], ...]:
        """By domain: the domains that share a cut-off, each group in ascending order.

        Domains with enough calibration examples for the risk stand alone. With `small="silent"` all do.
        """
        self._check_calibrated()
        counts = self.domain_counts
        alone = [self.small == "silent" or self._is_enough(count) for count in counts]
        merged = [index for index in range(len(counts)) if not alone[index]]
        larger = sorted(
            (index for index in range(len(counts)) if alone[index]), key=lambda index: (counts[index], index)
        )
        while merged and larger and not self._is_enough(sum(counts[index] for index in merged)):
            merged.append(larger.pop(0))
        groups = [tuple(sorted(merged))] if merged else []
        return tuple(sorted([*groups, *((index,) for index in larger)]))

    @property
    def domain_counts(self) -> tuple[int, ...]:
        """By domain: the number of calibration examples of every domain."""
        if self.domains is None:
            return ()
        domains = self.domains
        if self.loss == "log" and self.groups is not None:  # a request has several thresholds
            domains = torch.stack([self.groups, domains], -1).unique(dim=0)[:, 1]
        return tuple(torch.bincount(domains, minlength=len(self.domain_names)).tolist())

    def _is_enough(self, examples: int) -> bool:
        return allowed_harm(examples, self._share, self._unit_confidence) >= 0

    def domain_cutoffs(self, region: str) -> Tensor:
        """Return the cut-off of every domain, (D,): infinite where the experts are silent."""
        self._check_calibrated()
        assert self.domains is not None
        if self._by_domain is None:
            self._by_domain = {}
        if region not in self._by_domain:
            values = self.counted(region)
            found = values.new_full((len(self.domain_names),), math.inf)
            for group in self.merged:
                rows = torch.isin(self.domains, torch.tensor(group))
                found[list(group)] = self._cutoff(region, rows)
            self._by_domain[region] = found
        return self._by_domain[region]

    def cutoffs_for(self, base: Tensor, named: Tensor | None = None) -> Cutoffs:
        """Return the cut-offs of examples, given the logits of the base, (N, C).

        By domain there is one for each example: that of the domain of the base's answer or, where domains share
        classes, of the domain that `named`, (N,), says. A class that belongs to no domain silences the experts.
        """
        if self.by == "all":
            return self.cutoffs
        self._check_calibrated()
        domains = self._domains_of_base(base, named)
        found = (self.domain_cutoffs(region)[domains.clamp_min(0)] for region in Cutoffs._fields)
        silent = domains < 0
        return Cutoffs(*(values.masked_fill(silent, math.inf).to(base.device) for values in found))

    def _domains_of_base(self, base: Tensor, named: Tensor | None) -> Tensor:
        """Return the domains whose cut-offs apply, (N,): of the base's answers, or those that `named` says."""
        if self.class_domains is None:
            return self._named(named).cpu()
        unknown = max(0, base.shape[1] - len(self.class_domains))
        return torch.nn.functional.pad(self.class_domains, (0, unknown), value=-1)[base.argmax(-1).cpu()]

    def _named(self, named: Tensor | None) -> Tensor:
        """Return the domains that the base names, (N,), or say that they are needed."""
        if named is None:
            raise RedxError(
                "The domains share classes, so the risk by domain needs the domain that the base names for every "
                "example; give Parts(named=…), or choose by='all'."
            )
        if len(named) and not 0 <= int(named.amin()) <= int(named.amax()) < len(self.domain_names):
            raise RedxError("Parts.named counts other domains than were calibrated; give those of the calibration.")
        return named

    def cutoff_in(self, region: str) -> float | None:
        """Return the one cut-off of a region; None where it is infinite, or each domain has its own."""
        value = float(getattr(self.cutoffs, region))
        return value if self.by == "all" and math.isfinite(value) else None

    @property
    def _unit_confidence(self) -> float | None:
        return self.confidence if self.groups is None else group_confidence(self.confidence)

    @property
    def _unit(self) -> str:
        return "requests" if self.loss == "log" else "examples" if self.groups is None else "groups"

    @classmethod
    def from_thresholds(
        cls,
        thresholds: dict[str, Tensor],
        risk: float | None,
        confidence: float | None = None,
        score: str = "contest",
        *,
        groups: Tensor | None = None,
        experts: Sequence[Any] = (),
        names: Sequence[str] = (),
        answers: bool = False,
        by: str = "all",
        small: str = "merge",
        budget: str = "harm",
        domains: Tensor | None = None,
        class_domains: Tensor | None = None,
        domain_names: Sequence[str] = (),
        mistakes: Tensor | None = None,
        trials: Sequence[Trial] = (),
        owners: Sequence[str] = (),
        head: Tensor | None = None,
        loss: str = "harm",
        bound: float = BOUND,
        amounts: Tensor | None = None,
    ) -> Self:
        """Return a control of measurements that were made before, such as those of a file; see the attributes."""
        control = cls(risk, confidence, score, by, small, budget, loss, bound)
        control.amounts = amounts
        control.domains, control.class_domains, control.domain_names = domains, class_domains, tuple(domain_names)
        control.thresholds, control.groups, control.answers = thresholds, groups, answers
        control.mistakes, control.trials, control.head = mistakes, tuple(trials), head
        control.owners = tuple(owners)
        control.experts = tuple(experts)
        control.names = tuple(names) or tuple(expert.name for expert in experts)
        return control

    def calibrate(
        self,
        record: Record,
        *,
        experts: Sequence[Any] = (),
        answers: bool = False,
        class_domains: Sequence[int] | Tensor | None = None,
        domain_names: Sequence[str] = (),
        trials: Sequence[Trial] = (),
        head: Tensor | None = None,
    ) -> Self:
        """Measure held-out examples and set the cut-offs; returns the control itself.

        Parameters
        ----------
        record
            Examples with labels that nothing was trained or chosen on, as a whole or in pieces. Examples of unknown
            label are left out and counted in `unknown`. With groups, these are the exchangeable units.
        experts, answers
            The experts of the record, where they are at hand, and whether their answers were added to their ownership
            scores.
        class_domains, domain_names
            The domain of every class as an index, (C,), and the names of the domains, by default their indices. With
            them the risk can be controlled by domain, now or with `at`. Where domains share classes, the names alone:
            `Parts.named` then says which domain the base names for an example.
        trials
            How every expert did on examples that are for choices, as `try_experts` returns it. The confidences of
            those in quarantine are minus infinity already.
        head
            What computes `Parts.named` from features, to be kept with the calibration.

        Raises
        ------
        RedxError
            If no label is known, if there are too few examples for the risk, if the risk is to be controlled by
            domain and classes belong to none, or if the budget is `routing` and domains are not known.
        """
        self.class_domains, self.domain_names, self.domains, self.head = None, (), None, head
        by_name = class_domains is None and len(domain_names) > 0
        if by_name:
            self.domain_names = tuple(map(str, domain_names))
        elif self.by == "domain" or (class_domains is not None and min(map(int, class_domains), default=-1) >= 0):
            self._set_domains(class_domains, domain_names)
        found_domains: list[Tensor] = []
        mistakes: list[Tensor] | None = []
        thresholds: dict[str, list[Tensor]] = {region: [] for region in REGIONS}
        groups: list[Tensor | None] = []
        excess = RequestExcess()
        self.unknown, given = 0, None
        for piece in in_pieces(record):
            if given is not None and given != (piece.confidences is not None):
                raise RedxError("Some pieces of the record hold confidences and others do not; give all of them some.")
            given = piece.confidences is not None
            parts = piece.labelled()
            self.unknown += len(piece) - len(parts)
            if len(parts):
                parts = parts if given else self._scored(parts)
                groups.append(parts.groups)
                if self.loss == "log":
                    excess.update(parts, self.domains_of(parts) if self.domain_names else None)
                    continue
                if self.domain_names:
                    found_domains.append(self.domains_of(parts))
                for region, rule in REGIONS.items():
                    thresholds[region].append(harm_thresholds(rule, parts))
                mistakes = None if parts.domains is None or mistakes is None else [*mistakes, own_mistakes(parts).cpu()]
        if not groups and self.unknown:
            raise RedxError(_no_labels(self.unknown))
        self.given = bool(given)
        if not self.given:
            self.score = _logits_score(self.score)
        self.thresholds = {region: torch.cat(values or [torch.empty(0)]) for region, values in thresholds.items()}
        self.groups, self._cutoffs, self._by_domain = _join_groups(groups), None, None
        self.mistakes, self.amounts = torch.cat(mistakes) if mistakes else None, None
        if self.loss == "log":
            self._set_steps(excess)
        elif self.domain_names:
            self.domains = torch.cat(found_domains or [torch.empty(0, dtype=torch.int64)])
        self.experts, self.answers, self.trials = tuple(experts), answers, tuple(trials)
        self.names, self.owners = tuple(expert.name for expert in experts), ()
        self._risk = self._supported(self._risk, self._unit_confidence)
        _ = self.counted("simplex")  # says so where the budget needs what is not known
        if self.unknown:
            log.warning("%d calibration examples were left out, for their labels are unknown", self.unknown)
        return self

    def calibrate_excess(self, excess: RequestExcess, names: Sequence[str] = ()) -> Self:
        """Set the cut-offs of a log-loss by requests that were measured; returns the control itself.

        Parameters
        ----------
        excess
            What every expert costs requests that nothing was trained or chosen on, with one confidence for each request
            and expert.
        names
            The names of the experts.

        Raises
        ------
        RedxError
            If the control is not one of log-loss, or if there are too few requests for the risk.
        """
        if self.loss != "log":
            raise RedxError("Requests calibrate a log-loss; choose RiskControl(loss='log').")
        self.given, self.names, self._cutoffs, self._by_domain = True, tuple(names), None, None
        self._set_steps(excess)
        self._risk = self._supported(self._risk, self._unit_confidence)
        return self

    def _set_steps(self, excess: RequestExcess) -> None:
        """Keep the step functions of requests."""
        steps = excess.steps(self.bound, bool(self.domain_names))
        self.thresholds = {"simplex": steps.thresholds, "box": torch.full_like(steps.thresholds, math.inf)}
        self.groups, self.amounts, self.domains = steps.groups, steps.amounts, steps.domains

    def _set_domains(self, class_domains: Sequence[int] | Tensor | None, names: Sequence[str]) -> None:
        """Keep which domain every class belongs to."""
        if class_domains is None or not len(class_domains):
            raise RedxError(
                "Risk by domain needs to know the domain of every class; give calibrate(…, class_domains=…), or choose "
                "by='all'."
            )
        self.class_domains = known = torch.as_tensor(class_domains).long()
        if int(known.min()) < 0:
            raise RedxError(
                "Some classes belong to several domains or to none, so the base's answer names no domain; choose "
                "by='all'."
            )
        count = int(known.max()) + 1
        self.domain_names = tuple(map(str, names)) or tuple(map(str, range(count)))
        if len(self.domain_names) < count:
            raise RedxError(f"There are {count} domains, and {len(self.domain_names)} names; name all of them.")

    def domains_of(self, parts: Parts) -> Tensor:
        """Return the domain of every example, (N,); they count as `domain_names` does.

        Its label names it or, where domains share classes, the base does: then the risk is kept in each group of
        examples for which the base names the same domain. With a log-loss the base always does: a router can cost
        where the base is wrong, too.
        """
        if self.loss == "log":
            if parts.groups is not None and self.class_domains is not None:
                raise RedxError(
                    "The base's answers do not name one domain for a request; give the domain that it names as "
                    "Parts.named, with calibrate(…, domain_names=…), or choose by='all'."
                )
            domains = self._domains_of_base(parts.base, parts.named)
            if len(domains) and int(domains.min()) < 0:
                raise RedxError("The base names a class of no domain; give the domain of every class, or by='all'.")
            return domains
        if parts.groups is not None:
            raise RedxError("Risk by domain counts single examples; leave out the groups, or choose by='all'.")
        if self.class_domains is None:
            return self._named(parts.named).cpu()
        labels = parts.true_labels()
        if parts.base.shape[1] == 1 or int(labels.max()) >= len(self.class_domains):
            raise RedxError("Some labels are no classes of a domain; give the domain of every class, or by='all'.")
        return self.class_domains[labels.cpu()]

    def _scored(self, parts: Parts) -> Parts:
        """Return a record with confidences that base and residuals alone give, and no cut-offs.

        They do not depend on the gates, so no router can choose which experts are active.
        """
        score = _logits_score(self.score)
        values = [confidences(score, part.base, part.residuals, part.gates) for _, part in parts.chunks()]
        scored = parts.with_confidences(torch.cat([parts.gates[:0], *values]), None)
        return by_request(scored) if self.loss == "log" else scored

    def _with_confidences(self, parts: Parts) -> Parts:
        """Return a record with confidences like those of the calibration examples, and no cut-offs."""
        self._check_calibrated()
        if self.given != (parts.confidences is not None):
            raise RedxError("Only one of the two records has confidences; give them for both or for neither.")
        if parts.confidences is None:
            return self._scored(parts)
        given = parts.with_confidences(parts.confidences, None)
        return check_requests(given) if self.loss == "log" else given

    def apply(self, record: Held) -> Held:
        """Return a record under control: with confidences and cut-offs, which every rule respects.

        Parameters
        ----------
        record
            Outputs of the same model on any examples; labels are not needed. Pieces stay pieces.

        Raises
        ------
        RedxError
            If the control is not calibrated, or if only one of the two records has confidences.

        Examples
        --------
        >>> base, residuals = torch.tensor([[1.0, 0.0]]).expand(99, -1), torch.tensor([[[0.0, 2.0]]]).expand(99, -1, -1)
        >>> held_out = Parts(base, residuals, torch.zeros(99, 1), labels=torch.zeros(99, dtype=torch.int64))
        >>> new = Parts(base[:1], residuals[:1], torch.zeros(1, 1))  # its label is not known
        >>> certify("red", new).predicted
        tensor([1])
        >>> control = RiskControl(risk=0.1).calibrate(held_out)
        >>> certify("red", control.apply(new)).predicted  # the expert does harm, so it is cut off
        tensor([0])
        """
        if isinstance(record, Parts):
            controlled = self._with_confidences(record)
            assert controlled.confidences is not None
            cutoffs = self.cutoffs_for(controlled.base, controlled.named)
            return controlled.with_confidences(controlled.confidences, cutoffs)
        return in_pieces(record).map(self.apply)

    def report(self, record: Record, rule: Rule | str = "red") -> dict[str, Any]:
        """Return what the control promises and what examples with labels show.

        Parameters
        ----------
        record
            Outputs of the same model on other examples than the calibration examples, as a whole or in pieces.
        rule
            The rule that composes base and experts.

        Returns
        -------
        dict
            `risk`, `confidence`, `score`, `by` and `budget`; `cutoff`, as text where it is infinite, None where each
            domain has its own; `calibration` and `examples`, the numbers of examples; `groups`, of the calibration
            examples, or None; `unknown`, how many examples were left out for their labels; `before` and `after`, the
            figures of `harm_figures` without and with the cut-off; and by domain `domains`, as `by_domain` returns
            them. With a log-loss also `loss` and `bound`; `examples` are requests, and `before` and `after` hold
            `excess`, the mean excess in nats that the risk bounds, with its interval from `low` to `high`, and the
            mean log-losses `base` and `worst`, the latter under the worst router that is constant over a request.
        """
        rule = get_rule(rule)
        region = controlled_region(rule)
        cutoff = getattr(self.cutoffs, region)
        if self.loss == "log":
            return self.report_excess(*self._measure(record))
        before, after = _count_harm(rule, in_pieces(record), [self._with_confidences, self.apply])
        return {
            "risk": self.risk,
            "confidence": self.confidence,
            "score": "as given" if self.given else self.score,
            "by": self.by,
            "budget": self.budget,
            "cutoff": None if self.by == "domain" else cutoff if math.isfinite(cutoff) else str(cutoff),
            "calibration": self.examples,
            "groups": None if self.groups is None else self.units,
            "examples": before.examples,
            "unknown": before.unknown,
            "before": before.figures(),
            "after": after.figures(),
            **({} if self.by == "all" else {"domains": self.by_domain(record, rule)}),
        }

    def report_excess(self, excess: RequestExcess, unknown: int = 0) -> dict[str, Any]:
        """Return what `report` returns for a log-loss, of requests that were measured.

        Parameters
        ----------
        excess
            What every expert costs the requests.
        unknown
            How many examples were left out because their label is unknown.
        """
        values, confidences, base = excess.means()
        if not len(excess):
            raise RedxError(_no_labels(unknown))
        every = torch.ones_like(confidences, dtype=torch.bool)
        cutoffs = self._request_cutoffs(excess)
        active = confidences > cutoffs[:, None]
        content: dict[str, Any] = {
            "risk": self.risk,
            "loss": self.loss,
            "bound": self.bound,
            "confidence": self.confidence,
            "score": "as given" if self.given else self.score,
            "by": self.by,
            "budget": self.budget,
            "cutoff": None if self.by == "domain" else _finite_or_text(float(self.cutoffs.simplex)),
            "calibration": self.examples,
            "groups": self.units,
            "examples": len(excess),
            "unknown": unknown,
            "before": self._excess_figures(values, every, base),
            "after": self._excess_figures(values, active, base),
        }
        if self.by == "domain":
            content["domains"] = self._excess_by_domain(excess, active)
        return content

    def _measure(self, record: Record) -> tuple[RequestExcess, int]:
        """Return the excess of the requests of a record, and how many examples have no label."""
        excess, unknown = RequestExcess(), 0
        for piece in in_pieces(record):
            parts = self._with_confidences(piece).labelled()
            unknown += len(piece) - len(parts)
            if len(parts):
                excess.update(parts, self.domains_of(parts) if self.by == "domain" else None)
        return excess, unknown

    def _request_cutoffs(self, excess: RequestExcess) -> Tensor:
        """Return the cut-off of every request, (n,)."""
        if self.by == "all":
            return torch.full((len(excess),), float(self.cutoffs.simplex))
        return self.domain_cutoffs("simplex")[[excess.domains[group] for group in sorted(excess.tokens)]]

    def _excess_figures(self, values: Tensor, active: Tensor, base: Tensor) -> dict[str, float | None]:
        if not len(values):
            return {"excess": None, "low": None, "high": None, "base": None, "worst": None}
        counted = worst_excess(values, active, self.bound)
        low, high = group_interval(float(counted.sum()) / self.bound, len(values))
        worst = values.masked_fill(~active, 0.0).amax(-1) if values.shape[1] else torch.zeros_like(base)
        return {
            "excess": float(counted.mean()),
            "low": low * self.bound,
            "high": high * self.bound,
            "base": float(base.mean()),
            "worst": float((base + worst).mean()),
        }

    def _excess_by_domain(self, excess: RequestExcess, active: Tensor) -> dict[str, dict[str, Any]]:
        """Return the promise and the excess of the requests for which the base names each domain."""
        values, _, base = excess.means()
        domains = torch.tensor([excess.domains[group] for group in sorted(excess.tokens)])
        shared = {index: group for group in self.merged for index in group}
        figures: dict[str, dict[str, Any]] = {}
        for index, (name, count) in enumerate(zip(self.domain_names, self.domain_counts, strict=True)):
            mine, cutoff = domains == index, float(self.domain_cutoffs("simplex")[index])
            figures[name] = {
                "calibration": count,
                "together": [self.domain_names[other] for other in shared[index] if other != index],
                "cutoff": cutoff if math.isfinite(cutoff) else None if cutoff > 0 else str(cutoff),
                "examples": int(mine.sum()),
                **self._excess_figures(values[mine], active[mine], base[mine]),
            }
        return figures

    def by_domain(self, record: Record, rule: Rule | str = "red") -> dict[str, dict[str, Any]]:
        """Return the promise and the harm of every domain, by its name.

        Parameters
        ----------
        record
            Examples with labels, under control or not yet.
        rule
            The rule that composes base and experts.

        Returns
        -------
        dict
            `calibration`: its calibration examples; `together`: the domains that it shares a cut-off with; `cutoff`,
            None where its experts are silent; `examples` with a label of this domain; `base`, `clean` and `worst`
            accuracy, `harm` and `routing_harm` on them with the exact interval from `low` to `high` of what the budget
            bounds, None where there are none. Where domains share classes, all of this is said of the examples for
            which the base names the domain, and `true` of those that belong to it: `examples`, `harm`, `low` and
            `high`, which the risk does not bound.
        """
        rule = get_rule(rule)
        region, counts = controlled_region(rule), self.domain_counts
        if self.loss == "log":
            if self.by != "domain":
                raise RedxError("This control keeps the risk over all requests; choose by='domain'.")
            return self.report(record, rule)["domains"]
        outcomes, domains = [torch.empty(0, 5, dtype=torch.bool)], [torch.empty(0, dtype=torch.int64)]
        true_domains: list[Tensor] = []
        for piece in in_pieces(record):
            parts = self.apply(piece).labelled()
            if len(parts):
                found = harm_outcomes(rule, parts)
                routing = found[:, 3] if parts.domains is None else found[:, 3] & ~own_mistakes(parts)
                outcomes.append(torch.cat([found, routing[:, None]], -1).cpu())
                domains.append(self.domains_of(parts))
                if parts.domains is not None:
                    true_domains.append(parts.domains.cpu())
        every, of_example = torch.cat(outcomes).double(), torch.cat(domains)
        figures: dict[str, dict[str, Any]] = {}
        for group in self.merged:
            for index in group:
                mine, cutoff = every[of_example == index], float(self.domain_cutoffs(region)[index])
                base, clean, worst, harm, routing = mine.mean(0).tolist() if len(mine) else (None,) * 5
                bounded = mine[:, 3 if self.budget == "harm" else 4]
                low, high = exact_interval(int(bounded.sum()), len(mine)) if len(mine) else (None, None)
                figures[self.domain_names[index]] = {
                    "calibration": counts[index],
                    "together": [self.domain_names[other] for other in group if other != index],
                    "cutoff": cutoff if math.isfinite(cutoff) else None if cutoff > 0 else str(cutoff),
                    "examples": len(mine),
                    **{"base": base, "clean": clean, "worst": worst, "harm": harm, "low": low, "high": high},
                    "routing_harm": routing,
                }
        if self.class_domains is None and sum(map(len, true_domains)) == len(every):
            true = torch.cat([torch.empty(0, dtype=torch.int64), *true_domains])
            for name, one in figures.items():
                where = true == (self.names.index(name) if name in self.names else -2)
                one["true"] = self._of_true_domain(every[where])
        return {name: figures[name] for name in self.domain_names}

    def _of_true_domain(self, outcomes: Tensor) -> dict[str, Any]:
        """Return the number of these examples and what the budget bounds, with its exact interval."""
        if not len(outcomes):
            return {"examples": 0, "harm": None, "low": None, "high": None}
        harmed = int(outcomes[:, 3 if self.budget == "harm" else 4].sum())
        low, high = exact_interval(harmed, len(outcomes))
        return {"examples": len(outcomes), "harm": harmed / len(outcomes), "low": low, "high": high}

    def at(
        self,
        risk: float | None,
        confidence: float | None = None,
        by: str | None = None,
        small: str | None = None,
        budget: str | None = None,
    ) -> Self:
        """Return a control of the same measurements with another risk.

        Parameters
        ----------
        risk
            The new risk; None for 0.01, or the smallest that the calibration examples support.
        confidence
            None for the bound on average, otherwise the probability with which it has to hold.
        by, small, budget
            As for the control itself; None keeps what it has.

        Raises
        ------
        RedxError
            Where there are too few calibration examples for this risk.
        """
        self._check_calibrated()
        held = group_confidence(confidence) if self.groups is not None else confidence
        by, small = by or self.by, small or self.small
        if self.owners and (by, small) != ("domain", "silent"):
            raise RedxError(
                "The owners of the domains computed these thresholds, so each domain keeps the risk by itself; leave "
                "out by and small, or calibrate on examples of your own (`redx calibrate RUN --own`)."
            )
        every_alone = risk is not None and (by, small) == ("domain", "silent")  # too few in a domain: it is silent
        chosen = risk if every_alone else self._supported(risk, held)
        checked = type(self)(chosen, confidence, self.score, by, small, budget or self.budget, self.loss, self.bound)
        if checked.by == "domain" and self.domains is None:
            raise RedxError(
                "This model knows no domains to keep the risk in: its shared examples do not say theirs, or an older "
                "version calibrated it; choose by='all', or calibrate it anew."
            )
        other = copy.copy(self)
        vars(other).update({name: getattr(checked, name) for name in ("_risk", *SETTINGS)})
        other._cutoffs, other._by_domain = None, None
        _ = other.counted("simplex")
        return other

    def to_json(self) -> dict[str, Any]:
        """Return the promise as numbers, texts, lists and dicts: the content of risk.json."""
        content: dict[str, Any] = {
            "risk": self.risk,
            "confidence": self.confidence,
            "score": self.score,
            **({"answers": True} if self.answers else {}),
            "calibration": self.examples,
            "cutoffs": {region: _finite_or_text(value) for region, value in self.cutoffs._asdict().items()},
            "experts": list(self.names),
            "budget": self.budget,
            **({"loss": self.loss, "bound": self.bound} if self.loss == "log" else {}),
            "trials": [asdict(trial) for trial in self.trials],
        }
        if self.domains is None:
            return content
        shared = {index: group for group in self.merged for index in group}
        domains = [
            {
                "name": name,
                "calibration": count,
                "together": [self.domain_names[other] for other in shared[index] if other != index],
                "cutoffs": {
                    region: _finite_or_text(float(self.domain_cutoffs(region)[index])) for region in Cutoffs._fields
                },
            }
            for index, (name, count) in enumerate(zip(self.domain_names, self.domain_counts, strict=True))
        ]
        owners = {"owners": list(self.owners)} if self.owners else {}
        return content | {"by": self.by, "small": self.small, "domains": domains, **owners}


def _finite_or_text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _logits_score(score: str) -> str:
    """Return the part of a score that base and residuals alone give."""
    if score == "ownership":
        raise RedxError(
            "The score 'ownership' needs ownership scores, which logits are not; choose one of gain, answer."
        )
    return "answer" if score in ("answer", "both") else "gain"


def controlled_region(rule: Rule) -> str:
    """Return the region of a rule's adversary, or raise `RedxError` where its harm cannot be controlled."""
    if not rule.keeps_base or rule.adversary is None:
        raise RedxError(f"The rule {rule.name!r} adds no residuals to the base, so its harm cannot be controlled.")
    return rule.adversary


def _check_confidence(confidence: float | None) -> None:
    if confidence is not None and not 0 < confidence < 1:
        raise RedxError(f"A confidence lies between 0 and 1, not {confidence}; choose one such as 0.95.")


def harm_thresholds(rule: Rule | str, record: Record) -> Tensor:
    """Return the threshold of every example: some router does harm at a cut-off λ exactly if λ is below it.

    Parameters
    ----------
    rule
        A rule that adds residuals to the base, with an adversary on the simplex (`red`) or in the box (`sum`).
    record
        The record of N examples and K residual experts with their confidences and labels; its cut-offs do not count.

    Returns
    -------
    Tensor
        Thresholds of shape (N,); minus infinity where no router can do harm, as on examples that the base gets wrong.

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0], [0.0, 0.0]]])
    >>> parts = Parts(
    ...     base, residuals, torch.zeros(1, 2), labels=torch.tensor([0]), confidences=torch.tensor([[0.7, 5.0]])
    ... )
    >>> harm_thresholds("red", parts)
    tensor([0.7000])
    """
    rule = get_rule(rule)
    controlled_region(rule)
    found = [_piece_thresholds(rule, piece) for piece in in_pieces(record)]
    return found[0] if len(found) == 1 else torch.cat(found or [torch.empty(0)])


def _piece_thresholds(rule: Rule, parts: Parts) -> Tensor:
    """Return the thresholds of the examples of one record, (N,)."""
    parts.true_labels()  # says so where labels are unknown
    if parts.confidences is None:
        raise RedxError("These parts hold no confidences, so no cut-off can be set; give Parts(confidences=…).")
    thresholds = [parts.confidences.new_empty(0)]
    in_box, (_, experts, classes) = rule.adversary == "box", parts.residuals.shape
    size = max(BOX_CHUNK, BOX_ROWS * experts * classes) if in_box else CHUNK
    scratch = parts.residuals.new_empty(0 if in_box else min(len(parts), _rows(parts)), experts, classes)
    for _, chunk in parts.chunks(size):
        right = predicted_classes(chunk.base) == _labels(chunk)  # never for a label that the base does not know
        values = parts.confidences.new_full((len(chunk),), -math.inf)
        unclear = right
        if classes > 1 and experts:
            unclear = right & (_fill_in_box if in_box else _fill_on_simplex)(chunk, right, values, scratch)
        for rows in unclear.nonzero()[:, 0].split(_rows(parts)):
            values[rows] = _exact_thresholds(rule, chunk.only(rows))
        thresholds.append(values)
    return torch.cat(thresholds)


def _labels(parts: Parts) -> Tensor:
    """Return labels that were checked already."""
    assert parts.labels is not None
    return parts.labels


def _rows(parts: Parts) -> int:
    """Return the number of examples of a piece, as `Parts.chunks` divides them."""
    return max(1, CHUNK // max(1, parts.residuals[0].numel())) if len(parts) else 1


def _fill_on_simplex(parts: Parts, right: Tensor, values: Tensor, scratch: Tensor) -> Tensor:
    """Write the thresholds of examples that are far from ties, (N,), and return which ones are not, (N,)."""
    confidences = parts.confidences
    assert confidences is not None
    labels = _labels(parts).clamp(0, parts.base.shape[1] - 1)[:, None]  # any class where the base is not right
    scores = torch.add(parts.base[:, None], parts.residuals, out=scratch[: len(parts)])  # (N, K, C)
    index = labels[:, None].expand(-1, parts.experts, 1)
    own = scores.gather(-1, index)[..., 0]  # (N, K)
    rival = scores.scatter_(-1, index, -math.inf).amax(-1)
    fixed, slope = _error_bound(parts, 1)
    bound = fixed + slope
    margin = parts.base.gather(-1, labels) - parts.base.scatter(-1, labels, -math.inf)
    surely = _largest(confidences, own < rival)
    perhaps = _largest(confidences, own - rival <= bound[:, None])
    perhaps = torch.where(margin.amin(-1) <= bound, confidences.amax(-1), perhaps)  # any expert may be the first
    clear = (surely == perhaps) & bound.isfinite()
    values.copy_(torch.where(right & clear, surely, values))
    return ~clear


def _largest(confidences: Tensor, where: Tensor) -> Tensor:
    """Return the largest confidence of the chosen experts, (N, K) to (N,); minus infinity where none is chosen."""
    return confidences.masked_fill(~where, -math.inf).amax(-1)


def _error_bound(parts: Parts, experts: int) -> tuple[Tensor, Tensor]:
    """Return a bound on the rounding errors of margins: `fixed + k * slope` where k experts add up, both (N,).

    It is infinite where the sum over so many `experts` could overflow.
    """
    pieces = parts.residuals.flatten(1).split(_rows(parts))  # both ends are found while a piece is in the cache
    size = torch.cat([torch.maximum(piece.amax(1), -piece.amin(1)) for piece in pieces])
    base = parts.base.abs().amax(-1)
    precision, steps = torch.finfo(size.dtype), parts.experts + 8
    fits = experts * size + base < precision.max / (2 * SAFETY)
    fixed = SAFETY * steps * (2 * precision.eps * base + precision.tiny)
    return torch.where(fits, fixed, math.inf), SAFETY * steps * 2 * precision.eps * size


def _fill_in_box(parts: Parts, right: Tensor, values: Tensor, _: Tensor) -> Tensor:
    """Write the thresholds of examples that are far from ties, (N,), and return which ones are not, (N,)."""
    confidences, (count, experts, classes) = parts.confidences, parts.residuals.shape
    assert confidences is not None
    unclear, rows = torch.zeros(count, dtype=torch.bool), right.nonzero()[:, 0]
    labels, base = _labels(parts)[rows][:, None], parts.base[rows]
    fixed, slope = (bound[rows] for bound in _error_bound(parts, experts))
    worst = (base.gather(1, labels) - base).scatter_(1, labels, math.inf)  # (n, C): the smallest margins
    order = confidences[rows].argsort(-1, descending=True)
    places = (order + rows[:, None] * experts).T.contiguous()  # (K, n): where experts and their residuals lie
    residuals, sure = parts.residuals.reshape(-1, classes), confidences.reshape(-1)
    decided = torch.zeros(len(rows), dtype=torch.bool)
    for step in range(experts):
        place = places[step % COMPACT]
        residual = residuals.index_select(0, place)  # (n, C)
        worst += residual.gather(1, labels).sub(residual).clamp_max_(0)
        smallest, bound = worst.amin(1), torch.add(fixed, slope, alpha=step + 1)
        fallen = (~(decided | (smallest > bound))).nonzero()[:, 0]
        if len(fallen):
            lost = smallest[fallen] < -bound[fallen]
            values[rows[fallen[lost]]] = sure[place[fallen[lost]]]
            unclear[rows[fallen[~lost]]] = True
            decided[fallen] = True
        if step % COMPACT == COMPACT - 1:  # leave out decided examples, and the experts that were added
            keep = (~decided).nonzero()[:, 0]
            if not len(keep):
                break
            rows, labels, fixed, slope, worst = (tensor[keep] for tensor in (rows, labels, fixed, slope, worst))
            places, decided = places[COMPACT:].index_select(1, keep), decided[keep]
    return unclear


def _exact_thresholds(rule: Rule, parts: Parts) -> Tensor:
    """Return the thresholds of examples that the base answers correctly, ties and rounding errors included: (N,)."""
    confidences = parts.confidences
    assert confidences is not None
    values = confidences.new_full((len(parts),), -math.inf)
    rows = _can_be_lost(rule, parts).nonzero()[:, 0]
    if len(rows):
        values[rows] = _first_lost(rule, parts.only(rows))
    return values


def _can_be_lost(rule: Rule, parts: Parts) -> Tensor:
    """Return where some router makes the label lose while all experts contribute, (N,); elsewhere none ever does."""
    if not parts.experts or not len(parts):
        return torch.zeros(len(parts), dtype=torch.bool)
    in_box = rule.adversary == "box"
    if in_box:
        worst = certificate.worst_in_box(parts.base, parts.residuals, _labels(parts))
    else:
        worst = certificate.worst_on_simplex(parts.base[:, None] + parts.residuals, _labels(parts))
        worst = worst.minimum(certificate.margins(parts.base, _labels(parts)))  # inactive experts leave the base
    error = certificate.rounding_error(parts.base, parts.residuals, _labels(parts), in_box)
    ties = certificate.loses_ties(parts.base, _labels(parts))
    return ((worst < error) | (ties & (worst <= error))).any(-1)


def _first_lost(rule: Rule, parts: Parts) -> Tensor:
    """Return where the label can first be lost as a falling cut-off activates one expert after the other: (N,)."""
    confidences = parts.confidences
    assert confidences is not None
    if not parts.experts:
        return confidences.new_full((len(parts),), -math.inf)
    order = confidences.argsort(-1, descending=True)
    residuals = parts.residuals.gather(1, order[..., None].expand_as(parts.residuals))
    own = certificate.margins(parts.base, _labels(parts))[:, None]  # (N, 1, C): the base's, kept by inactive experts
    size = residuals.abs()
    if rule.adversary == "box":
        both_ends = torch.cat([residuals, -residuals], -1)
        change = certificate.margins(residuals, _labels(parts)) if parts.base.shape[-1] > 1 else both_ends
        worst, scale = own + change.clamp_max(0).cumsum(1), size.cumsum(1)
    else:
        vertices = certificate.margins(parts.base[:, None] + residuals, _labels(parts))
        worst, scale = vertices.cummin(1).values.minimum(own), size.cummax(1).values
    error = certificate.margin_error(parts.base, scale, _labels(parts), parts.experts)  # (N, K, C)
    ties = certificate.loses_ties(parts.base, _labels(parts))[:, None]
    broken = ((worst < error) | (ties & (worst <= error))).any(-1)  # (N, K)
    return confidences.gather(1, order).masked_fill(~broken, -math.inf).amax(-1)
