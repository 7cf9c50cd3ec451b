"""Writes programs as sentences, from two separate files of templates: one for training, one held out.

A template is `first | plus | minus | end`, optionally with `| again` for an operator that repeats. A sentence is built
from left to right: the text of a step is appended to the sentence so far, or put around it where the text contains {x},
so one template serves programs of any length. `templates/train.txt` explains the placeholders.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

from redx.tasks.arithmetic.program import Program, Step
from redx.tasks.arithmetic.tokens import LARGEST, NUMBERS

SOURCES = ("train", "held_out")  # files of templates
STYLES = ("plain", "paraphrase", "story", "distractor")
BUSY = 0.5  # share of mixed sentences with distractors that get asides
ASIDES = 0.5  # share of the parts of such a sentence that may get one

_SLOT = re.compile(r"\{(\w+)\}")
_RANDOM_WORD = re.compile(r"\{w\}")
_CONSONANTS = "bcdfghjklmnpqrtvwz"  # letters of random words, which therefore mean nothing
_SPACES = re.compile(r" +( |[.,;:)])")  # left over by an empty choice
_CHOICE = re.compile(r"<([^<>]*)>")
_ASIDE_SLOTS = ("aside", "aside", "remark", "owner", "beside")
_INSERTED_AFTER = {  # what an aside within a part follows: a name or a noun that no number follows
    "owner": re.compile(r"\{name\}(?= +[^ {])"),
    "beside": re.compile(r"\{[ab]\} \{noun\}(?! *\{)"),
}
_MARK = 0xE000  # operands and distractors are private characters until a sentence is complete
_MARKED = re.compile("[\ue000-\uf8ff]")
_ADJACENT = re.compile("[\ue000-\uf8ff] [\ue000-\uf8ff]")  # spelled out, they would be read as one number
_DISTRACTOR = "\uf8ff"
_WORDS = {value: word for word, value in NUMBERS.items()} | {100: "one hundred"}


@dataclass(frozen=True)
class Frame:
    """One template; a frame without steps is put around a sentence of another style."""

    first: str
    plus: str = ""
    minus: str = ""
    end: str = ""
    again: str = ""


@dataclass(frozen=True)
class Language:
    """The templates and word lists of one file.

    Parameters
    ----------
    frames
        Templates by style.
    words
        Words by slot; a name is followed by its pronoun, as in "Anna she".
    """

    frames: dict[str, tuple[Frame, ...]]
    words: dict[str, tuple[str, ...]]

    @cached_property
    def rows(self) -> dict[str, tuple[Frame, ...]]:
        """The templates by style whose parts can be mixed with those of others."""
        return {style: tuple(filter(_is_row, frames)) for style, frames in self.frames.items()}


@cache
def language(source: str = "train") -> Language:
    """Return the templates of one file: 'train' or 'held_out'."""
    text = (resources.files("redx.tasks.arithmetic") / "templates" / f"{source}.txt").read_text(encoding="utf-8")
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            sections[line.strip("[]")] = lines = []
        elif line.strip() and not line.startswith("#"):
            lines.append(line)
    frames = {style: tuple(_parse_frame(line) for line in sections.pop(style)) for style in STYLES}
    return Language(frames, {slot: tuple(lines) for slot, lines in sections.items()})


def render(program: Program, draw: random.Random, source: str = "train", style: str | None = None) -> str:
    """Return a random sentence that asks for a program, in this style or in any."""
    return write(program, draw, language(source), style)[0]


def write(
    program: Program, draw: random.Random, words: Language, style: str | None = None, mixed: bool = False
) -> tuple[str, list[int]]:
    """Return a random sentence that asks for a program, and what its numbers are.

    Parameters
    ----------
    program
        The program.
    draw
        Source of random numbers.
    words
        Templates and word lists.
    style
        One of `STYLES`; None for any.
    mixed
        Whether steps and end may come from several templates of the style, with asides that contain more distractors
        between and within them. Such sentences have rough grammar and great variety.

    Returns
    -------
    tuple of str and list of int
        The sentence; and for every number in it the index of its operand in the program, or -1 for a distractor.
    """
    text = _compose(program.steps, draw, words, style or draw.choice(STYLES), mixed)
    marks: list[str] = _MARKED.findall(text)
    values = [_value(mark, program, draw) for mark in marks]
    digits = max(values) > LARGEST or set(text) & set("+-−–") or _ADJACENT.search(text)  # signs go with digits
    spelled = not digits and draw.random() < 0.25
    dash = draw.choice("- ")
    numbers = iter([spell(value, dash) if spelled else str(value) for value in values])
    text = _MARKED.sub(lambda _: next(numbers), text)
    return text[0].upper() + text[1:], [-1 if mark == _DISTRACTOR else ord(mark) - _MARK for mark in marks]


def spell(value: int, dash: str = "-") -> str:
    """Return a number up to a hundred in words."""
    return _WORDS.get(value) or f"{_WORDS[value - value % 10]}{dash}{_WORDS[value % 10]}"


def sample(draw: random.Random, steps: int) -> Program:
    """Return a random program whose results are 2 to 50; operands are 1 to 50, the first one sometimes up to 99."""
    first = result = draw.randint(2, 50) if draw.random() < 0.9 else draw.randint(51, 99)
    chain = []
    for _ in range(steps):
        plus = result < 50 and (result < 3 or draw.random() < 0.5)
        operand = draw.randint(1, 50 - result) if plus else draw.randint(max(1, result - 50), min(50, result - 2))
        result += operand if plus else -operand
        chain.append(Step("+" if plus else "-", operand))
    return Program(first, tuple(chain))


def _parse_frame(line: str) -> Frame:
    return Frame(*(part.strip() for part in line.split("|")))


def _compose(
    steps: Sequence[Step], draw: random.Random, words: Language, style: str, mixed: bool, busy: bool = False
) -> str:
    """Return a complete sentence with marks for its numbers; a busy one contains asides."""
    if mixed and style == "distractor" and "aside" in words.words and draw.random() < BUSY:
        busy, mixed, style = True, draw.random() < 0.5, draw.choice(STYLES[1:])
    frame = draw.choice(words.frames[style])
    if not frame.plus:  # a distractor around another sentence
        inner = _compose(steps, draw, words, draw.choice([other for other in STYLES if other != style]), mixed, busy)
        closed = inner if inner[-1] in ".?!" else f"{inner}."
        return _join(closed, _fill(frame.first, draw, words))
    sources = words.rows[style] if mixed and _is_row(frame) else (frame,)
    busy = busy and _is_row(frame) and style != "plain"

    def part(text: str) -> str:
        text = _choose(text, draw, words)
        return _add_aside(text, draw, words) if busy and draw.random() < ASIDES else text

    starts = frame.first.split(" ~ ")
    has_first_step = len(starts) == 2  # the start contains the first step, for plus and for minus
    text = part(starts[has_first_step and steps[0].operator == "-"]).replace("{a}", chr(_MARK))
    last_operator = ""
    for number, (operator, _) in enumerate(steps, 1):
        if not (has_first_step and number == 1):
            source = draw.choice(sources)
            repeats = frame.again and operator == last_operator and draw.random() < 0.5
            text = _join(text, part(frame.again if repeats else source.plus if operator == "+" else source.minus))
        text = text.replace("{b}", chr(_MARK + number))
        last_operator = operator
    return _fill(_join(text, part(draw.choice(sources).end)), draw, words)


def _is_row(frame: Frame) -> bool:
    """Return whether the parts of a template follow one another, so that they can be mixed with those of others."""
    return frame.plus != "" and "{x}" not in frame.plus + frame.end


def _add_aside(part: str, draw: random.Random, words: Language) -> str:
    """Return a part with a number that does not count, before it or within it, where it fits."""
    slot = draw.choice(_ASIDE_SLOTS)
    aside = _choose(f"{{{slot}}}", draw, words)
    mark = part[:1] if part[:1] in ".,;:" else ""
    if slot in _INSERTED_AFTER:
        return _INSERTED_AFTER[slot].sub(rf"\g<0> {aside}", part, count=1)
    if slot == "remark":
        return f". {aside}{part}" if mark == "." else part
    if mark and draw.random() < 0.5:
        return f"{aside}{part}"
    return f"{mark} {aside}, {part[len(mark) :].strip()}".lstrip().rstrip(" ,")


def _join(text: str, part: str) -> str:
    """Return the text with a part around it or after it, with a space unless punctuation follows."""
    if "{x}" in part:
        return part.replace("{x}", text)
    return f"{text}{'' if part[:1] in '.,;:?!' else ' '}{part}"


def _choose(text: str, draw: random.Random, words: Language) -> str:
    """Return the text with one entry of every list, whether the list has a name or is written in the text."""
    text = _SLOT.sub(lambda match: draw.choice(words.words.get(match[1], (match[0],))), text)
    return _CHOICE.sub(lambda match: draw.choice(match[1].split("/")), text)


def _fill(text: str, draw: random.Random, words: Language) -> str:
    """Return the sentence with its name, its two nouns, and a mark for every distractor."""
    name, she = _fill_random_words(draw.choice(words.words["names"]), draw).split()
    noun, other = (_fill_random_words(word, draw) for word in draw.sample(words.words["nouns"], 2))
    slots = {"name": name, "she": she, "She": she.capitalize(), "noun": noun, "other": other, "n": _DISTRACTOR}
    text = _SLOT.sub(lambda match: slots.get(match[1], match[0]), _choose(text, draw, words))
    return _SPACES.sub(r"\1", _fill_random_words(text, draw))


def _fill_random_words(text: str, draw: random.Random) -> str:
    """Return the text with random words for {w}; short ones would occur twice and be learned."""
    return _RANDOM_WORD.sub(lambda _: "".join(draw.choices(_CONSONANTS, k=draw.randint(4, 9))), text)


def _value(mark: str, program: Program, draw: random.Random) -> int:
    """Return the number that a mark stands for; a distractor is random."""
    return draw.randint(1, LARGEST) if mark == _DISTRACTOR else program.operands[ord(mark) - _MARK]
