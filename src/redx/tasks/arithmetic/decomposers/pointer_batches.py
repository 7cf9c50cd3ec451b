"""Batches of the pointer decomposer: sentences as tensors, for training and for decoding."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from redx.tasks.arithmetic.decomposers.pointer_network import NUMBER, PAD, UNKNOWN, Texts
from redx.tasks.arithmetic.sentences import Language, sample, write
from redx.tasks.arithmetic.tokens import Token, tokens

STYLE_MIX = ("plain", "paraphrase", "paraphrase", "story", "story", *["distractor"] * 4)  # hard styles more often
MIXED = 0.5  # share of sentences that are mixed from several templates
BATCH = 32
CELLS = 2**18  # words, or pairs of numbers, that are decoded at once
OPERATORS = "+-"

# the words by index; whether they occur once (0), repeatedly (1), or repeatedly and where the text asks (2); and the
# positions of the numbers
Encoded = tuple[list[int], list[int], list[int]]

# tokens of a sentence, indices of its numbers in the order of the program, indices of the operators of its steps
Example = tuple[list[Token], list[int], list[int]]
EncodedExample = tuple[Encoded, list[int], list[int]]


class TrainingBatch(NamedTuple):
    """B sentences with M numbers each, and the S links of their chains.

    Parameters
    ----------
    texts
        The sentences.
    rows
        Where every link starts, as an index into B (1+M) starts and numbers, (S,).
    nexts
        The number that it points at, or the stop, (S,).
    used
        Numbers that the chain has used already, (S, M+1).
    steps
        The number that every operator belongs to, as an index into B M numbers, (S - 2 B,).
    signs
        The operators, (S - 2 B,).
    """

    texts: Texts
    rows: Tensor
    nexts: Tensor
    used: Tensor
    steps: Tensor
    signs: Tensor


def draw_example(draw: random.Random, words: Language) -> Example:
    """Return a random sentence of one to four steps with its program."""
    program = sample(draw, draw.choice((1, 2, 2, 3, 3, 4, 4)))
    text, order = write(program, draw, words, draw.choice(STYLE_MIX), mixed=draw.random() < MIXED)
    chain = [order.index(operand) for operand in range(len(program.operands))]
    return tokens(text), chain, [OPERATORS.index(operator) for operator, _ in program.steps]


def encode_text(text: Sequence[Token], known: dict[int, int]) -> Encoded:
    """Return a sentence for the network; `known` are the indices of words by hash."""
    hashes = [NUMBER if token.value is not None else hash_word(token) for token in text]
    words = [NUMBER if word == NUMBER else known.get(word, UNKNOWN) for word in hashes]
    count = Counter(hashes)
    asked = _words_of_questions(hashes, text)
    again = [0 if word == NUMBER or count[word] < 2 else 1 + (word in asked) for word in hashes]
    return words, again, [index for index, word in enumerate(words) if word == NUMBER]


def hash_word(token: Token) -> int:
    """Return the hash by which the vocabulary knows a word."""
    return crc32(token.text.encode())


def _words_of_questions(hashes: list[int], text: Sequence[Token]) -> set[int]:
    """Return the words of all sentences that ask or contain no number.

    The noun that the operands count is usually among them, the nouns of distractors seldom are.
    """
    asked: set[int] = set()
    start = 0
    for end, token in enumerate(text, 1):
        if token.text in ".?!;:" or end == len(text):
            if token.text == "?" or NUMBER not in hashes[start:end]:
                asked.update(hashes[start:end])
            start = end
    return asked


def training_batches(examples: list[EncodedExample], draw: random.Random) -> list[TrainingBatch]:
    """Return all examples once, in batches of similar lengths, so that there is little padding."""
    order = sorted(examples, key=lambda example: (len(example[0][0]), draw.random()))
    return [_training_batch(order[start : start + BATCH]) for start in range(0, len(order), BATCH)]


def _training_batch(examples: list[EncodedExample]) -> TrainingBatch:
    texts = stack_texts([encoded for encoded, _, _ in examples])
    most = texts[2].shape[1]
    rows: list[int] = []
    nexts: list[int] = []
    used: list[list[bool]] = []
    steps: list[int] = []
    for index, (_, chain, _) in enumerate(examples):
        passed = [False] * (most + 1)
        for here, there in zip([-1, *chain], [*chain, most], strict=True):
            if here >= 0:
                passed[here] = True
            rows.append(index * (most + 1) + here + 1)
            nexts.append(there)
            used.append(passed.copy())
        steps += [index * most + here for here in chain[1:]]
    signs = torch.tensor([sign for _, _, signs in examples for sign in signs])
    return TrainingBatch(texts, torch.tensor(rows), torch.tensor(nexts), torch.tensor(used), torch.tensor(steps), signs)


def stack_texts(batch: Sequence[Encoded]) -> Texts:
    """Return sentences as padded tensors."""
    length = max(len(words) for words, _, _ in batch)
    most = max(len(numbers) for _, _, numbers in batch)
    words = torch.tensor([words + [PAD] * (length - len(words)) for words, _, _ in batch])
    again = torch.tensor([again + [0] * (length - len(again)) for _, again, _ in batch])
    numbers = torch.tensor([numbers + [0] * (most - len(numbers)) for _, _, numbers in batch])
    real = torch.tensor([[True] * len(numbers) + [False] * (most - len(numbers)) for _, _, numbers in batch])
    return words, again, numbers, real


def decoding_batches(texts: list[tuple[int, list[Token]]]) -> Iterator[list[tuple[int, list[Token]]]]:
    """Yield batches of texts, which come sorted by length, such that no batch takes much memory."""
    start = 0
    while start < len(texts):
        stop = start + 1
        while stop < len(texts) and (stop - start) * _cells(texts[stop][1]) < CELLS:
            stop += 1
        yield texts[start:stop]
        start = stop


def _cells(text: list[Token]) -> int:
    return max(16 * len(text), len(text) ** 2 // 4)  # at most every other token is a number
