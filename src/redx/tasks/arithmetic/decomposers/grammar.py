"""The grammar of programs, character by character, for the tokens of any language model.

A token is allowed where its characters continue a well-formed program. With `copy`, operands are numbers of the
question, at most as often as they occur there.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redx.errors import RedxError
from redx.tasks.arithmetic.program import Program
from redx.tasks.arithmetic.tokens import LARGEST

LIMIT = 12  # steps of a program at most
_ALPHABET = frozenset(string.digits + "Step Answer: x + - =\n")


class State(NamedTuple):
    """How far the text of a program is written.

    Parameters
    ----------
    part
        The part that is being written: "first", "step", "next" or "end".
    step
        Number of the current step.
    numbers
        Numbers that may still be operands; None for any number, any number of times.
    typed
        The beginning of the part that is written already.
    """

    part: str
    step: int
    numbers: tuple[int, ...] | None
    typed: str = ""


class Grammar:
    """Computes which tokens of one tokenizer continue a well-formed program.

    Parameters
    ----------
    tokenizer
        A tokenizer of transformers that has an end token and can write programs character by character.
    """

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.eos_token_id is None:
            raise RedxError("This tokenizer has no end token; set its eos_token, or give another backbone.")
        self.tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id
        self._ids_by_text: dict[str, list[int]] = {}
        self._text_of: dict[int, str] = {}
        self._prefixes: set[str] = set()
        for token, text in _token_texts(tokenizer):
            if text and set(text) <= _ALPHABET:
                self._text_of[token] = text
                self._ids_by_text.setdefault(text, []).append(token)
                self._prefixes.update(text[:size] for size in range(1, len(text) + 1))
        if not set(self._ids_by_text) >= _ALPHABET:  # otherwise a program could have no next token
            raise RedxError("This tokenizer cannot write programs character by character; give another backbone.")
        self.allowed: Callable[[State], dict[int, State]] = lru_cache(2**13)(self._allowed)

    def start(self, numbers: Sequence[int], copy: bool) -> State:
        """Return the state before the first token; with `copy`, only these numbers may be operands."""
        return State("first", 1, tuple(sorted(numbers)) if copy else None)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of tokens; tokens that no program contains have an empty text."""
        return "".join(self._text_of.get(token, "") for token in ids)

    def encode(self, program: Program) -> list[int]:
        """Return the tokens of a program and the end token; where the tokenizer changes the text, by character."""
        for before in ("\n", ""):  # some tokenizers put a space first; others join a line break and a word
            skipped, whole = (
                tokenise(self.tokenizer, text, add_special_tokens=False) for text in (before, f"{before}{program}")
            )
            ids = whole[len(skipped) :]
            if self.text(ids) == str(program):
                return [*ids, self.end]
        return [*(self._ids_by_text[letter][0] for letter in str(program)), self.end]

    def _allowed(self, state: State) -> dict[int, State]:
        """Return every token that may come next, with the state after it."""
        if state.part == "end":
            return {self.end: state}
        allowed: dict[int, State] = {}
        paths = [("", state)]
        while paths:
            text, here = paths.pop()
            for letter, there in _next_characters(here).items():
                if (longer := text + letter) in self._prefixes:
                    allowed |= dict.fromkeys(self._ids_by_text.get(longer, ()), there)
                    paths.append((longer, there))
        return allowed


def _next_characters(state: State) -> dict[str, State]:
    """Return every character that may come next, with the state after it."""
    size = len(state.typed) + 1
    return {
        part[size - 1]: there if size == len(part) else state._replace(typed=part[:size])
        for part, there in _next_parts(state).items()
        if part.startswith(state.typed)
    }


def _next_parts(state: State) -> dict[str, State]:
    """Return every part of a program that may come next, with the state after it; none is a prefix of another."""
    part, step, numbers, _ = state
    if part == "end":
        return {}
    if part == "next":
        parts = {f"Answer: x{step}": State("end", step, ())}
        if numbers != () and step < LIMIT:
            parts[f"Step {step + 1}: x{step} "] = State("step", step + 1, numbers)
        return parts
    remaining = {number: _without(numbers, number) for number in (range(LARGEST + 1) if numbers is None else numbers)}
    if part == "first":
        return {f"Step 1: {number} ": State("step", 1, left) for number, left in remaining.items()}
    return {
        f"{operator} {number} = x{step}\n": State("next", step, left)
        for operator in "+-"
        for number, left in remaining.items()
    }


def _without(numbers: tuple[int, ...] | None, number: int) -> tuple[int, ...] | None:
    """Return the numbers that may be operands after this one was used."""
    if numbers is None:
        return None
    index = numbers.index(number)
    return numbers[:index] + numbers[index + 1 :]


class Constraint:
    """A logits processor for one batch: tokens that would break the grammar get the score -∞.

    Parameters
    ----------
    grammar
        The grammar for the tokenizer.
    starts
        The first state of every text of the batch.
    """

    def __init__(self, grammar: Grammar, starts: Sequence[State]) -> None:
        self._grammar = grammar
        self._allowed = [grammar.allowed(start) for start in starts]
        self._started = False

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores of the next token, (B, V), constrained by the tokens so far, (B, T)."""
        if self._started:
            last = input_ids[:, -1].tolist()
            self._allowed = [self._grammar.allowed(row[token]) for row, token in zip(self._allowed, last, strict=True)]
        self._started = True
        rows = [row for row, allowed in enumerate(self._allowed) for _ in allowed]
        ids = [token for allowed in self._allowed for token in allowed]
        constrained = torch.full_like(scores, -torch.inf)
        constrained[rows, ids] = scores[rows, ids].nan_to_num()  # NaN scores of a broken model could not be compared
        return constrained


def _token_texts(tokenizer: Any) -> Iterator[tuple[int, str]]:
    """Yield every token that is not special, with its text within a longer text."""

    def decode(*ids: int) -> str:
        return tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)

    before = tokenise(tokenizer, "x", add_special_tokens=False)[-1]  # at the start of a text, a space may be lost
    size = len(decode(before))
    special = set(tokenizer.all_special_ids)
    for token in range(len(tokenizer)):
        if token not in special:
            yield token, decode(before, token)[size:]


def tokenise(tokenizer: Any, text: str, **options: bool) -> list[int]:
    """Return the tokens of a text, never cut or padded, whatever the tokenizer's own file says."""
    return tokenizer(text, truncation=False, padding=False, **options)["input_ids"]
