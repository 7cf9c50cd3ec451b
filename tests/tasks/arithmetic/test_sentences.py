"""The language: every sentence keeps its operands, and the two files of templates stay apart."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redx.tasks.arithmetic.program import Program, Step
from redx.tasks.arithmetic.sentences import SOURCES, STYLES, Frame, Language, language, render, sample, spell, write
from redx.tasks.arithmetic.tokens import LARGEST, NUMBERS, tokens

every_source = pytest.mark.parametrize("source", SOURCES)
every_style = pytest.mark.parametrize("style", STYLES)
steps = st.builds(Step, st.sampled_from("+-"), st.integers(0, LARGEST))
programs = st.builds(Program, st.integers(0, LARGEST), st.lists(steps, min_size=1, max_size=8).map(tuple))


def frames(words: Language) -> list[Frame]:
    return [frame for style in STYLES for frame in words.frames[style]]


def said(words: Language, frame: Frame) -> set[str]:
    """The words of the steps of a template, its lists included."""
    starts = frame.first.split(" ~ ") if " ~ " in frame.first else []
    text = " ".join([frame.plus, frame.minus, frame.again, *starts])
    for slot, lines in words.words.items():
        text = text.replace(f"{{{slot}}}", " ".join(lines))
    return set(re.findall(r"[a-z]+|[+−-]", re.sub(r"\{\w+\}", "", text).casefold()))


@every_source
@every_style
@given(program=programs, seed=st.integers(), mixed=st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_sentence_keeps_its_operands(source: str, style: str, program: Program, seed: int, mixed: bool) -> None:
    text, order = write(program, random.Random(seed), language(source), style, mixed)
    numbers = [token.value for token in tokens(text) if token.kind == "number"]
    assert len(numbers) == len(order), text
    assert sorted(position for position in order if position >= 0) == list(range(len(program.operands)))
    assert all(
        program.operands[position] == value for value, position in zip(numbers, order, strict=True) if position >= 0
    )
    assert not set("{}<>|~") & set(text), text
    assert style == "distractor" or -1 not in order


@every_source
def test_distractors_are_there(source: str) -> None:
    draw = random.Random(0)
    assert all(-1 in write(sample(draw, 3), draw, language(source), "distractor")[1] for _ in range(200))


@every_source
def test_templates_hold_the_slots_they_need_and_no_numbers(source: str) -> None:
    for frame in frames(language(source)):
        if not frame.plus:
            assert frame.first.count("{x}") == 1
            continue
        starts = frame.first.split(" ~ ")
        assert all(start.count("{a}") == 1 and start.count("{b}") == len(starts) - 1 for start in starts), frame
        assert all(step.count("{b}") == 1 for step in (frame.plus, frame.minus)), frame
        for text in (*starts, frame.plus, frame.minus, frame.end, frame.again):
            assert not re.search(r"\d|\{[abn]\} \{[abn]\}", text), frame
            assert not set(re.findall(r"\w+", text.casefold())) & {*NUMBERS, "hundred"}, frame


def test_there_is_variety() -> None:
    least = {"plain": 6, "paraphrase": 80, "story": 140, "distractor": 240}
    assert all(len(language("train").frames[style]) >= count for style, count in least.items())
    assert all(len(language("held_out").frames[style]) >= 4 for style in STYLES)


def test_held_out_templates_are_new() -> None:
    train, held_out = language("train"), language("held_out")
    assert not set(frames(train)) & set(frames(held_out))
    for slot in ("nouns", "names"):
        assert not set(train.words[slot]) & set(held_out.words[slot])


def test_held_out_steps_that_know_no_word_of_training_do_not_exist() -> None:
    """Every step of a held-out template has a word for its operator that training uses in some step."""
    train, held_out = language("train"), language("held_out")
    known = set().union(*(said(train, frame) for frame in frames(train)))
    for frame in frames(held_out):
        for step in filter(None, (frame.plus, frame.minus)):
            assert said(held_out, Frame("", step)) & known, frame


def test_the_plain_form() -> None:
    program = Program(12, (Step("+", 5), Step("-", 3)))
    texts = {render(program, random.Random(seed), style="plain") for seed in range(200)}
    assert {"12 plus 5 minus 3", "What is 12 plus 5 minus 3?", "12 + 5 - 3", "12 + 5 − 3", "12+5-3="} <= texts
    assert "Twelve plus five minus three" in texts


def test_a_made_up_noun_is_the_same_throughout_a_sentence() -> None:
    frame = Frame("{w} {a} {noun}", "and {b} {noun}", "less {b} {noun}", ".")
    words = Language({"story": (frame,)}, {"names": ("Anna she",), "nouns": ("{w}", "{w}")})
    program = Program(12, (Step("+", 5), Step("-", 3)))
    for seed in range(20):
        text, _ = write(program, random.Random(seed), words, "story")
        first, *nouns = re.findall(r"\b[a-z]{4,}\b", re.sub(r"\b(twelve|five|three|less)\b", "", text.casefold()))
        assert len(nouns) == 3, text
        assert {*nouns} == {nouns[0]} != {first}


def test_the_same_draw_gives_the_same_sentence() -> None:
    program = Program(12, (Step("+", 5), Step("-", 3)))
    assert render(program, random.Random(7)) == render(program, random.Random(7))


@given(st.integers(), st.integers(1, 10))
def test_sampled_programs_keep_their_results_in_range(seed: int, count: int) -> None:
    program = sample(random.Random(seed), count)
    assert len(program.steps) == count
    assert all(2 <= result <= 50 for result in program.results())
    assert all(1 <= operand <= 100 for operand in program.operands)


def test_numbers_are_spelled() -> None:
    assert [spell(0), spell(13), spell(40), spell(21), spell(21, " "), spell(100)] == [
        *("zero", "thirteen", "forty", "twenty-one", "twenty one", "one hundred")
    ]
