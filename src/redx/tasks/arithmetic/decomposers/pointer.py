"""The pointer decomposer: a small network that reads words and copies operands by pointing at them.

The chain starts at a learned node and points at the first operand; every operand points at the next one until the stop.
Whether an operand is added or subtracted is classified at the operand itself. Every number is used at most once, and
the stop is closed until there is one step, so the program is well-formed for any finite weights.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from redx.config import TrainingConfig
from redx.errors import RedxError
from redx.seeding import generator
from redx.tasks.arithmetic.decomposers.pointer_batches import (
    OPERATORS,
    Encoded,
    TrainingBatch,
    decoding_batches,
    draw_example,
    encode_text,
    hash_word,
    stack_texts,
    training_batches,
)
from redx.tasks.arithmetic.decomposers.pointer_network import KNOWN, UNKNOWN, PointerNetwork
from redx.tasks.arithmetic.program import Program, Step
from redx.tasks.arithmetic.sentences import Language, language
from redx.tasks.arithmetic.tokens import Token, tokens
from redx.training.loop import train

COMMON = 5  # a word is known where the training sentences contain it so often; all others are the unknown word
SAMPLES = 32_000
EPOCHS = 3
TRAINING = TrainingConfig(
    epochs=1, batch=1, virtual_batch=1, lr=3e-3, weight_decay=0.01, warmup=0.05, schedule="cosine", clip=1.0
)
WORD_DROPOUT = 0.1  # share of known words that training replaces by the unknown word


class PointerDecomposer:
    """A trained decomposer: texts to programs.

    Parameters
    ----------
    network
        The trained network.
    vocabulary
        Hashes of the words that it knows, in the order of their embeddings.

    Examples
    --------
    >>> decomposer = PointerDecomposer.train(seed=0)  # doctest: +SKIP
    >>> print(decomposer.decompose(["12 plus 5 minus 3"])[0])  # doctest: +SKIP
    Step 1: 12 + 5 = x1
    Step 2: x1 - 3 = x2
    Answer: x2
    """

    def __init__(self, network: PointerNetwork, vocabulary: Tensor) -> None:
        self.network, self.vocabulary = network, vocabulary
        self._known = {word: index for index, word in enumerate(vocabulary.tolist(), KNOWN)}

    @classmethod
    def train(cls, seed: int, samples: int = SAMPLES, words: Language | None = None) -> PointerDecomposer:
        """Return a decomposer trained on random sentences of one to four steps.

        Parameters
        ----------
        seed
            Seed of the sentences, the initial weights and the batches.
        samples
            Number of sentences.
        words
            Templates of the sentences; by default those for training.
        """
        words = words or language("train")
        draw = random.Random(f"{seed}/pointer/sentences")
        examples = [draw_example(draw, words) for _ in range(samples)]
        counts = Counter(hash_word(token) for text, _, _ in examples for token in text if token.value is None)
        vocabulary = torch.tensor(sorted(word for word, count in counts.items() if count >= COMMON))
        network = PointerNetwork(len(vocabulary))
        network.initialise(generator(seed, "pointer", "start"))
        pointer = cls(network, vocabulary)
        encoded = [(encode_text(text, pointer._known), chain, signs) for text, chain, signs in examples]
        batches = [batch for _ in range(EPOCHS) for batch in training_batches(encoded, draw)]
        noise = generator(seed, "pointer", "unheard")
        train(
            network.ordered_parameters(),
            lambda rows: pointer._loss(batches[int(rows)], noise),
            [len(batches)],
            [generator(seed, "pointer", "batches")],
            TRAINING,
            title="pointer",
        )
        return cls(network.requires_grad_(False), vocabulary)

    def tensors(self) -> dict[str, Tensor]:
        """Return the vocabulary and the weights by name, to be saved."""
        return {"vocabulary": self.vocabulary, **self.network.state_dict()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> PointerDecomposer:
        """Return the decomposer whose `tensors` these are."""
        vocabulary = tensors.get("vocabulary", torch.empty(0))
        network = PointerNetwork(len(vocabulary))
        weights = {name: tensor for name, tensor in tensors.items() if name != "vocabulary"}
        shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
        if vocabulary.dtype != torch.long or {name: tensor.shape for name, tensor in weights.items()} != shapes:
            raise RedxError("These tensors are no pointer decomposer of this version; train it again with `redx run`.")
        network.load_state_dict(weights)
        return cls(network.requires_grad_(False), vocabulary)

    def decompose(self, texts: Sequence[str]) -> list[Program | RedxError]:
        """Return a program for every text, or the error of a text that cannot be read."""
        programs: list[Program | RedxError] = []
        readable: list[tuple[int, list[Token]]] = []
        for index, text in enumerate(texts):
            try:
                readable.append((index, tokens(text)))
                programs.append(_PENDING)
            except RedxError as error:
                programs.append(error)
        readable.sort(key=lambda pair: len(pair[1]))  # a batch has texts of similar length
        for batch in decoding_batches(readable):
            values = [[token.value for token in text if token.value is not None] for _, text in batch]
            chains = self._decode([encode_text(text, self._known) for _, text in batch])
            for (index, _), numbers, (first, *steps) in zip(batch, values, chains, strict=True):
                chain = tuple(Step(OPERATORS[operator], numbers[number]) for number, operator in steps)
                programs[index] = Program(numbers[first[0]], chain)
        return programs

    def _loss(self, batch: TrainingBatch, noise: Generator) -> Tensor:
        """Return the cross-entropy of the true chains, (1,); every step is given the true steps before it."""
        words, again, numbers, real = batch.texts
        dropped = torch.rand(words.shape, generator=noise) < WORD_DROPOUT
        words = words.masked_fill(dropped & (words >= KNOWN), UNKNOWN)
        follows, operators = self.network((words, again, numbers, real), noise)
        chosen = follows.flatten(0, 1)[batch.rows].masked_fill(batch.used, -torch.inf)
        signs = operators.flatten(0, 1)[batch.steps]
        loss = F.cross_entropy(chosen, batch.nexts) + F.cross_entropy(signs, batch.signs)
        return loss.unsqueeze(0)

    @torch.no_grad()
    def _decode(self, batch: list[Encoded]) -> list[list[tuple[int, int]]]:
        """Return for every text its numbers in the order of the program, with the operator of every number."""
        follows, operators = self.network(stack_texts(batch))
        signs = operators.argmax(2).tolist()
        count, stop = len(batch), follows.shape[2] - 1
        texts = torch.arange(count)
        here = torch.zeros(count, dtype=torch.long)  # row of `follows`: the start
        used = torch.zeros(count, stop + 1, dtype=torch.bool)
        path = []
        for turn in range(stop):
            score = follows[texts, here].masked_fill(used, -torch.inf)
            if turn < 2:  # at least a first operand and one step
                score[:, stop] = -torch.inf
            there = score.argmax(1)
            path.append(there)
            if bool((there == stop).all()):
                break
            used[texts, there] |= there != stop
            used[:, :stop] |= (there == stop).unsqueeze(1)  # a chain that has stopped stays so
            here = torch.where(there == stop, here, there + 1)
        chains = torch.stack(path, 1).tolist()  # (B, turns)
        return [
            [(number, signs[text][number]) for number in chain if number != stop] for text, chain in enumerate(chains)
        ]


_PENDING = RedxError("This text was not read.")  # stands for programs that are decoded later
