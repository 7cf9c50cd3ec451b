"""Decoding with composed scores: greedy or sampled, token by token, each token with weights, contributions and ε*."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from redx.composition.evaluation import certify
from redx.composition.parts import Parts
from redx.composition.rules import Rule, compose
from redx.errors import RedxError

if TYPE_CHECKING:
    from redx.adapters.composed import ComposedLM

HALF = "\ufffd"  # what a tokenizer decodes the first bytes of a character to


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes
    ----------
    temperature
        0 takes the token with the highest score (greedy); otherwise tokens are drawn.
    top_p
        Draw only among the most probable tokens that have this probability together.
    seed
        Decides the draws.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise RedxError(f"A temperature lies between 0 (greedy) and 100, not {self.temperature}; change it.")
        if not 0 < self.top_p <= 1:
            raise RedxError(f"top_p is a probability above 0 and at most 1, not {self.top_p}; change it.")

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0


@dataclass(frozen=True)
class TokenStep:
    """One generated token.

    Attributes
    ----------
    token
        Index in the vocabulary.
    text
        The text that it adds.
    logprob
        Its log-probability under the composed scores.
    base
        The base's logit of the token, or None where the base was not run.
    contributions
        What every adapter adds to the token's logit, by name: its weight times its residual.
    radius
        ε*: the share of routing weight that may be moved without another token being chosen; None where tokens are
        drawn, or where not all adapters were run.
    """

    token: int
    text: str
    logprob: float
    base: float | None
    contributions: dict[str, float]
    radius: float | None


@dataclass(frozen=True)
class Generation:
    """A generated continuation.

    Attributes
    ----------
    prompt, text
        The prompt, and what was generated after it.
    weights
        The weight of every adapter, by name.
    tokens
        The tokens, one by one.
    radius
        The smallest radius of the tokens: no router within it changes any of them; None where one is not known.
    stopped
        Why it ended: `end` (the model's end token), `stop` (a stop text) or `length`.
    """

    prompt: str
    text: str
    weights: dict[str, float]
    tokens: list[TokenStep] = field(default_factory=list)
    radius: float | None = None
    stopped: str = "length"


@dataclass
class _Row:
    """A prompt that is being continued."""

    index: int
    draw: Generator
    ids: list[int] = field(default_factory=list)
    text: str = ""
    stopped: str | None = None


def decode(
    composed: ComposedLM,
    prompts: Tensor,
    weights: Tensor,
    rule: Rule,
    rows: Sequence[str | None],
    max_new_tokens: int,
    sampling: Sampling,
    stop: Sequence[str],
    ends: set[int],
) -> Iterator[tuple[int, TokenStep, str | None]]:
    """Continue prompts of equal length, all at once.

    Parameters
    ----------
    composed
        The composed model.
    prompts
        Tokens of the prompts, (B, T).
    weights
        Weights of all adapters for every prompt, (B, K).
    rule
        A rule over residual experts.
    rows
        What is run for every prompt: None is the base, a name an adapter.
    max_new_tokens, sampling, stop, ends
        Length, choice of tokens, texts and tokens that end a continuation.

    Yields
    ------
    tuple
        Index of the prompt, its next token, and why it ended there (None while it goes on).
    """
    count, names = len(prompts), composed.names
    alive = [_Row(index, torch.Generator().manual_seed(sampling.seed + index)) for index in range(count)]
    flat_names = [name for _ in range(count) for name in rows]
    tokens, cache = prompts.repeat_interleave(len(rows), 0), None
    for step in range(max_new_tokens):
        output = composed.stack.forward(flat_names, tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        logits = output.logits[:, -1].clone().view(count, len(rows), -1)  # (B, rows, C)
        scores, radii, base, residuals = compose_rows(logits, weights, rule, rows, names, sampling.greedy)
        chosen = [choose(scores[row.index], sampling, row.draw) for row in alive]
        logprobs = scores.log_softmax(-1)
        for row, token in zip(alive, chosen, strict=True):
            if row.stopped:
                continue
            row.ids.append(token)
            text = composed.base.tokenizer.decode(row.ids, skip_special_tokens=True)
            row.stopped = "end" if token in ends else "stop" if any(word and word in text for word in stop) else None
            if step == max_new_tokens - 1 and row.stopped is None:
                row.stopped = "length"
            added = ""
            if row.stopped or not text.endswith(HALF):  # a character may take several tokens
                added, row.text = text[len(row.text) :], text
            i = row.index
            yield (
                i,
                TokenStep(
                    token=token,
                    text=added,
                    logprob=float(logprobs[i, token]),
                    base=None if base is None else float(base[i, token]),
                    contributions={
                        name: float(weights[i, k] * residuals[name][i, token])
                        for k, name in enumerate(names)
                        if name in residuals
                    },
                    radius=None if radii is None else float(radii[i]),
                ),
                row.stopped,
            )
        if all(row.stopped for row in alive):
            return
        tokens = torch.tensor(chosen)[:, None].repeat_interleave(len(rows), 0)


def compose_rows(
    logits: Tensor, weights: Tensor, rule: Rule, rows: Sequence[str | None], names: Sequence[str], greedy: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, dict[str, Tensor]]:
    """Return composed scores (B, C), radii (B,), base logits and residuals by name, from the rows that were run."""
    if None not in rows:  # the weights sum to one, so that the base cancels out
        mixed = sum(weights[:, [names.index(str(name))]] * logits[:, row] for row, name in enumerate(rows))
        assert isinstance(mixed, Tensor)
        return mixed, None, None, {}
    base = logits[:, rows.index(None)]
    residuals = {name: logits[:, row] - base for row, name in enumerate(rows) if name is not None}
    if len(residuals) < len(names):
        zero = torch.zeros_like(base)
        stacked = torch.stack([residuals.get(name, zero) for name in names], 1)
    else:
        stacked = torch.stack([residuals[name] for name in names], 1) if names else base[:, None][:, :0]
    labels = torch.zeros(len(base), dtype=torch.long)
    parts = Parts(base, stacked, torch.zeros_like(weights), labels, labels)
    scores = compose(rule, parts, weights)
    complete = greedy and len(residuals) == len(names)
    return scores, certify(rule, parts, weights).radius if complete else None, base, residuals


def choose(scores: Tensor, sampling: Sampling, draw: Generator) -> int:
    """Return the next token by its composed scores, (C,)."""
    if sampling.greedy:
        return int(scores.argmax())
    probabilities = (scores / sampling.temperature).softmax(-1)
    values, order = probabilities.sort(descending=True)
    outside = values.cumsum(-1) - values >= sampling.top_p  # the first token always stays
    values = values.masked_fill(outside, 0.0)
    return int(order[torch.multinomial(values, 1, generator=draw)])


def collect(prompt: str, weights: dict[str, float], steps: Sequence[TokenStep], text: str, stopped: str) -> Generation:
    """Return the continuation that steps make up."""
    radii = [step.radius for step in steps]
    known: Any = min(radii) if radii and all(radius is not None for radius in radii) else None  # type: ignore[type-var]
    return Generation(prompt, text, weights, list(steps), known, stopped)
