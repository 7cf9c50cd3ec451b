"""Texts that share a batch: each has the tokens that it has alone, whoever joins or leaves meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from redx.adapters.base import BaseLM
from redx.adapters.composed import ComposedLM
from redx.adapters.generation import HALF
from redx.adapters.options import GenerationOptions
from redx.adapters.ragged import RaggedCache, check_cache
from redx.adapters.running import NextToken, RunningBatch, RunningText
from redx.adapters.unfolding import UnfoldingText
from redx.errors import RedxError

LENGTH = 12
CASES: list[tuple[str, dict[str, Any]]] = [  # prompts of different lengths, of all kinds of rows
    ("What is 12 plus 30?", {"weights": {"a": 1.0}, "top": 1}),
    ("one", {"weights": {}, "top": 1}),
    ("two and three", {"weights": {"a": 0.5, "b": 0.3, "c": 0.2}}),
    ("some longer prompt than all of the others, 1234567890", {"weights": {"c": 1.0}, "top": 1}),
    ("x", {"weights": {"a": 0.5, "b": 0.5}, "temperature": 1.5, "seed": 3, "top_p": 0.9}),
    ("hello", {"weights": {"a": 0.2, "b": 0.7, "c": 0.1}, "max_new_tokens": 5}),
]


def options_of(given: dict[str, Any]) -> GenerationOptions:
    return GenerationOptions(**{"max_new_tokens": LENGTH, **given})


def start(batch: RunningBatch, prompt: str, given: dict[str, Any]) -> tuple[RunningText, NextToken]:
    return batch.start(batch.composed.prompt_tokens(prompt, False), options_of(given), 2)


def test_every_text_has_the_tokens_that_it_has_alone(composed: ComposedLM) -> None:
    """One text joins after every second token; others leave meanwhile."""
    batch = RunningBatch(composed)
    found: dict[RunningText, list[NextToken]] = {}
    waiting, step = list(CASES), 0
    started: list[RunningText] = []
    most = 0
    while waiting or batch.texts:
        if waiting and step % 2 == 0:
            text, first = start(batch, *waiting.pop(0))
            started.append(text)
            found[text] = [first]
        for text, token in batch.step():
            found[text].append(token)
        step, most = step + 1, max(most, batch.rows)
    assert most > 6, "they must have been together"
    for text, (prompt, given) in zip(started, CASES, strict=True):
        alone = composed.generate(prompt, **{"max_new_tokens": LENGTH, **given})
        tokens = found[text]
        assert [token.token for token in tokens] == [token.token for token in alone.tokens]
        assert "".join(token.text for token in tokens) == alone.text
        assert [token.logprob for token in tokens] == pytest.approx([t.logprob for t in alone.tokens], abs=1e-4)
        for token, same in zip(tokens, alone.tokens, strict=True):
            assert token.radius == (None if same.radius is None else pytest.approx(same.radius, abs=1e-4))
        assert tokens[-1].stopped == alone.stopped


def test_alone_it_is_plain_greedy_bit_for_bit(
    composed: ComposedLM, model_folder: Path, adapter_folders: dict[str, Path]
) -> None:
    """Tokens and log-probabilities of base and adapter are those of `transformers` and of plain peft."""
    batch = RunningBatch(composed)
    prompt = composed.prompt_tokens("What is 12 plus 30?", False)
    for name in (None, "b"):
        text, first = batch.start(prompt, options_of({"weights": {name: 1.0} if name else {}, "top": 1}))
        tokens = [first]
        while batch.texts:
            tokens += [token for _, token in batch.step()]
        plain: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
        if name:
            plain = PeftModel.from_pretrained(plain, adapter_folders[name]).eval()
        given = plain.generate(
            input_ids=prompt[None],
            attention_mask=torch.ones_like(prompt[None]),
            max_new_tokens=LENGTH,
            do_sample=False,
            pad_token_id=1,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        ids = given.sequences[0, len(prompt) :].tolist()
        assert [token.token for token in tokens] == ids
        logprobs = [float(row[0].log_softmax(-1)[token]) for row, token in zip(given.logits, ids, strict=True)]
        if name is None:
            assert [token.logprob for token in tokens] == logprobs
        assert [token.logprob for token in tokens] == pytest.approx(logprobs, abs=1e-5)
        assert text.rows == (name,)


def test_alternatives_are_the_most_probable_tokens(composed: ComposedLM) -> None:
    _, first = start(RunningBatch(composed), *CASES[0])
    scores = composed.scores(CASES[0][0], weights={"a": 1.0}).log_softmax(-1)
    assert first.alternatives == [(int(i), pytest.approx(float(scores[i]), abs=1e-4)) for i in scores.topk(2).indices]


def test_a_text_that_is_dropped_disturbs_nobody(composed: ComposedLM) -> None:
    batch = RunningBatch(composed)
    (kept, first), (dropped, _) = start(batch, *CASES[2]), start(batch, *CASES[3])
    tokens = [first.token]
    for step in range(LENGTH - 1):
        if step == 4:
            batch.drop([dropped])
        tokens += [token.token for text, token in batch.step() if text is kept]
    alone = composed.generate(CASES[2][0], LENGTH, weights=CASES[2][1]["weights"])
    assert tokens == [token.token for token in alone.tokens]
    assert batch.rows == 0
    assert batch.step() == []


def test_padding_goes_with_the_row_that_needed_it() -> None:
    class Layer:
        def __init__(self, rows: int, length: int) -> None:
            self.keys = torch.ones(rows, 1, length, 2)
            self.values = torch.ones(rows, 1, length, 2)

    class Cache:
        def __init__(self, rows: int, length: int) -> None:
            self.layers = [Layer(rows, length)]

    ragged, first = RaggedCache(), Cache(1, 3)
    ragged.join(first, 1, 3)
    ragged.join(Cache(2, 5), 2, 5)
    assert first.layers[0].keys[:, 0, :, 0].tolist() == [[0, 0, 1, 1, 1], [1] * 5, [1] * 5]
    assert ragged.options("cpu")["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1], [1] * 6, [1] * 6]
    ragged.lengths = [3, 5, 5]
    ragged.keep([0])
    assert first.layers[0].keys[:, 0, :, 0].tolist() == [[1, 1, 1]]
    assert "attention_mask" not in ragged.options("cpu")


def test_a_model_with_a_window_is_refused(base: BaseLM) -> None:
    base.model.config.layer_types = ["sliding_attention"] * 3
    base.model.config.sliding_window = 4
    from transformers import DynamicCache

    with pytest.raises(RedxError, match="keeps a window"):
        check_cache(DynamicCache(config=base.model.config), "tiny")
    base.model.config.layer_types = ["full_attention"] * 3
    check_cache(DynamicCache(config=base.model.config), "tiny")


class Letters:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize(
    ("content", "stop", "shown"),
    [
        ("abcd", (), ["a", "b", "c", "d"]),
        ("abcd", ("cd",), ["a", "b", "", ""]),
        ("abce", ("cd", "x"), ["a", "b", "", "ce"]),
        ("aabab", ("aabb",), ["", "", "", "aab", "ab"]),
        ("é.", (), ["", "é", "."]),
        ("aa", ("a",), [""]),
    ],
)
def test_what_can_still_change_is_held_back(content: str, stop: tuple[str, ...], shown: list[str]) -> None:
    text = UnfoldingText(Letters(), stop)
    seen = []
    data = content.encode()
    for place, byte in enumerate(data):
        added, ended = text.add(byte, place == len(data) - 1)
        seen.append(added)
        if ended:
            break
    assert seen == shown
    assert HALF not in "".join(seen)
