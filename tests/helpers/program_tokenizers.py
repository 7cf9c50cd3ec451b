"""Tokenizers of several kinds that can write programs."""

from __future__ import annotations

import functools
import random
import string

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from redx.tasks.arithmetic.sentences import sample


def by_character(characters: str = string.printable) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character; padding is the end token, as in many real models."""
    vocabulary = {character: index for index, character in enumerate(["[UNK]", "[END]", *characters])}
    inner = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", eos_token="[END]", pad_token="[END]")


def by_chunk() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens have many characters and cross all bounds, such as ' = x1\\nStep 2: x1 '."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return _train(inner, pre_tokenizers.ByteLevel.alphabet(), "\n")


def by_word(line_break: str = " ") -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens begin with a space, also at the start of a text.

    With a line break as `line_break`, tokens may cross line breaks.
    """
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    return _train(inner, [*string.printable], line_break)


def _train(inner: Tokenizer, alphabet: list[str], line_break: str) -> PreTrainedTokenizerFast:
    draw = random.Random(0)
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["[END]"], initial_alphabet=alphabet)
    texts = (str(sample(draw, draw.randint(1, 4))).replace("\n", line_break) for _ in range(200))
    inner.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="[END]", pad_token="[END]")


KINDS = {
    "characters": by_character,
    "chunks": by_chunk,
    "words": by_word,
    "across lines": functools.partial(by_word, "\n"),
}


@functools.cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer of one of the `KINDS`, trained once."""
    return KINDS[kind]()
