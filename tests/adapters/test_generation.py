"""Generation: the same tokens as plain peft and plain transformers, radii that hold, stops, batches and streams."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from redx.adapters.composed import ComposedLM
from redx.errors import RedxError

PROMPT = "What is 12 plus 30?"
LENGTH = 12


def plain_greedy(model: Path, adapter: Path | None, tokens: torch.Tensor) -> list[int]:
    """Return greedy tokens of plain transformers, or of plain peft, without a cache."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    if adapter is not None:
        plain = PeftModel.from_pretrained(plain, adapter).eval()
    ids = tokens.tolist()
    with torch.inference_mode():
        for _ in range(LENGTH):
            ids.append(int(plain(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(tokens) :]


@pytest.mark.parametrize("top", [None, 1])
@pytest.mark.parametrize("name", ["a", None])
def test_greedy_is_plain(
    composed: ComposedLM, model_folder: Path, adapter_folders: dict[str, Path], name: str | None, top: int | None
) -> None:
    tokens = torch.tensor(composed.base.tokenizer(PROMPT)["input_ids"])
    expected = plain_greedy(model_folder, adapter_folders[name] if name else None, tokens)
    weights = {name: 1.0} if name else [0.0, 0.0, 0.0]
    result = composed.generate(PROMPT, LENGTH, weights=weights, top=top)
    assert [step.token for step in result.tokens] == expected


def test_radius_holds_for_routers_within_it_and_is_exact(composed: ComposedLM) -> None:
    weights = torch.tensor([0.5, 0.3, 0.2])
    result = composed.generate(PROMPT, LENGTH, weights=weights)
    assert result.radius is not None
    assert result.radius == min(step.radius for step in result.tokens if step.radius is not None)
    text = [step.token for step in result.tokens]
    assert 0 < result.radius < 1, "the case must be able to fail"
    for vertex in torch.eye(3):
        within = (1 - result.radius) * weights + result.radius * vertex
        moved = composed.generate(PROMPT, LENGTH, weights=within)
        assert [step.token for step in moved.tokens] == text
    beyond = min(1.0, result.radius + 0.02)
    moved = [composed.generate(PROMPT, LENGTH, weights=(1 - beyond) * weights + beyond * v) for v in torch.eye(3)]
    assert any([step.token for step in other.tokens] != text for other in moved)


def test_contributions_add_up(composed: ComposedLM) -> None:
    result = composed.generate(PROMPT, 1, weights=[0.5, 0.3, 0.2])
    step = result.tokens[0]
    scores = composed.scores(PROMPT, weights=[0.5, 0.3, 0.2])
    assert step.base is not None
    assert step.base + sum(step.contributions.values()) == pytest.approx(float(scores[step.token]), abs=1e-4)
    assert step.logprob == pytest.approx(float(scores.log_softmax(-1)[step.token]), abs=1e-4)


def test_top_runs_only_needed_rows(composed: ComposedLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str | None]] = []
    forward = composed.stack.forward

    def spy(rows: list[str | None], *args: object, **options: object) -> object:
        seen.append(list(rows))
        return forward(rows, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(composed.stack, "forward", spy)
    result = composed.generate(PROMPT, 3, weights=[0.2, 0.7, 0.1], top=1)
    assert seen == [["b"]] * 3
    assert result.radius is None
    assert result.weights == {"a": 0.0, "b": pytest.approx(1.0), "c": 0.0}
    seen.clear()
    composed.generate(PROMPT, 2, weights=[0.2, 0.7, 0.1])
    assert seen == [[None, "a", "b", "c"]] * 2


def test_batch_is_one_by_one(composed: ComposedLM) -> None:
    prompts = ["one two", "three", "seven e", "four"]
    together = composed.generate_batch(prompts, 6, weights=[0.5, 0.3, 0.2])
    alone = [composed.generate(prompt, 6, weights=[0.5, 0.3, 0.2]) for prompt in prompts]
    assert [result.text for result in together] == [result.text for result in alone]
    assert [result.prompt for result in together] == prompts


def test_stream_is_generate(composed: ComposedLM) -> None:
    steps = list(composed.stream(PROMPT, 5, temperature=1.0, seed=3))
    assert steps == composed.generate(PROMPT, 5, temperature=1.0, seed=3).tokens


def test_sampling_depends_on_the_seed_alone(composed: ComposedLM) -> None:
    first = composed.generate(PROMPT, 20, temperature=2.0, seed=1)
    again = composed.generate(PROMPT, 20, temperature=2.0, seed=1)
    other = composed.generate(PROMPT, 20, temperature=2.0, seed=2)
    assert first.text == again.text != other.text
    assert first.radius is None
    narrow = composed.generate(PROMPT, 20, temperature=2.0, seed=1, top_p=1e-9)
    assert narrow.text == composed.generate(PROMPT, 20).text, "one token is left to draw from"


def test_stop_text_and_end_token(composed: ComposedLM) -> None:
    whole = composed.generate(PROMPT, LENGTH)
    assert whole.stopped == "length"
    assert len(whole.tokens) == LENGTH
    word = whole.text[2]
    cut = composed.generate(PROMPT, LENGTH, stop=[word])
    assert cut.stopped == "stop"
    assert cut.text == whole.text[: whole.text.index(word)]
    composed.base.tokenizer.eos_token = composed.base.tokenizer.convert_ids_to_tokens(whole.tokens[1].token)
    ended = composed.generate(PROMPT, LENGTH)
    assert ended.stopped == "end"
    assert ended.tokens[-1].token == composed.base.end


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": "  "}, "prompt is empty"),
        ({"prompt": "a" * 300}, "more than the 256"),
        ({"max_new_tokens": -1}, "at least 0"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top": 0}, "at least 1"),
        ({"chat": True}, "no chat template"),
    ],
)
def test_bad_input(composed: ComposedLM, options: dict[str, object], words: str) -> None:
    with pytest.raises(RedxError, match=words):
        composed.generate(**{"prompt": PROMPT, **options})  # type: ignore[arg-type]


def test_chat_template_is_used(composed: ComposedLM) -> None:
    composed.base.tokenizer.chat_template = "{% for m in messages %}User {{ m.content }} Answer {% endfor %}"
    chat = composed.generate("hi", 4, chat=True)
    assert chat.text == composed.generate("User hi Answer ", 4).text


@pytest.mark.parametrize(
    ("name", "first"), [("generate", "prompt"), ("generate_batch", "prompts"), ("stream", "prompt")]
)
def test_every_method_takes_the_same_options(composed: ComposedLM, name: str, first: str) -> None:
    parameters = inspect.signature(getattr(ComposedLM, name)).parameters
    options = ["max_new_tokens", "rule", "weights", "temperature", "top_p", "seed", "top", "stop", "chat"]
    assert list(parameters) == ["self", first, *options]
    assert parameters["max_new_tokens"].default == 64
    method = getattr(composed, name)
    subject = [PROMPT] if first == "prompts" else PROMPT
    weights = [0.0, 1.0, 0.0]
    by_place, by_name = (
        method(subject, 2, "red", weights),
        method(**{first: subject}, weights=weights, max_new_tokens=2),
    )
    assert list(by_place) == list(by_name) if name != "generate" else by_place == by_name
    with pytest.raises(TypeError, match="length"):
        method(subject, length=2)
