"""The grammar of programs, character by character, for whatever tokens a language model writes them in.

It knows characters, not tokens, so it serves any tokenizer: a token may come when its characters carry on a well-formed
program. With `copy`, operands are numbers of the question, each as often as it stands there.
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
    """Where a program's text stands."""

    part: str  # "first", "step", "next" or "end"
    step: int
    numbers: tuple[int, ...] | None  # what may still be an operand; None: anything, any number of times
    typed: str = ""  # so much of the part


class Grammar:
    """Which tokens keep to the form of a program, for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.eos_token_id is None:
            raise RedxError("This tokenizer has no end token; set its eos_token, or give another backbone.")
        self.tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id
        self._pieces: dict[str, list[int]] = {}  # tokens by their text
        self._texts: dict[int, str] = {}
        self._beginnings: set[str] = set()
        for token, text in _texts(tokenizer):
            if text and set(text) <= _ALPHABET:
                self._texts[token] = text
                self._pieces.setdefault(text, []).append(token)
                self._beginnings.update(text[:size] for size in range(1, len(text) + 1))
        if not set(self._pieces) >= _ALPHABET:  # a program could get stuck
            raise RedxError("This tokenizer cannot write programs character by character; give another backbone.")
        self.allowed: Callable[[State], dict[int, State]] = lru_cache(2**13)(self._allowed)

    def start(self, numbers: Sequence[int], copy: bool) -> State:
        """Nothing is written yet."""
        return State("first", 1, tuple(sorted(numbers)) if copy else None)

    def text(self, ids: Sequence[int]) -> str:
        """What the tokens say; those that no program has in it say nothing."""
        return "".join(self._texts.get(token, "") for token in ids)

    def encode(self, program: Program) -> list[int]:
        """The program's tokens and the end: if need be, one by one its characters."""
        for before in ("\n", ""):  # at the start of a text some tokenizers put a space; others join line break and word
            skipped, whole = (
                tokenise(self.tokenizer, text, add_special_tokens=False) for text in (before, f"{before}{program}")
            )
            ids = whole[len(skipped) :]
            if self.text(ids) == str(program):
                return [*ids, self.end]
        return [*(self._pieces[letter][0] for letter in str(program)), self.end]

    def _allowed(self, state: State) -> dict[int, State]:
        """Every token that may come next, and where it leads."""
        if state.part == "end":
            return {self.end: state}
        found: dict[int, State] = {}
        paths = [("", state)]
        while paths:
            text, here = paths.pop()
            for letter, there in _follow(here).items():
                if (longer := text + letter) in self._beginnings:
                    found |= dict.fromkeys(self._pieces.get(longer, ()), there)
                    paths.append((longer, there))
        return found


def _follow(state: State) -> dict[str, State]:
    """Every character that may come next, and where it leads."""
    size = len(state.typed) + 1
    return {
        part[size - 1]: there if size == len(part) else state._replace(typed=part[:size])
        for part, there in _parts(state).items()
        if part.startswith(state.typed)
    }


def _parts(state: State) -> dict[str, State]:
    """Every part of a program that may be written here, and where it leads; none is the beginning of another."""
    part, step, numbers, _ = state
    if part == "end":
        return {}
    if part == "next":
        parts = {f"Answer: x{step}": State("end", step, ())}
        if numbers != () and step < LIMIT:
            parts[f"Step {step + 1}: x{step} "] = State("step", step + 1, numbers)
        return parts
    rest = {number: _without(numbers, number) for number in (range(LARGEST + 1) if numbers is None else numbers)}
    if part == "first":
        return {f"Step 1: {number} ": State("step", 1, left) for number, left in rest.items()}
    return {
        f"{operator} {number} = x{step}\n": State("next", step, left)
        for operator in "+-"
        for number, left in rest.items()
    }


def _without(numbers: tuple[int, ...] | None, number: int) -> tuple[int, ...] | None:
    if numbers is None:
        return None
    at = numbers.index(number)
    return numbers[:at] + numbers[at + 1 :]


class Constraint:
    """A logits processor for one batch that is being decoded: what breaks the grammar cannot be chosen."""

    def __init__(self, grammar: Grammar, starts: Sequence[State]) -> None:
        self._grammar = grammar
        self._open = [grammar.allowed(start) for start in starts]
        self._begun = False

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The tokens so far, (B, T), and the scores of the next, (B, V), to scores of the same shape."""
        if self._begun:
            last = input_ids[:, -1].tolist()
            self._open = [self._grammar.allowed(row[token]) for row, token in zip(self._open, last, strict=True)]
        self._begun = True
        rows = [row for row, allowed in enumerate(self._open) for _ in allowed]
        ids = [token for allowed in self._open for token in allowed]
        held = torch.full_like(scores, -torch.inf)
        held[rows, ids] = scores[rows, ids].nan_to_num()  # even a broken model's scores can be compared
        return held


def _texts(tokenizer: Any) -> Iterator[tuple[int, str]]:
    """Every token but the special ones, and what it says in the middle of a text."""

    def say(*ids: int) -> str:
        return tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)

    before = tokenise(tokenizer, "x", add_special_tokens=False)[-1]  # at the start of a text, a space may be lost
    size = len(say(before))
    special = set(tokenizer.all_special_ids)
    for token in range(len(tokenizer)):
        if token not in special:
            yield token, say(before, token)[size:]


def tokenise(tokenizer: Any, text: str, **options: bool) -> list[int]:
    # a tokenizer file may ask for cutting and filling up; we never do either
    return tokenizer(text, truncation=False, padding=False, **options)["input_ids"]
