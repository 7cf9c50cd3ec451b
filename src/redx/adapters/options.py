"""The options of generation, listed once; every method that continues texts takes them as parameters of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from redx.adapters.generation import Sampling

Weights = Mapping[str, float] | Sequence[float] | Tensor
Self = TypeVar("Self")
Subject = TypeVar("Subject")
Options = TypeVar("Options")
Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


@dataclass(frozen=True)
class GenerationOptions:
    """How texts are continued.

    Attributes
    ----------
    max_new_tokens
        Largest number of tokens to generate.
    rule
        `red` (routed), `base`, `fixed` (equal weights) or `sum` (every residual in full).
    weights
        Weights of the adapters, by name or in their order; by default the router reads the prompt.
    temperature, top_p, seed
        As in `Sampling`; a temperature of 0 is greedy.
    top
        Run only the adapters with this many largest weights, which is faster; there are no radii then.
    stop
        Texts that end the continuation.
    chat
        Whether the prompt is put into the chat template of the model.
    """

    max_new_tokens: int = 64
    rule: str = "red"
    weights: Weights | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top: int | None = None
    stop: Sequence[str] = ()
    chat: bool = False

    @property
    def sampling(self) -> Sampling:
        """How the next token is chosen."""
        return Sampling(self.temperature, self.top_p, self.seed)


def expand_options(
    options: Callable[Parameters, Options],
) -> Callable[[Callable[[Self, Subject, Options], Result]], Callable[Concatenate[Self, Subject, Parameters], Result]]:
    """Return a decorator that gives a method the parameters of a class of options in place of its last parameter.

    Parameters
    ----------
    options
        The class, whose fields become parameters with their names, order and defaults.
    """

    def decorate(
        method: Callable[[Self, Subject, Options], Result],
    ) -> Callable[Concatenate[Self, Subject, Parameters], Result]:
        first = list(signature(method).parameters.values())[:2]
        shown = signature(method).replace(parameters=[*first, *signature(options).parameters.values()])

        @wraps(method)
        def call(*args: Any, **named: Any) -> Result:
            given = shown.bind(*args, **named)
            return method(given.args[0], given.args[1], options(*given.args[2:], **given.kwargs))

        call.__signature__ = shown  # type: ignore[attr-defined]
        return call

    return decorate
