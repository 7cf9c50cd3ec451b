"""The language: a program becomes a sentence by templates, which live in two files apart, for training and held out.

A template is `first | plus | minus | end` and, where it has one, `| again` for an operator that repeats. It grows from
left to right: each step's frame is put behind the text so far, or around it where the frame holds {x}, so a template
serves programs of any length. `templates/train.txt` explains the placeholders.
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

SOURCES = ("train", "held_out")
STYLES = ("plain", "paraphrase", "story", "distractor")
BUSY = 0.5  # share of mixed sentences with distractors that are filled with asides
ASIDES = 0.5  # share of their parts that may get one

_SLOT = re.compile(r"\{(\w+)\}")
_MADE_UP = re.compile(r"\{w\}")
_CONSONANTS = "bcdfghjklmnpqrtvwz"  # no word of them means anything
_SPACES = re.compile(r" +( |[.,;:)])")  # what an empty choice leaves behind
_CHOICE = re.compile(r"<([^<>]*)>")
_ASIDES = ("aside", "aside", "remark", "owner", "beside")
_WITHIN = {  # where asides go within a part: behind a name or a noun, and no number comes next
    "owner": re.compile(r"\{name\}(?= +[^ {])"),
    "beside": re.compile(r"\{[ab]\} \{noun\}(?! *\{)"),
}
_MARK = 0xE000  # operands and distractors stand in a sentence as private characters until it is complete
_MARKED = re.compile("[\ue000-\uf8ff]")
_TOUCHING = re.compile("[\ue000-\uf8ff] [\ue000-\uf8ff]")  # in words they would be read as one number
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
    """What one file of templates can say."""

    frames: dict[str, tuple[Frame, ...]]  # by style
    words: dict[str, tuple[str, ...]]  # by slot; names carry their pronouns: 'Anna she'

    @cached_property
    def rows(self) -> dict[str, tuple[Frame, ...]]:
        """The frames that can be mixed."""
        return {style: tuple(filter(_is_row, frames)) for style, frames in self.frames.items()}


@cache
def language(source: str = "train") -> Language:
    """The templates of one file: 'train' or 'held_out'."""
    text = (resources.files("redx.tasks.arithmetic") / "templates" / f"{source}.txt").read_text(encoding="utf-8")
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            sections[line.strip("[]")] = lines = []
        elif line.strip() and not line.startswith("#"):
            lines.append(line)
    frames = {style: tuple(_frame(line) for line in sections.pop(style)) for style in STYLES}
    return Language(frames, {slot: tuple(lines) for slot, lines in sections.items()})


def render(program: Program, draw: random.Random, source: str = "train", style: str | None = None) -> str:
    """A sentence that asks for the program, in one of the styles or any."""
    return write(program, draw, language(source), style)[0]


def write(
    program: Program, draw: random.Random, words: Language, style: str | None = None, mixed: bool = False
) -> tuple[str, list[int]]:
    """A sentence, and for every number in it which operand of the program it is; -1 for a distractor.

    A mixed sentence takes its steps and its end from several templates of one style, and asides with more distractors
    may stand between and within them: rough grammar, endless variety.
    """
    text = _compose(program.steps, draw, words, style or draw.choice(STYLES), mixed)
    marks: list[str] = _MARKED.findall(text)
    values = [_value(mark, program, draw) for mark in marks]
    digits = max(values) > LARGEST or set(text) & set("+-−–") or _TOUCHING.search(text)  # signs go with digits
    spelled = not digits and draw.random() < 0.25
    dash = draw.choice("- ")
    surface = iter([spell(value, dash) if spelled else str(value) for value in values])
    text = _MARKED.sub(lambda _: next(surface), text)
    return text[0].upper() + text[1:], [-1 if mark == _DISTRACTOR else ord(mark) - _MARK for mark in marks]


def spell(value: int, dash: str = "-") -> str:
    """A number up to a hundred in words."""
    return _WORDS.get(value) or f"{_WORDS[value - value % 10]}{dash}{_WORDS[value % 10]}"


def sample(draw: random.Random, steps: int) -> Program:
    """A random program whose results stay in 2 to 50; operands are 1 to 50, the first at times up to 100."""
    first = result = draw.randint(2, 50) if draw.random() < 0.9 else draw.randint(51, 99)
    chain = []
    for _ in range(steps):
        plus = result < 50 and (result < 3 or draw.random() < 0.5)
        operand = draw.randint(1, 50 - result) if plus else draw.randint(max(1, result - 50), min(50, result - 2))
        result += operand if plus else -operand
        chain.append(Step("+" if plus else "-", operand))
    return Program(first, tuple(chain))


def _frame(line: str) -> Frame:
    return Frame(*(part.strip() for part in line.split("|")))


def _compose(
    steps: Sequence[Step], draw: random.Random, words: Language, style: str, mixed: bool, busy: bool = False
) -> str:
    """A complete sentence with marks for its numbers; a busy one holds asides."""
    if mixed and style == "distractor" and "aside" in words.words and draw.random() < BUSY:
        busy, mixed, style = True, draw.random() < 0.5, draw.choice(STYLES[1:])
    frame = draw.choice(words.frames[style])
    if not frame.plus:  # a distractor around another sentence
        inner = _compose(steps, draw, words, draw.choice([other for other in STYLES if other != style]), mixed, busy)
        closed = inner if inner[-1] in ".?!" else f"{inner}."
        return _join(closed, _fill(frame.first, draw, words))
    others = words.rows[style] if mixed and _is_row(frame) else (frame,)
    busy = busy and _is_row(frame) and style != "plain"

    def part(text: str) -> str:
        text = _choose(text, draw, words)
        return _put_aside(text, draw, words) if busy and draw.random() < ASIDES else text

    starts = frame.first.split(" ~ ")
    baked = len(starts) == 2  # the first step is part of the start
    text = part(starts[baked and steps[0].operator == "-"]).replace("{a}", chr(_MARK))
    before = ""
    for place, (operator, _) in enumerate(steps, 1):
        if not (baked and place == 1):
            source = draw.choice(others)
            repeats = frame.again and operator == before and draw.random() < 0.5
            text = _join(text, part(frame.again if repeats else source.plus if operator == "+" else source.minus))
        text = text.replace("{b}", chr(_MARK + place))
        before = operator
    return _fill(_join(text, part(draw.choice(others).end)), draw, words)


def _is_row(frame: Frame) -> bool:
    """Whether its parts stand one behind the other."""
    return frame.plus != "" and "{x}" not in frame.plus + frame.end


def _put_aside(part: str, draw: random.Random, words: Language) -> str:
    """A number that does not count, where it fits: behind the text so far, before this part or within it."""
    slot = draw.choice(_ASIDES)
    aside = _choose(f"{{{slot}}}", draw, words)
    mark = part[:1] if part[:1] in ".,;:" else ""
    if slot in _WITHIN:
        return _WITHIN[slot].sub(rf"\g<0> {aside}", part, count=1)
    if slot == "remark":
        return f". {aside}{part}" if mark == "." else part
    if mark and draw.random() < 0.5:
        return f"{aside}{part}"
    return f"{mark} {aside}, {part[len(mark) :].strip()}".lstrip().rstrip(" ,")


def _join(text: str, frame: str) -> str:
    """Put a frame around the text or behind it, with a space unless punctuation follows."""
    if "{x}" in frame:
        return frame.replace("{x}", text)
    return f"{text}{'' if frame[:1] in '.,;:?!' else ' '}{frame}"


def _choose(text: str, draw: random.Random, words: Language) -> str:
    """Draw one of every list, be it named or on the spot."""
    text = _SLOT.sub(lambda match: draw.choice(words.words.get(match[1], (match[0],))), text)
    return _CHOICE.sub(lambda match: draw.choice(match[1].split("/")), text)


def _fill(text: str, draw: random.Random, words: Language) -> str:
    """One name and two nouns a sentence, and a mark for every distractor."""
    name, she = _make_up(draw.choice(words.words["names"]), draw).split()
    noun, other = (_make_up(one, draw) for one in draw.sample(words.words["nouns"], 2))
    once = {"name": name, "she": she, "She": she.capitalize(), "noun": noun, "other": other, "n": _DISTRACTOR}
    text = _SLOT.sub(lambda match: once.get(match[1], match[0]), _choose(text, draw, words))
    return _SPACES.sub(r"\1", _make_up(text, draw))


def _make_up(text: str, draw: random.Random) -> str:
    """Put a new word wherever one is asked for; short ones would be met again and learned."""
    return _MADE_UP.sub(lambda _: "".join(draw.choices(_CONSONANTS, k=draw.randint(4, 9))), text)


def _value(mark: str, program: Program, draw: random.Random) -> int:
    return draw.randint(1, LARGEST) if mark == _DISTRACTOR else program.operands[ord(mark) - _MARK]
