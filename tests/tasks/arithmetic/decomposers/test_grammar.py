"""The grammar of programs: for any tokenizer it allows every program, and nothing else."""

from __future__ import annotations

import random
import string

import pytest
import torch

from helpers.program_tokenizers import KINDS, by_character, tokenizer_of
from redx.errors import RedxError
from redx.tasks.arithmetic.decomposers.grammar import LIMIT, Constraint, Grammar, State
from redx.tasks.arithmetic.decomposers.language_model import MAX_PROGRAM_TOKENS
from redx.tasks.arithmetic.program import Program, Step
from redx.tasks.arithmetic.sentences import sample


def follow(grammar: Grammar, state: State, text: str) -> State:
    """Return the state after writing a text character by character."""
    for character in text:
        token = grammar.tokenizer.convert_tokens_to_ids(character)
        state = grammar.allowed(state)[token]
    return state


def next_characters(grammar: Grammar, state: State) -> set[str]:
    return {grammar.text([token]) or "end" for token in grammar.allowed(state)}


@pytest.mark.parametrize("tokenizer", KINDS)
def test_every_program_is_allowed(tokenizer: str) -> None:
    grammar, draw = Grammar(tokenizer_of(tokenizer)), random.Random(4)
    for copy in (True, False):
        for steps in (1, 2, 5, LIMIT):
            program = sample(draw, steps)
            state = grammar.start(program.operands, copy)
            ids = grammar.encode(program)
            for token in ids[:-1]:
                assert grammar.end not in grammar.allowed(state)
                state = grammar.allowed(state)[token]
            assert list(grammar.allowed(state)) == ids[-1:] == [grammar.end]
            assert grammar.text(ids) == str(program)


@pytest.mark.parametrize("tokenizer", KINDS)
@pytest.mark.parametrize("copy", [True, False])
def test_a_program_that_never_ends_by_itself_is_ended(tokenizer: str, copy: bool) -> None:
    grammar = Grammar(tokenizer_of(tokenizer))
    state, ids = grammar.start([7] * 40, copy), []
    while ids[-1:] != [grammar.end]:
        allowed = grammar.allowed(state)
        token = max(allowed, key=lambda token: ("A" not in grammar.text([token]), token))
        state = allowed[token]
        ids.append(token)
    assert len(Program.parse(grammar.text(ids)).steps) == LIMIT
    assert len(ids) <= MAX_PROGRAM_TOKENS


def test_operands_are_numbers_of_the_question_and_used_up() -> None:
    grammar = Grammar(by_character())
    start = grammar.start([12, 5], copy=True)
    assert next_characters(grammar, follow(grammar, start, "Step 1: ")) == {"1", "5"}
    state = follow(grammar, start, "Step 1: 12 ")
    assert next_characters(grammar, state) == {"+", "-"}
    assert next_characters(grammar, follow(grammar, state, "+ ")) == {"5"}  # 12 is used up
    done = follow(grammar, state, "+ 5 = x1\n")
    assert next_characters(grammar, done) == {"A"}  # no number is left for another step
    assert next_characters(grammar, follow(grammar, done, "Answer: x1")) == {"end"}
    free = grammar.start([12, 5], copy=False)
    assert next_characters(grammar, follow(grammar, free, "Step 1: ")) == set("0123456789")


def test_programs_are_encoded_and_read_back() -> None:
    program = Program(12, (Step("+", 5), Step("-", 3)))
    for kind in KINDS:
        grammar = Grammar(tokenizer_of(kind))
        ids = grammar.encode(program)
        assert ids[-1] == grammar.end
        assert grammar.text(ids) == str(program)


def test_the_constraint_leaves_only_allowed_tokens() -> None:
    grammar = Grammar(by_character())
    constraint = Constraint(grammar, [grammar.start([12, 5], copy=True)] * 2)
    ids, scores = torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, len(grammar.tokenizer))
    scores[1] = torch.nan  # of a broken model
    for character in "Step 1: ":
        held = constraint(ids, scores)
        token = grammar.tokenizer.convert_tokens_to_ids(character)
        assert held.isfinite().nonzero().tolist() == [[0, token], [1, token]]
        ids = torch.cat([ids, torch.tensor([[token], [token]])], 1)
    assert int(constraint(ids, scores).isfinite().sum()) == 2 * 2  # 1 of 12, or 5


def test_a_tokenizer_that_cannot_write_programs_is_refused() -> None:
    with pytest.raises(RedxError, match="cannot write programs"):
        Grammar(by_character(string.printable.replace("\n", "")))
    tokenizer = by_character()
    tokenizer.eos_token = None
    with pytest.raises(RedxError, match="no end token"):
        Grammar(tokenizer)
