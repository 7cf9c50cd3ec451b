"""The pointer decomposer: exact on what it should know, and well-formed whatever it is given."""

from __future__ import annotations

import random

import pytest
import torch

from redx.errors import RedxError
from redx.tasks.arithmetic.decomposers.pointer import PointerDecomposer
from redx.tasks.arithmetic.program import Program, Step
from redx.tasks.arithmetic.sentences import SOURCES, render, sample
from redx.tasks.arithmetic.tokens import tokens

PIECES = """12 5 3 0 100 101 -5 3.5 7 twelve twenty-one hundred plus minus + - − × / ( ) ? . , and add to from take away
9-year-old subtract less than times half x1 1e5 ² ½ ٣ \x00 \u202e 💥 __import__('os').system('ls') {} %s <b>"""


@pytest.fixture(scope="session")
def pointer() -> PointerDecomposer:
    return PointerDecomposer.train(0, samples=8_000)


def exact(pointer: PointerDecomposer, lengths: tuple[int, ...], source: str, style: str, total: int = 300) -> float:
    draw = random.Random(f"{lengths}/{source}/{style}")
    programs = [sample(draw, draw.choice(lengths)) for _ in range(total)]
    decomposed = pointer.decompose([render(program, draw, source, style) for program in programs])
    return sum(one == other for one, other in zip(decomposed, programs, strict=True)) / total


def test_plain_questions_of_any_length_are_exact(pointer: PointerDecomposer) -> None:
    assert exact(pointer, (1, 2, 3, 4), "train", "plain") == 1
    assert exact(pointer, (5, 6, 7, 8), "train", "plain") == 1


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("style", ["paraphrase", "story", "distractor"])
def test_it_understands_other_wordings(pointer: PointerDecomposer, source: str, style: str) -> None:
    assert exact(pointer, (2, 3, 4), source, style) > 0.7  # hardly trained: the figures of a full training are higher


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("12 plus 5 minus 3", Program(12, (Step("+", 5), Step("-", 3)))),
        ("12 − 5", Program(12, (Step("-", 5),))),
        ("Subtract 3 from 12, then add 5.", Program(12, (Step("-", 3), Step("+", 5)))),
        ("What is twelve plus twenty-one?", Program(12, (Step("+", 21),))),
        ("7 plus 7 minus 7", Program(7, (Step("+", 7), Step("-", 7)))),
    ],
)
def test_it_copies_the_operands(pointer: PointerDecomposer, text: str, program: Program) -> None:
    assert pointer.decompose([text]) == [program]


def test_a_text_that_cannot_be_read_yields_its_refusal_in_its_place(pointer: PointerDecomposer) -> None:
    first, empty, last, times = pointer.decompose(["1 plus 2", "", "4 minus 3", "3 times 4"])
    assert (str(first), str(last)) == ("Step 1: 1 + 2 = x1\nAnswer: x1", "Step 1: 4 - 3 = x1\nAnswer: x1")
    assert isinstance(empty, RedxError)
    assert isinstance(times, RedxError)
    assert pointer.decompose([]) == []


def test_company_changes_no_answer(pointer: PointerDecomposer) -> None:
    draw = random.Random(3)
    texts = [render(sample(draw, draw.randint(1, 8)), draw) for _ in range(60)]
    assert pointer.decompose(texts) == [pointer.decompose([text])[0] for text in texts]


def test_values_do_not_matter(pointer: PointerDecomposer) -> None:
    draw = random.Random(4)
    for _ in range(50):
        text = render(sample(draw, 3), draw, style="paraphrase")
        if any(letter.isdigit() for letter in text):
            before = [token.value for token in tokens(text) if token.value is not None]
            other = "".join("8" if letter.isdigit() else letter for letter in text)
            (one,), (two,) = pointer.decompose([text]), pointer.decompose([other])
            assert isinstance(one, Program)
            assert isinstance(two, Program)
            assert [operator for operator, _ in one.steps] == [operator for operator, _ in two.steps], before


@pytest.mark.parametrize("trained", [True, False])
def test_nothing_malformed_comes_out(pointer: PointerDecomposer, trained: bool) -> None:
    """Ten thousand random and adversarial inputs, read by a trained network and by noise."""
    draw = random.Random(5)
    noise = torch.Generator().manual_seed(5)
    own = pointer.tensors()
    wild = {
        name: torch.randn(old.shape, generator=noise) if old.is_floating_point() else old for name, old in own.items()
    }
    reader = pointer if trained else PointerDecomposer.from_tensors(wild)
    texts = [" ".join(draw.choices(PIECES.split(), k=draw.randint(0, 14))) for _ in range(4_000)]
    texts += ["".join(draw.choices(" 0123456789+-.,ab", k=draw.randint(0, 30))) for _ in range(500)]
    texts += ["".join(map(chr, draw.choices(range(0x3000), k=draw.randint(0, 40)))) for _ in range(490)]
    texts += [
        "1 " * 1000,
        "1+" * 999 + "1",
        "1 2 " * 100,
        "plus " * 300,
        "1" * 2000,
        "9" * 100_000,
        "x" * 100_000,
        "- 1 -",
    ]
    for text, decomposed in zip(texts, reader.decompose(texts), strict=True):
        if isinstance(decomposed, RedxError):
            with pytest.raises(RedxError):
                tokens(text)
            continue
        assert Program.parse(str(decomposed)) == decomposed
        numbers = [token.value for token in tokens(text) if token.value is not None]
        for operand in decomposed.operands:  # every number of the text is used at most once
            numbers.remove(operand)


def test_the_same_seed_gives_the_same_network() -> None:
    one, two, other = (PointerDecomposer.train(seed, samples=200).tensors() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["query"], other["query"])


def test_it_can_be_saved(pointer: PointerDecomposer) -> None:
    from safetensors.torch import load, save

    again = PointerDecomposer.from_tensors(load(save(pointer.tensors())))
    texts = ["12 plus 5 minus 3", "Add 5 to 12, then subtract 3."]
    assert again.decompose(texts) == pointer.decompose(texts)


def test_other_tensors_are_refused(pointer: PointerDecomposer) -> None:
    own = pointer.tensors()
    fewer = {name: tensor for name, tensor in own.items() if name != "query"}
    for wrong in ({}, fewer, own | {"query": torch.zeros(2, 2)}, own | {"vocabulary": torch.zeros(3)}):
        with pytest.raises(RedxError, match="no pointer decomposer"):
            PointerDecomposer.from_tensors(wrong)
