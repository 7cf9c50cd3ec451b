"""Answers in OpenAI's format: whole ones, and the pieces of a stream; the field `redx` holds what only redx knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redx.adapters.generation import HALF
from redx.adapters.running import NextToken
from redx.endpoint.job import Job

FINISHED = {"end": "stop", "stop": "stop", "length": "length"}  # OpenAI's words for why a text ends


@dataclass(eq=False)
class Answer:
    """The answer to one prompt, as far as it has come.

    Attributes
    ----------
    job
        The text in the engine.
    chat
        Whether it is a message of a chat.
    index
        Which prompt of the request it answers.
    decode
        Gives the text of a token.
    logprobs
        Whether log-probabilities are told.
    """

    job: Job
    chat: bool
    index: int
    decode: Any
    logprobs: bool
    tokens: list[NextToken] = field(default_factory=list)
    length: int = 0  # characters so far

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(token.text for token in self.tokens)

    @property
    def finished(self) -> str | None:
        """Why the text has ended, in OpenAI's words; None while it goes on."""
        stopped = self.tokens[-1].stopped if self.tokens else None
        return None if stopped is None else FINISHED[stopped]

    @property
    def radius(self) -> float | None:
        """The smallest radius of the tokens; None where one is not known."""
        radii = [token.radius for token in self.tokens]
        known = [radius for radius in radii if radius is not None]
        return min(known) if known and len(known) == len(radii) else None

    def add(self, token: NextToken) -> dict[str, Any]:
        """Add a token, and return it as a piece of a stream."""
        first, offset = not self.tokens, self.length
        self.tokens.append(token)
        self.length += len(token.text)
        own: dict[str, Any] = {"radius": token.radius}
        if first:
            own |= {"weights": self.job.weights, "active": self.job.active}
        logprobs = self._logprobs([token], offset) if self.logprobs else None
        piece = {"index": self.index, "logprobs": logprobs, "finish_reason": self.finished, "redx": own}
        if not self.chat:
            return {**piece, "text": token.text}
        return {**piece, "delta": {**({"role": "assistant"} if first else {}), "content": token.text}}

    def whole(self) -> dict[str, Any]:
        """Return the answer after its last token."""
        logprobs = self._logprobs(self.tokens, 0) if self.logprobs else None
        own = {
            "weights": self.job.weights,
            "active": self.job.active,
            "radius": self.radius,
            "radii": [token.radius for token in self.tokens],
        }
        content = {"message": {"role": "assistant", "content": self.text}} if self.chat else {"text": self.text}
        return {"index": self.index, **content, "logprobs": logprobs, "finish_reason": self.finished, "redx": own}

    def _logprobs(self, tokens: list[NextToken], offset: int) -> dict[str, Any]:
        if self.chat:
            return {"content": [self._chat_logprob(token) for token in tokens]}
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text)
        return {
            "tokens": [self.decode([token.token]) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self.decode([other]): value for other, value in token.alternatives} for token in tokens],
            "text_offset": offsets,
        }

    def _chat_logprob(self, token: NextToken) -> dict[str, Any]:
        best = [self._named(other, value) for other, value in token.alternatives]
        return {**self._named(token.token, token.logprob), "top_logprobs": best}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.decode([token])
        return {"token": text, "logprob": logprob, "bytes": None if HALF in text else list(text.encode())}


def usage(answers: list[Answer]) -> dict[str, int]:
    """Return how many tokens the prompts and the answers of a request have."""
    prompt = sum(answer.job.prompt_tokens for answer in answers)
    completion = sum(len(answer.tokens) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
