"""A text that a request asks for: what is continued, how, and who is given its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from redx.adapters.base import BaseLM
from redx.adapters.documents import tokenise
from redx.adapters.options import GenerationOptions
from redx.adapters.running import NextToken, RunningText
from redx.endpoint.errors import ApiError
from redx.endpoint.models import ROUTED, find_model

LONGEST = 64  # characters of a token at most, so that a prompt that is too long need not be tokenised

Event = NextToken | Exception


@dataclass(eq=False)
class Job:
    """A text to continue.

    Attributes
    ----------
    model
        What the request calls the model.
    prompt
        The text; or messages, which the chat template of the base turns into one.
    options
        How it is continued; without weights the model decides them.
    fill
        Continue to the end of the context, by at most as many tokens as the options say.
    alternatives
        How many of the most probable tokens are told.
    deliver
        Is given every token, in the engine's thread, or the error that ended the text.
    """

    model: str
    prompt: Callable[[BaseLM], str]
    options: GenerationOptions
    deliver: Callable[[Event], None]
    fill: bool = False
    alternatives: int = 0
    cancelled: bool = False
    ready: tuple[Tensor, GenerationOptions] | None = None  # tokens of the prompt, and the options of its model
    text: RunningText | None = None
    weights: dict[str, float] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)

    @property
    def active(self) -> list[str]:
        """The adapters that run and have a weight."""
        rows = () if self.text is None else self.text.rows
        return [name for name in rows if name is not None and self.weights[name]]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, once it was read."""
        return 0 if self.text is None else len(self.text.prompt)


def prepare(job: Job, base: BaseLM, names: Sequence[str], top: int | None) -> tuple[Tensor, GenerationOptions]:
    """Return the tokens of a prompt and the options of its model, or refuse what cannot be continued.

    Parameters
    ----------
    job
        The text.
    base, names
        The model, and the names of its adapters.
    top
        How many adapters the routed model runs where the request does not say.
    """
    options, tokens = _options(job, names, top), _tokens(job, base)
    if job.fill:
        room = min(options.max_new_tokens, base.context - len(tokens))
        options = replace(options, max_new_tokens=max(1, room))
    if len(tokens) + options.max_new_tokens > base.context:
        raise _too_long(job, base, f"{len(tokens)} tokens, and with {options.max_new_tokens} new ones")
    return tokens, options


def _options(job: Job, names: Sequence[str], top: int | None) -> GenerationOptions:
    found = find_model(job.model, names)
    if found == ROUTED:
        return replace(job.options, top=top) if job.options.top is None else job.options
    if job.options.weights is not None or job.options.top is not None:
        raise ApiError(400, f"Weights and top belong to the model {ROUTED!r}; leave them out.", "redx")
    return replace(job.options, weights={} if found is None else {found: 1.0}, top=1)


def _tokens(job: Job, base: BaseLM) -> Tensor:
    prompt = job.prompt(base)
    if len(prompt) > LONGEST * base.context:
        raise _too_long(job, base, f"{len(prompt):,} characters, and")
    if not prompt.strip():
        raise ApiError(400, "The prompt is empty; write something to continue.", "prompt")
    return torch.tensor(tokenise([prompt], base.tokenizer)[0])


def _too_long(job: Job, base: BaseLM, size: str) -> ApiError:
    return ApiError(
        400,
        f"The prompt has {size} that is more than the {base.context} tokens that the model reads; shorten it, or lower "
        "max_tokens.",
        "messages" if job.fill else "prompt",
        "context_length_exceeded",
    )
