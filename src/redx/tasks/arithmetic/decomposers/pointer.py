"""The pointer decomposer: a small network that reads words and copies operands by pointing at them.

    x = E[words] + A[said again, asked] every number is the same word: values cannot leak
    x ← x + σ(conv(norm(x)))            over words, then over numbers: it sees only what is near, at any length
    P(j follows i) ∝ exp(q_i · (k_j + r_{j-i}))    over the numbers not yet used, and the stop

The chain starts at a learned node, points at the first operand, and each operand points at the next one until the stop;
whether it is added or subtracted is read off at the operand itself. Every number is used at most once, the stop is
closed until one step is made, and so whatever the (finite) weights are, a well-formed program comes out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from redx.errors import RedxError
from redx.seeding import generator
from redx.tasks.arithmetic.program import Program, Step
from redx.tasks.arithmetic.sentences import Language, language, sample, write
from redx.tasks.arithmetic.tokens import Token, tokens
from redx.training.loop import fit

COMMON = 5  # a word is known when training says it so often; all others are alike
SIZE = 64
DILATIONS = (1, 2)  # of the convolutions over words: six words to either side
NUMBER_LAYERS = 2  # of the convolutions over numbers: two numbers to either side
REACH = 4  # numbers further apart than this look alike
SAMPLES = 32_000
DIET = ("plain", "paraphrase", "paraphrase", "story", "story", *["distractor"] * 4)  # the harder, the more
EPOCHS = 3
BATCH = 32
RATE = 3e-3  # of learning
MIXED = 0.5  # share of sentences that are mixed from several templates
UNHEARD = 0.1  # share of words that training makes unknown
SILENT = 0.2  # share of features that training drops
CELLS = 2**18  # words, or pairs of numbers, that are decoded at once

_PAD, _NUMBER, _UNKNOWN, _KNOWN = range(4)  # words: the known ones follow
_OPERATORS = "+-"

# the words by number, which of them are said once (0), again (1), or again where the text asks (2), and its numbers
Read = tuple[list[int], list[int], list[int]]
Texts = tuple[Tensor, Tensor, Tensor, Tensor]  # a batch of these, and which numbers are no padding
Lesson = tuple[list[Token], list[int], list[int]]  # a text, the chain of its numbers, the operators of its steps


class Course(NamedTuple):
    """A batch of lessons: texts of B sentences with M numbers each, and the S links of their chains."""

    texts: Texts
    rows: Tensor  # (S,) where each link starts, of B (1+M) places
    nexts: Tensor  # (S,) the number it points at, or the stop
    used: Tensor  # (S, M+1) numbers that are behind it
    steps: Tensor  # (S - 2 B,) where each operator is, of B M places
    signs: Tensor  # (S - 2 B,) the operators


class PointerDecomposer:
    """A trained decomposer: texts to programs."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._known = {word: place for place, word in enumerate(tensors["vocabulary"].tolist(), _KNOWN)}

    @classmethod
    def train(cls, seed: int, samples: int = SAMPLES, words: Language | None = None) -> PointerDecomposer:
        """Learn from sentences of one to four steps, made from the training templates."""
        words = words or language("train")
        draw = random.Random(f"{seed}/pointer/sentences")
        lessons = [_lesson(draw, words) for _ in range(samples)]
        said = Counter(_hash(token) for found, _, _ in lessons for token in found if token.value is None)
        vocabulary = torch.tensor(sorted(word for word, count in said.items() if count >= COMMON))
        pointer = cls(_start(vocabulary, generator(seed, "pointer", "start")))
        read = [(pointer._look(found), chain, signs) for found, chain, signs in lessons]
        batches = [batch for _ in range(EPOCHS) for batch in _courses(read, draw)]
        noise = generator(seed, "pointer", "unheard")
        fit(
            [tensor for tensor in pointer._tensors.values() if tensor.requires_grad],
            lambda rows: pointer._loss(batches[int(rows)], noise),
            [len(batches)],
            [generator(seed, "pointer", "batches")],
            title="pointer",
            epochs=1,
            batch=1,
            virtual_batch=1,
            lr=RATE,
            weight_decay=0.01,
            warmup=0.05,
            schedule="cosine",
            clip=1.0,
        )
        return cls({name: tensor.detach() for name, tensor in pointer._tensors.items()})

    def tensors(self) -> dict[str, Tensor]:
        """Everything it has learned, to be saved."""
        return dict(self._tensors)

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> PointerDecomposer:
        """The inverse of `tensors`."""
        vocabulary = tensors.get("vocabulary", torch.empty(0))
        shapes = {name: tensor.shape for name, tensor in _start(vocabulary, generator(0)).items()}
        if vocabulary.dtype != torch.long or {name: tensor.shape for name, tensor in tensors.items()} != shapes:
            raise RedxError("These tensors are no pointer decomposer of this version; train it again with `redx run`.")
        return cls(dict(tensors))

    def decompose(self, texts: Sequence[str]) -> list[Program | RedxError]:
        """A program for every text, or the refusal of a text that cannot be read."""
        answers: list[Program | RedxError] = []
        read: list[tuple[int, list[Token]]] = []
        for place, text in enumerate(texts):
            try:
                read.append((place, tokens(text)))
                answers.append(_UNREAD)
            except RedxError as refusal:
                answers.append(refusal)
        read.sort(key=lambda each: len(each[1]))  # like lengths go together
        for batch in _batches(read):
            values = [[token.value for token in found if token.value is not None] for _, found in batch]
            chains = self._decode([self._look(found) for _, found in batch])
            for (place, _), numbers, (first, *steps) in zip(batch, values, chains, strict=True):
                chain = tuple(Step(_OPERATORS[operator], numbers[at]) for at, operator in steps)
                answers[place] = Program(numbers[first[0]], chain)
        return answers

    def _scores(self, texts: Texts, noise: Generator | None = None) -> tuple[Tensor, Tensor]:
        """Texts with M numbers each -> follows (B, 1+M, M+1) and operators (B, M, 2).

        Row 0 is the start, row 1+i number i; column j is number j, the last column the stop.
        """
        own = self._tensors
        ids, again, spots, held = texts
        x = F.embedding(ids, own["words"]) + F.embedding(again, own["again"])  # (B, T, D)
        mask = (ids != _PAD).unsqueeze(2).float()
        *early, last = enumerate(DILATIONS)
        for layer, dilation in early:
            x = x + self._convolve(x, mask, f"word.{layer}", dilation, noise)
        numbers = x.gather(1, spots.unsqueeze(2).expand(-1, -1, SIZE))  # (B, M, D)
        numbers = numbers + self._convolve(x, mask, f"word.{last[0]}", last[1], noise, spots)
        mask = held.unsqueeze(2).float()
        for layer in range(NUMBER_LAYERS):
            numbers = numbers + self._convolve(numbers, mask, f"number.{layer}", 1, noise)
        numbers = F.layer_norm(numbers, (SIZE,), own["scale"])
        count = len(ids)
        queries = torch.cat([own["start"].expand(count, 1, -1), numbers @ own["query"]], 1)  # (B, 1+M, D)
        keys = torch.cat([numbers @ own["key"], own["stop"].expand(count, 1, -1)], 1)  # (B, M+1, D)
        follows = queries @ keys.transpose(1, 2)  # (B, 1+M, M+1)
        near = queries[:, 1:] @ own["near"].T  # (B, M, 2 REACH + 1)
        order = torch.arange(spots.shape[1])
        apart = (order - order.unsqueeze(1)).clamp(-REACH, REACH) + REACH  # (M, M)
        near = near.gather(2, apart.expand(count, -1, -1))  # (B, M, M)
        follows = follows + F.pad(near, (0, 1, 1, 0))
        closed = F.pad(~held, (0, 1)).unsqueeze(1)  # numbers that are only padding
        return follows.masked_fill(closed, -torch.inf), numbers @ own["operator"]

    def _convolve(
        self, x: Tensor, mask: Tensor, name: str, dilation: int, noise: Generator | None, spots: Tensor | None = None
    ) -> Tensor:
        """What words or numbers (B, T, D) learn from their neighbours, all of them or those at the spots (B, M)."""
        own = self._tensors
        count, length, _ = x.shape
        x = F.layer_norm(x, (SIZE,), own[f"{name}.scale"]) * mask  # padding stays silent
        weight = own[f"{name}.weight"]  # (W D, D)
        width = len(weight) // SIZE
        x = F.pad(x, (0, 0, dilation * (width // 2), dilation * (width // 2)))
        if spots is None:
            x = torch.cat([x[:, dilation * shift :][:, :length] for shift in range(width)], 2)  # (B, T, W D)
        else:
            around = (spots.unsqueeze(2) + dilation * torch.arange(width)).flatten(1)  # (B, M W)
            x = x.gather(1, around.unsqueeze(2).expand(-1, -1, SIZE)).view(count, -1, width * SIZE)  # (B, M, W D)
        y = F.gelu(F.linear(x, weight.T, own[f"{name}.bias"]))
        if noise is None:
            return y
        heard = (torch.rand((count, 1, SIZE), generator=noise) >= SILENT).float()  # alike throughout a text: cheap
        return y * heard.div_(1 - SILENT)

    def _look(self, found: Sequence[Token]) -> Read:
        hashes = [_NUMBER if token.value is not None else _hash(token) for token in found]
        words = [_NUMBER if each == _NUMBER else self._known.get(each, _UNKNOWN) for each in hashes]
        count = Counter(hashes)
        asked = _asked(hashes, found)
        again = [0 if each == _NUMBER or count[each] < 2 else 1 + (each in asked) for each in hashes]
        return words, again, [place for place, word in enumerate(words) if word == _NUMBER]

    def _loss(self, course: Course, noise: Generator) -> Tensor:
        """How unlikely the true chains are; every step knows the true steps before it."""
        ids, again, spots, held = course.texts
        unheard = torch.rand(ids.shape, generator=noise) < UNHEARD
        ids = ids.masked_fill(unheard & (ids >= _KNOWN), _UNKNOWN)
        follows, operators = self._scores((ids, again, spots, held), noise)
        chosen = follows.flatten(0, 1)[course.rows].masked_fill(course.used, -torch.inf)
        signs = operators.flatten(0, 1)[course.steps]
        loss = F.cross_entropy(chosen, course.nexts) + F.cross_entropy(signs, course.signs)
        return loss.unsqueeze(0)  # (1,)

    @torch.no_grad()
    def _decode(self, batch: list[Read]) -> list[list[tuple[int, int]]]:
        """For every text the numbers in the order of the program, each with its operator."""
        follows, operators = self._scores(_stack(batch))
        signs = operators.argmax(2).tolist()
        count, stop = len(batch), follows.shape[2] - 1
        lanes = torch.arange(count)
        here = torch.zeros(count, dtype=torch.long)  # row: the start
        used = torch.zeros(count, stop + 1, dtype=torch.bool)
        path = []
        for turn in range(stop):
            score = follows[lanes, here].masked_fill(used, -torch.inf)
            if turn < 2:  # a first operand and one step at least
                score[:, stop] = -torch.inf
            there = score.argmax(1)
            path.append(there)
            if bool((there == stop).all()):
                break
            used[lanes, there] |= there != stop
            used[:, :stop] |= (there == stop).unsqueeze(1)  # who has stopped stays so
            here = torch.where(there == stop, here, there + 1)
        chains = torch.stack(path, 1).tolist()  # (B, turns)
        return [
            [(number, signs[lane][number]) for number in chain if number != stop] for lane, chain in enumerate(chains)
        ]


def _start(vocabulary: Tensor, draw: Generator) -> dict[str, Tensor]:
    """Tensors before training; the vocabulary holds the hashes of the known words."""

    def normal(*shape: int, scale: float) -> Tensor:
        return scale * torch.randn(*shape, generator=draw)

    own = {"words": normal(_KNOWN + len(vocabulary), SIZE, scale=1.0), "again": torch.zeros(3, SIZE)}
    own["near"] = torch.zeros(2 * REACH + 1, SIZE)
    layers = {f"word.{layer}": 5 for layer in range(len(DILATIONS))}
    layers |= {f"number.{layer}": 3 for layer in range(NUMBER_LAYERS)}
    for name, kernel in layers.items():
        own[f"{name}.scale"] = torch.ones(SIZE)
        own[f"{name}.weight"] = normal(SIZE * kernel, SIZE, scale=(SIZE * kernel) ** -0.5)
        own[f"{name}.bias"] = torch.zeros(SIZE)
    own["scale"] = torch.ones(SIZE)
    own["query"] = normal(SIZE, SIZE, scale=0.25 * SIZE**-0.5)
    own["key"] = normal(SIZE, SIZE, scale=0.25 * SIZE**-0.5)
    own["start"] = normal(SIZE, scale=0.25)
    own["stop"] = normal(SIZE, scale=0.25)
    own["operator"] = normal(SIZE, 2, scale=SIZE**-0.5)
    return {"vocabulary": vocabulary} | {name: tensor.requires_grad_() for name, tensor in own.items()}


def _lesson(draw: random.Random, words: Language) -> Lesson:
    program = sample(draw, draw.choice((1, 2, 2, 3, 3, 4, 4)))
    text, order = write(program, draw, words, draw.choice(DIET), mixed=draw.random() < MIXED)
    chain = [order.index(place) for place in range(len(program.operands))]
    return tokens(text), chain, [_OPERATORS.index(operator) for operator, _ in program.steps]


def _courses(lessons: list[tuple[Read, list[int], list[int]]], draw: random.Random) -> list[Course]:
    """All lessons once, like lengths together, so that little of a batch is padding."""
    order = sorted(lessons, key=lambda lesson: (len(lesson[0][0]), draw.random()))
    return [_course(order[start : start + BATCH]) for start in range(0, len(order), BATCH)]


def _course(lessons: list[tuple[Read, list[int], list[int]]]) -> Course:
    texts = _stack([read for read, _, _ in lessons])
    most = texts[2].shape[1]
    rows: list[int] = []
    nexts: list[int] = []
    used: list[list[bool]] = []
    steps: list[int] = []
    for lesson, (_, chain, _) in enumerate(lessons):
        behind = [False] * (most + 1)
        for here, there in zip([-1, *chain], [*chain, most], strict=True):
            if here >= 0:
                behind[here] = True
            rows.append(lesson * (most + 1) + here + 1)
            nexts.append(there)
            used.append(behind.copy())
        steps += [lesson * most + here for here in chain[1:]]
    signs = torch.tensor([sign for _, _, each in lessons for sign in each])
    return Course(texts, torch.tensor(rows), torch.tensor(nexts), torch.tensor(used), torch.tensor(steps), signs)


def _hash(token: Token) -> int:
    return crc32(token.text.encode())


def _asked(hashes: list[int], found: Sequence[Token]) -> set[int]:
    """The words of all sentences that ask or hold no number: what operands count is among them, distractors seldom."""
    asked: set[int] = set()
    start = 0
    for place, token in enumerate(found, 1):
        if token.text in ".?!;:" or place == len(found):
            if token.text == "?" or _NUMBER not in hashes[start:place]:
                asked.update(hashes[start:place])
            start = place
    return asked


def _stack(batch: Sequence[Read]) -> Texts:
    """Words (B, T), which are said again (B, T), places of the numbers (B, M), which of these are real (B, M)."""
    length = max(len(ids) for ids, _, _ in batch)
    most = max(len(spots) for _, _, spots in batch)
    ids = torch.tensor([ids + [_PAD] * (length - len(ids)) for ids, _, _ in batch])
    again = torch.tensor([again + [0] * (length - len(again)) for _, again, _ in batch])
    places = torch.tensor([spots + [0] * (most - len(spots)) for _, _, spots in batch])
    held = torch.tensor([[True] * len(spots) + [False] * (most - len(spots)) for _, _, spots in batch])
    return ids, again, places, held


def _batches(read: list[tuple[int, list[Token]]]) -> Iterator[list[tuple[int, list[Token]]]]:
    """Cut texts, short ones first, so that no batch takes much memory."""
    start = 0
    while start < len(read):
        stop = start + 1
        while stop < len(read) and (stop - start) * _cells(read[stop][1]) < CELLS:
            stop += 1
        yield read[start:stop]
        start = stop


def _cells(found: list[Token]) -> int:
    return max(16 * len(found), len(found) ** 2 // 4)  # at most every other token is a number


_UNREAD = RedxError("This text was not read.")  # stands in for what is decoded later
