"""Texts that are continued together: each joins and leaves the batch between two tokens, with adapters of its own.

Every text has a row for the base and for each adapter that it needs. All rows of all texts are one pass of the shared
base, in which every row runs through its own adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from redx.adapters.composed import ComposedLM, get_text_rule
from redx.adapters.generation import choose, compose_rows
from redx.adapters.options import GenerationOptions
from redx.adapters.ragged import RaggedCache, check_cache
from redx.adapters.unfolding import UnfoldingText
from redx.composition.rules import Rule


@dataclass(frozen=True)
class NextToken:
    """A token of a text that is being continued.

    Attributes
    ----------
    token
        Index in the vocabulary.
    text
        The text that can be shown now; a stop text never is.
    logprob
        Its log-probability under the composed scores.
    alternatives
        The most probable tokens with their log-probabilities, as many as were asked for.
    radius
        ε*, as in `TokenStep`.
    stopped
        Why the text ends here: `end`, `stop` or `length`; None while it goes on.
    """

    token: int
    text: str
    logprob: float
    alternatives: list[tuple[int, float]]
    radius: float | None
    stopped: str | None


@dataclass(eq=False)
class RunningText:
    """A text that is being continued.

    Attributes
    ----------
    prompt
        Tokens of the prompt, (T,).
    options
        How it is continued.
    alternatives
        How many of the most probable tokens are told.
    rule, weights, rows
        The rule, the weight of every adapter, (K,), and what is run: None is the base, a name an adapter.
    """

    prompt: Tensor
    options: GenerationOptions
    alternatives: int
    rule: Rule
    weights: Tensor
    rows: tuple[str | None, ...]
    text: UnfoldingText
    draw: torch.Generator
    count: int = field(default=0)
    last: int = field(default=0)

    def take(self, scores: Tensor, radius: float | None, end: int) -> NextToken:
        """Choose the next token by its composed scores, (C,)."""
        token = choose(scores, self.options.sampling, self.draw)
        logprobs = scores.log_softmax(-1)
        self.count, self.last = self.count + 1, token
        full = self.count >= self.options.max_new_tokens
        shown, stop = self.text.add(token, token == end or full)
        best = logprobs.topk(min(self.alternatives, len(logprobs)))
        return NextToken(
            token=token,
            text=shown,
            logprob=float(logprobs[token]),
            alternatives=list(zip(best.indices.tolist(), best.values.tolist(), strict=True)),
            radius=radius,
            stopped="end" if token == end else "stop" if stop else "length" if full else None,
        )


class RunningBatch:
    """The texts that are being continued.

    Parameters
    ----------
    composed
        The model; its adapters must not change while a text is running.
    """

    def __init__(self, composed: ComposedLM) -> None:
        self.composed = composed
        self.texts: list[RunningText] = []
        self._cache = RaggedCache()

    @property
    def rows(self) -> int:
        """The number of rows that run."""
        return len(self._cache.lengths)

    @torch.inference_mode()
    def start(self, prompt: Tensor, options: GenerationOptions, alternatives: int = 0) -> tuple[RunningText, NextToken]:
        """Read a prompt, and let its text join the others.

        Parameters
        ----------
        prompt
            Tokens, (T,).
        options
            How it is continued, by at least one token.
        alternatives
            How many of the most probable tokens are told.

        Returns
        -------
        tuple
            The text, and its first token; a text that ends with it does not join.
        """
        composed, rule = self.composed, get_text_rule(options.rule)
        weights, rows = composed.plan(prompt[None], rule, options.weights, options.top)
        draw = torch.Generator().manual_seed(options.sampling.seed)
        unfolding = UnfoldingText(composed.base.tokenizer, options.stop)
        text = RunningText(prompt, options, alternatives, rule, weights[0], rows[0], unfolding, draw)
        tokens = prompt.expand(len(text.rows), -1)
        output = composed.stack.forward(text.rows, tokens, use_cache=True, logits_to_keep=1)
        check_cache(output.past_key_values, composed.base.name)
        (first,) = self._take([text], output.logits[:, -1])
        if first.stopped is None:
            self._cache.join(output.past_key_values, len(text.rows), len(prompt))
            self.texts.append(text)
        return text, first

    @torch.inference_mode()
    def step(self) -> list[tuple[RunningText, NextToken]]:
        """Continue every text by one token; those that end leave."""
        if not self.texts:
            return []
        names = [name for text in self.texts for name in text.rows]
        tokens = torch.tensor([text.last for text in self.texts for _ in text.rows])[:, None]
        options = self._cache.options(self.composed.base.model.device)
        output = self.composed.stack.forward(names, tokens.to(self.composed.base.model.device), **options)
        taken = list(zip(self.texts, self._take(self.texts, output.logits[:, -1]), strict=True))
        self._keep([text for text, token in taken if token.stopped is None])
        return taken

    def drop(self, texts: Sequence[RunningText]) -> None:
        """Let texts leave before they end."""
        self._keep([text for text in self.texts if text not in texts])

    def _keep(self, texts: list[RunningText]) -> None:
        rows, start = [], 0
        for text in self.texts:
            if text in texts:
                rows += range(start, start + len(text.rows))
            start += len(text.rows)
        self._cache.keep(rows)
        self.texts = texts

    def _take(self, texts: Sequence[RunningText], logits: Tensor) -> list[NextToken]:
        """Return the next token of every text from the logits of all its rows, (B, C)."""
        names, end, start = self.composed.names, self.composed.base.end, 0
        tokens = []
        for text in texts:
            own = logits[start : start + len(text.rows)].clone()[None]  # (1, rows, C)
            start += len(text.rows)
            greedy = text.options.sampling.greedy
            scores, radii, _, _ = compose_rows(own, text.weights[None], text.rule, text.rows, names, greedy)
            tokens.append(text.take(scores[0], None if radii is None else float(radii[0]), end))
        return tokens
