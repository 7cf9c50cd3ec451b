"""Streamed evaluation on held-out windows: of vocabulary-sized scores only what metrics and certificates need is kept.

Windows run as mixed batches: a row for the base, one for every adapter, and one for every merge. Scores exist for a few
positions of one window at a time. The router reads the mean hidden state of the tokens before the predicted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from redx.adapters.composed import ComposedLM
from redx.adapters.documents import Window
from redx.adapters.routers import KeysRouter, TrainedRouter, running_mean
from redx.adapters.shortlist import shortlist
from redx.adapters.states import States, read_states
from redx.composition.certificate import EPSILONS
from redx.composition.confidence import LARGEST, contest
from redx.composition.evaluation import certify
from redx.composition.parts import Cutoffs, Parts
from redx.composition.risk import harm_thresholds
from redx.composition.rules import RULES
from redx.errors import RedxError
from redx.io.progress import progress

POSITIONS = 16  # whose scores exist at once
RED = RULES["red"]


@dataclass
class Measured:
    """Sums over the tokens of every document.

    Attributes
    ----------
    domains, tokens
        Domain and number of predicted tokens of every document, (N,).
    loss, right
        Summed loss, and number of tokens predicted right, of every way of composing, by its name: (N,).
    thresholds
        Harm thresholds of the tokens of every document, where they were computed.
    """

    domains: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    loss: dict[str, list[float]] = field(default_factory=dict)
    right: dict[str, list[float]] = field(default_factory=dict)
    thresholds: list[Tensor] = field(default_factory=list)

    def add(self, name: str, loss: Tensor | None, right: Tensor) -> None:
        """Add what was measured on some tokens of the last document."""
        document = len(self.tokens) - 1
        for sums, values in ((self.loss, loss), (self.right, right)):
            if values is not None:
                column = sums.setdefault(name, [])
                column += [0.0] * (document + 1 - len(column))
                column[document] += float(values.double().sum())


@dataclass(frozen=True)
class Chunk:
    """Scores and weights at some positions of one window.

    Attributes
    ----------
    logits
        Of every row, (R, P, C).
    labels
        The next tokens, (P,).
    norm, best, hit
        Log-sum-exp, largest logit, and whether it is the label's, of every row: (R, P).
    weights
        Weights of the adapters by router, (P, K).
    confidences
        How sure every adapter is, (P, K).
    """

    logits: Tensor
    labels: Tensor
    norm: Tensor
    best: Tensor
    hit: Tensor
    weights: dict[str, Tensor]
    confidences: Tensor

    @property
    def loss(self) -> Tensor:
        """Loss of every row, (R, P)."""
        index = self.labels.expand(len(self.logits), -1)[..., None]
        return self.norm - self.logits.gather(-1, index)[..., 0]


def confidences(score: str, odds: Tensor, claims: Tensor) -> Tensor:
    """Return the confidences of `redx.composition.confidence` from log-odds that are computed already.

    Parameters
    ----------
    score
        Name of the score.
    odds
        Log-odds of the most probable token, of the base and of every adapter, (1 + K, P).
    claims
        Log-odds that the text is of the adapter's domain, (P, K).

    Returns
    -------
    Tensor
        Confidences of shape (P, K).
    """
    claims = claims.clamp(-LARGEST, LARGEST)
    answer, gain = odds[1:].T, (odds[1:] - odds[:1]).T
    scores: dict[str, Callable[[], Tensor]] = {
        "ownership": lambda: claims,
        "answer": lambda: answer,
        "both": lambda: claims + answer,
        "gain": lambda: gain,
        "all": lambda: claims + gain,
        "contest": lambda: contest(claims) + gain,
    }
    if score not in scores:
        raise RedxError(f"There is no score {score!r}; choose one of {', '.join(scores)}.")
    return scores[score]()


@torch.inference_mode()
def measure(
    composed: ComposedLM,
    windows: Sequence[Window],
    router: TrainedRouter,
    keys: KeysRouter,
    score: str,
    merges: Sequence[str] = (),
    cutoff: float | None = None,
    thresholds: bool = False,
    title: str = "measuring",
) -> Measured:
    """Measure every way of composing on windows.

    Parameters
    ----------
    composed
        The model with all adapters and merges.
    windows
        One window per document.
    router, keys
        Both routers.
    score
        Name of the confidence that a cut-off applies to.
    merges
        Names of those adapters of the model that are merges and no experts.
    cutoff
        Measure also with this cut-off on the confidences.
    thresholds
        Compute only harm thresholds, and nothing else.
    title
        Shown while it measures.
    """
    experts = [name for name in composed.names if name not in merges]
    rows = [None, *experts, *merges]
    measured = Measured()
    with progress(title, len(windows)) as advance:
        for window, states in read_states(composed, windows, rows):
            measured.domains.append(window.domain)
            measured.tokens.append(len(window.tokens) - 1)
            found = []
            for chunk in _chunks(composed, window, states, rows, experts, router, keys, score):
                if thresholds:
                    found.append(_thresholds(chunk, len(experts)))
                    continue
                _add_rows(measured, chunk, experts, merges)
                _add_mixtures(measured, chunk, experts, cutoff)
                _add_certified(measured, chunk, len(experts), cutoff)
            if thresholds:
                measured.thresholds.append(torch.cat(found))
            advance(1)
    return measured


def _chunks(
    composed: ComposedLM,
    window: Window,
    states: States,
    rows: Sequence[str | None],
    experts: Sequence[str],
    router: TrainedRouter,
    keys: KeysRouter,
    score: str,
) -> Iterator[Chunk]:
    """Yield the scores of one window, a few positions at a time."""
    tokens = window.tokens[:-1]
    context = running_mean(states.middle[None])[0]  # (T, D)
    final, head = states.final, composed.base.model.get_output_embeddings()
    reproduces = torch.allclose(head(final[:, -1]), states.last, atol=1e-3)
    whole = None
    if not reproduces:  # the head is adapted itself, or scores are changed after it
        whole = composed.stack.forward(rows, tokens.expand(len(rows), -1), use_cache=False).logits
    by_router = {"router": router.weights(context, experts), "keys": keys.weights(context, experts)}
    claims = keys.claims(context, experts)
    for start in range(0, len(tokens), POSITIONS):
        part = slice(start, start + POSITIONS)
        logits = (head(final[:, part]) if whole is None else whole[:, part]).float()
        norm, (best, answer) = logits.logsumexp(-1), logits.max(-1)
        labels = window.tokens[1:][part]
        odds = -(norm - best).clamp_min(1e-30).expm1().log()  # log of p / (1 - p)
        odds = odds.clamp(-LARGEST, LARGEST)
        yield Chunk(
            logits,
            labels,
            norm,
            best,
            answer == labels,
            {name: weights[part] for name, weights in by_router.items()},
            confidences(score, odds[: 1 + len(experts)], claims[part]),
        )


def _add_rows(measured: Measured, chunk: Chunk, experts: Sequence[str], merges: Sequence[str]) -> None:
    loss = chunk.loss
    names = ["base", *(f"adapter {name}" for name in experts), *(f"merge {name}" for name in merges)]
    for row, name in enumerate(names):
        measured.add(name, loss[row], chunk.hit[row])
    count = len(experts)
    # the loss is convex in the weights, so that the worst weights on the simplex are at a vertex
    measured.add("any router", loss[1 : 1 + count].amax(0), chunk.hit[1 : 1 + count].all(0))


def _add_mixtures(measured: Measured, chunk: Chunk, experts: Sequence[str], cutoff: float | None) -> None:
    """Add mixtures of scores: uniform, by both routers, and with the cut-off."""
    count = len(experts)
    base, vertices = chunk.logits[0], chunk.logits[1 : 1 + count]  # (P, C), (K, P, C)
    equal = torch.full((len(base), count), 1 / max(1, count))
    mixtures = {"uniform": equal, "router": chunk.weights["router"], "keys": chunk.weights["keys"]}
    active = None
    if cutoff is not None:
        active = chunk.confidences > cutoff  # (P, K)
        mixtures["router at risk"] = chunk.weights["router"] * active
    for name, weights in mixtures.items():
        scores = base * (1 - weights.sum(-1, keepdim=True))
        for k in range(count):
            scores = scores.addcmul(weights[:, k, None], vertices[k])
        own = scores.gather(-1, chunk.labels[:, None])[:, 0]
        measured.add(name, scores.logsumexp(-1) - own, scores.argmax(-1) == chunk.labels)
    if active is not None:
        loss = chunk.loss
        kept = torch.where(active.T, loss[1 : 1 + count], loss[:1])  # (K, P)
        hit = torch.where(active.T, chunk.hit[1 : 1 + count], chunk.hit[:1])
        for k, name in enumerate(experts):
            measured.add(f"adapter {name} at risk", kept[k], hit[k])
        measured.add("any router at risk", kept.amax(0) if count else loss[0], hit.all(0))
        measured.add("active at risk", None, active.double().mean(-1) if count else torch.zeros(len(base)))


def _add_certified(measured: Measured, chunk: Chunk, count: int, cutoff: float | None) -> None:
    """Add how many tokens are right under every router within ε, and how many some router harms."""
    for name, limit in (("certified", None), ("certified at risk", cutoff)):
        if name == "certified at risk" and cutoff is None:
            continue
        radii = torch.full((len(chunk.labels),), -1.0)
        for rows, parts in shortlist(chunk.logits[: 1 + count], chunk.labels, chunk.confidences):
            if limit is not None:
                parts = Parts(**parts.tensors(), cutoffs=Cutoffs(limit, limit))
            certified = certify(RED, parts, chunk.weights["router"][rows])
            radii[rows] = torch.where(certified.predicted == parts.labels, certified.radius, -1.0)
        for epsilon in EPSILONS:
            measured.add(f"{name} {epsilon:g}", None, radii >= epsilon)
        measured.add(name.replace("certified", "harmed"), None, chunk.hit[0] & (radii < 1))


def _thresholds(chunk: Chunk, count: int) -> Tensor:
    """Return the harm threshold of every position, (P,)."""
    values = torch.full((len(chunk.labels),), -math.inf)
    for rows, parts in shortlist(chunk.logits[: 1 + count], chunk.labels, chunk.confidences):
        values[rows] = harm_thresholds(RED, parts)
    return values


def document_cutoff(thresholds: Sequence[Tensor], risk: float) -> float:
    """Return the smallest cut-off that keeps the mean harm of a new document at most at the risk, in expectation.

    The tokens of one document are not exchangeable with those of another, but documents are. The harm of a document is
    the share of its tokens on which the base is right and some router makes the composed answer wrong; it lies between
    0 and 1 and never increases with the cut-off λ. So conformal risk control holds over n documents:

        λ̂ = inf{ λ : (Σ_i harm_i(λ) + 1) / (n + 1) ≤ risk }

    Parameters
    ----------
    thresholds
        Harm thresholds of the tokens of every calibration document.
    risk
        The bound, from 0 to 1.

    Returns
    -------
    float
        The cut-off; infinity where there are too few documents for this risk, minus infinity where all may contribute.

    Examples
    --------
    >>> document_cutoff([torch.tensor([5.0, 1.0])] * 19, risk=0.3)
    5.0
    """
    if not 0 <= risk <= 1:
        raise RedxError(f"A risk lies between 0 and 1, not {risk}; choose one such as 0.01.")
    allowed = risk * (len(thresholds) + 1) - 1 + 1e-9
    if allowed < 0:
        return math.inf
    values = torch.cat([*thresholds, torch.empty(0)]).double()
    shares = torch.cat([torch.full((len(row),), 1 / len(row)) for row in thresholds] or [torch.empty(0)]).double()
    order = values.argsort(descending=True)
    values, harm = values[order], shares[order].cumsum(0)
    too_much = (harm > allowed) & (values > -math.inf)
    return float(values[int(too_much.nonzero()[0])]) if bool(too_much.any()) else -math.inf
