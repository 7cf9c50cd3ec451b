"""Random and adversarial inputs for the decomposer of a run: how many programs come out malformed.

    python benchmarks/malformed.py runs/steps --total 100000

A program is malformed if it does not print and parse back to itself, or uses an operand that the text does not hold (or
holds fewer times). A text that is refused must be refused by the reader, in one sentence.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path

import redx
from redx.errors import RedxError
from redx.tasks.arithmetic.program import Program
from redx.tasks.arithmetic.sentences import SOURCES, render, sample
from redx.tasks.arithmetic.tokens import tokens

PIECES = [
    "12",
    "5",
    "3",
    "0",
    "100",
    "101",
    "-5",
    "3.5",
    "7",
    "twelve",
    "twenty-one",
    "hundred",
    "plus",
    "minus",
    "+",
    "-",
    "−",
    "×",
    "/",
    "(",
    ")",
    "?",
    ".",
    ",",
    "and",
    "add",
    "to",
    "from",
    "take",
    "away",
    "9-year-old",
    "subtract",
    "less",
    "than",
    "times",
    "half",
    "x1",
    "1e5",
    "²",
    "½",
    "٣",
    "\x00",
    "\u202e",
    "💥",
    "__import__('os').system('ls')",
    "{}",
    "%s",
    "<b>",
    "Step",
    "1:",
    "=",
    "Answer:",
    "x2",
    "'''",
    '"""',
    ";",
    "DROP",
    "TABLE",
    "eval(1)",
    "${HOME}",
    "../../etc",
    "\ufeff",
    "１２",
    "四",
    "ⅷ",
    "‒",
    "﹣",
    "﹢",
]
KINDS = ("pieces", "characters", "unicode", "spoiled sentences", "long")


def make(kind: str, draw: random.Random) -> str:
    """One input."""
    if kind == "pieces":
        return " ".join(draw.choices(PIECES, k=draw.randint(0, 14)))
    if kind == "characters":
        return "".join(draw.choices(" 0123456789+-.,ab", k=draw.randint(0, 30)))
    if kind == "unicode":
        return "".join(map(chr, draw.choices([*range(0xD800), *range(0xE000, 0x11000)], k=draw.randint(0, 40))))
    if kind == "long":
        return " ".join(draw.choices(PIECES, k=draw.randint(100, 400)))
    words = render(sample(draw, draw.randint(1, 8)), draw, draw.choice(SOURCES)).split()
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(words) + 1)
        words[place:place] = draw.choice([[draw.choice(PIECES)], words[place : place + 1], []])
        if words and draw.random() < 0.5:
            words.pop(draw.randrange(len(words)))
    return " ".join(words)


def judge(text: str, found: Program | RedxError) -> str:
    """What came out of one input."""
    try:
        read = tokens(text)
    except RedxError:
        return "refused" if isinstance(found, RedxError) else "malformed: should have been refused"
    if isinstance(found, RedxError):
        return "malformed: refused without reason"
    numbers = Counter(token.value for token in read if token.value is not None)
    if Program.parse(str(found)) != found or Counter(found.operands) - numbers:
        return "malformed"
    return "program"


def main() -> None:
    """Print a line a kind of input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--total", type=int, default=100_000)
    given = parser.parse_args()
    extension = redx.load(given.run).extension
    if extension is None:
        raise SystemExit(f"{given.run} has no decomposer; make one with `redx run steps`.")
    decomposer, draw, wrong = extension.load(), random.Random(0), 0
    for kind in KINDS:
        count = given.total // len(KINDS)
        texts = [make(kind, draw) for _ in range(count)]
        found = Counter(judge(text, each) for text, each in zip(texts, decomposer.decompose(texts), strict=True))
        wrong += sum(number for name, number in found.items() if name.startswith("malformed"))
        print(
            f"{kind:18} {count:7,} inputs: " + ", ".join(f"{number:,} {name}" for name, number in found.items()),
            flush=True,
        )
    print(f"malformed programs: {wrong}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
