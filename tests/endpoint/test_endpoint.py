"""OpenAI's protocol, driven by the client of openai: the answers of each model alone, batches, streams and faults."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import OpenAI

from helpers.serving import serving_app
from redx.adapters.base import load_base
from redx.adapters.composed import ComposedLM
from redx.adapters.library import add_adapter, read_library, remove_adapter
from redx.endpoint.app import build_endpoint, open_endpoint
from redx.endpoint.engine import Engine
from redx.errors import RedxError
from redx.serve import audit

PROMPT, LENGTH = "What is 12 plus 30?", 12
TOKEN = "0123456789abcdef"
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}A {% endif %}"


@contextmanager
def asked(engine: Engine, **options: Any) -> Iterator[OpenAI]:
    key = options.get("token", "none")
    with (
        serving_app(build_endpoint(engine, **options)) as url,
        OpenAI(base_url=f"{url}v1", api_key=key, max_retries=0, timeout=60) as client,
    ):
        yield client


def open_engine(library: Path, **options: Any) -> Engine:
    return Engine(library, load_base(read_library(library).base), **options)


@pytest.fixture(scope="module")
def engine(kept_library: Path) -> Iterator[Engine]:
    engine = open_engine(kept_library)
    engine.base.tokenizer.chat_template = TEMPLATE
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[OpenAI]:
    with asked(engine) as client:
        yield client


@pytest.fixture(scope="module")
def composed(kept_library: Path) -> ComposedLM:
    return ComposedLM.from_pretrained(kept_library)


def options_for(name: str) -> dict[str, Any]:
    """Return the options of `generate` that a model's name stands for."""
    return {"redx": {}, "base": {"weights": {}, "top": 1}}.get(name, {"weights": {name: 1.0}, "top": 1})


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["redx", "base", "a", "b", "c"]
    assert client.models.retrieve("b").id == "b"
    with pytest.raises(openai.NotFoundError, match="choose one of redx, base, a"):
        client.models.retrieve("d")


@pytest.mark.parametrize("name", ["redx", "base", "a", "c"])
def test_every_model_answers_as_it_does_alone(client: OpenAI, composed: ComposedLM, name: str) -> None:
    expected = composed.generate(PROMPT, LENGTH, **options_for(name))
    answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=LENGTH, logprobs=2)
    (choice,) = answer.choices
    assert choice.text == expected.text
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    decode = composed.base.tokenizer.decode
    assert choice.logprobs.tokens == [decode([step.token]) for step in expected.tokens]
    assert choice.logprobs.token_logprobs == pytest.approx([step.logprob for step in expected.tokens], abs=1e-4)
    assert choice.logprobs.top_logprobs is not None
    assert all(len(best) == 2 for best in choice.logprobs.top_logprobs)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), LENGTH)
    own: Any = choice.model_dump()["redx"]
    assert own["weights"] == pytest.approx(expected.weights, abs=1e-6)
    assert own["active"] == ([] if name == "base" else [name] if name != "redx" else ["a", "b", "c"])
    assert own["radius"] == (pytest.approx(expected.radius, abs=1e-5) if expected.radius is not None else None)
    assert len(own["radii"]) == LENGTH
    assert (expected.radius is not None) == (name == "redx")


def test_concurrent_requests_have_the_answers_of_each_alone(
    client: OpenAI, engine: Engine, composed: ComposedLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [(name, PROMPT[: 3 + 2 * place] + "x" * place, 8 + place) for place in range(6) for name in ("redx", "a")]
    cases += [("base", "one two three", 20), ("b", "k", 9)]
    assert engine._batch is not None
    step, most = type(engine._batch).step, [0]

    def counted(batch: Any) -> Any:
        most[0] = max(most[0], len(batch.texts))
        return step(batch)

    monkeypatch.setattr(type(engine._batch), "step", counted)

    def ask(case: tuple[str, str, int]) -> str:
        name, prompt, length = case
        return client.completions.create(model=name, prompt=prompt, max_tokens=length).choices[0].text

    with ThreadPoolExecutor(len(cases)) as threads:
        answers = list(threads.map(ask, cases))
    assert most[0] > 3, "they must have been together"
    assert answers == [composed.generate(prompt, length, **options_for(name)).text for name, prompt, length in cases]


def test_streams_give_the_same_text(client: OpenAI) -> None:
    whole = client.completions.create(model="redx", prompt=PROMPT, max_tokens=LENGTH, logprobs=0)
    options: Any = {"model": "redx", "prompt": PROMPT, "max_tokens": LENGTH, "logprobs": 0}
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    *pieces, last = chunks
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert last.choices == []
    assert last.usage == whole.usage
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * (LENGTH - 1) + ["length"]
    own = [piece.choices[0].model_dump()["redx"] for piece in pieces]
    expected: Any = whole.choices[0].model_dump()["redx"]
    assert [one["radius"] for one in own] == expected["radii"]
    assert own[0]["weights"] == expected["weights"]
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    streamed = [piece.choices[0].logprobs for piece in pieces]
    assert [one.text_offset[0] for one in streamed if one and one.text_offset] == logprobs.text_offset


def test_chats_use_the_template(client: OpenAI, composed: ComposedLM) -> None:
    messages: Any = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    expected = composed.generate("system be kind user hi A ", 6).text
    answer = client.chat.completions.create(
        model="redx", messages=messages, max_tokens=6, logprobs=True, top_logprobs=3
    )
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected)
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [len(token.top_logprobs) for token in choice.logprobs.content] == [3] * 6
    stream = client.chat.completions.create(model="redx", messages=messages, max_completion_tokens=6, stream=True)
    pieces = [chunk.choices[0] for chunk in stream]
    assert pieces[0].delta.role == "assistant"
    assert "".join(piece.delta.content or "" for piece in pieces) == expected
    whole = client.chat.completions.create(model="base", messages=messages)
    assert whole.usage is not None
    assert whole.usage.total_tokens == 256, "without a length to the end of the context"


def test_stops_seeds_and_weights(client: OpenAI, composed: ComposedLM) -> None:
    options: Any = {"model": "redx", "prompt": PROMPT, "max_tokens": LENGTH}
    text = client.completions.create(**options).choices[0].text
    cut = client.completions.create(**options, stop=[text[4:6]]).choices[0]
    assert (cut.text, cut.finish_reason) == (text[: text.index(text[4:6])], "stop")
    chunks = list(client.completions.create(**options, stop=text[4:6], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == cut.text
    drawn = [
        client.completions.create(**options, temperature=1.5, top_p=0.95, seed=seed).choices[0].text
        for seed in (3, 3, 4)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] == composed.generate(PROMPT, LENGTH, temperature=1.5, top_p=0.95, seed=3).text
    weights = {"a": 0.25, "b": 0.75}
    given = client.completions.create(**options, extra_body={"redx": {"weights": weights}}).choices[0]
    assert given.text == composed.generate(PROMPT, LENGTH, weights=weights).text
    first = client.completions.create(**options, extra_body={"redx": {"top": 1}}).choices[0]
    assert first.text == composed.generate(PROMPT, LENGTH, top=1).text
    assert len(first.model_dump()["redx"]["active"]) == 1


def test_several_prompts_have_several_choices(client: OpenAI, composed: ComposedLM) -> None:
    prompts = ["one", "two and more", "three"]
    answer = client.completions.create(model="a", prompt=prompts, max_tokens=5)
    expected = [composed.generate(prompt, 5, **options_for("a")).text for prompt in prompts]
    assert [choice.text for choice in answer.choices] == expected
    chunks = list(client.completions.create(model="a", prompt=prompts, max_tokens=5, stream=True))
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == expected


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("completions", {"model": "gpt", "prompt": "x"}, 404, "There is no model 'gpt'"),
        ("completions", {"prompt": "x"}, 400, "model"),
        ("completions", {"model": "base"}, 400, "prompt"),
        ("completions", {"model": "base", "prompt": " "}, 400, "prompt is empty"),
        ("completions", {"model": "base", "prompt": []}, 400, "prompt"),
        ("completions", {"model": "base", "prompt": [1, 2]}, 400, "prompt"),
        ("completions", {"model": "base", "prompt": "a" * 250, "max_tokens": 7}, 400, "more than the 256"),
        ("completions", {"model": "base", "prompt": "a" * 20_000}, 400, "20,000 characters"),
        ("completions", {"model": "base", "prompt": "\ud800"}, 400, "unicode"),
        ("completions", {"model": "base", "prompt": "x", "n": 2}, 400, "leave n out"),
        ("completions", {"model": "base", "prompt": "x", "echo": True}, 400, "'echo'"),
        ("completions", {"model": "base", "prompt": "x", "temperature": -1}, 400, "temperature"),
        ("completions", {"model": "base", "prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ("completions", {"model": "base", "prompt": "x", "stop": ["a"] * 17}, 400, "stop"),
        ("completions", {"model": "base", "prompt": "x", "seed": 2**70}, 400, "seed"),
        ("completions", {"model": "a", "prompt": "x", "redx": {"top": 1}}, 400, "belong to the model 'redx'"),
        ("completions", {"model": "redx", "prompt": "x", "redx": {"weights": {"z": 1}}}, 400, "no adapter 'z'"),
        ("completions", {"model": "redx", "prompt": "x", "redx": {"weights": {"a": 3}}}, 400, "between 0 and 1"),
        ("chat/completions", {"model": "base", "messages": []}, 400, "messages are empty"),
        ("chat/completions", {"model": "base", "messages": [{"role": "user", "content": ""}]}, 400, "empty"),
        ("chat/completions", {"model": "base", "messages": [{"role": "tool", "content": "x"}]}, 400, "role"),
        (
            "chat/completions",
            {"model": "base", "messages": [{"role": "user", "content": "x"}], "tools": [{}]},
            400,
            "'tools'",
        ),
        ("completions", {"model": "base", "prompt": "x" * 10_000_000}, 413, "bytes"),
        ("nothing", {}, 404, "no such path"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("stream", [False, True])
def test_faults_have_a_status_and_a_sentence(
    client: OpenAI, path: str, body: dict[str, Any], status: int, words: str, stream: bool
) -> None:
    content = json.dumps({**body, "stream": stream})
    answer = httpx.post(
        f"{client.base_url}{path}", content=content, headers={"Content-Type": "application/json"}, timeout=60
    )
    assert answer.status_code == status
    error = answer.json()["error"]
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_faults_are_the_errors_of_the_client(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="base", prompt="a" * 300)
    assert long.value.code == "context_length_exceeded"


def test_a_base_without_a_template_says_so(library: Path) -> None:
    engine = open_engine(library)
    try:
        with asked(engine) as client, pytest.raises(openai.BadRequestError, match="no chat template"):
            client.chat.completions.create(model="base", messages=[{"role": "user", "content": "x"}])
        engine.base.tokenizer.chat_template = "{{ raise_exception('no system') }}"
        with asked(engine) as client, pytest.raises(openai.BadRequestError, match="refuses these messages"):
            client.chat.completions.create(model="base", messages=[{"role": "user", "content": "x"}])
    finally:
        engine.close()


def test_a_client_that_hangs_up_disturbs_nobody(client: OpenAI, engine: Engine, composed: ComposedLM) -> None:
    expected = composed.generate("two", 200).text
    kept = client.completions.create(model="redx", prompt="two", max_tokens=200, stream=True)
    text = next(kept).choices[0].text
    for prompt in ("one", "a longer prompt"):
        with client.completions.create(model="redx", prompt=prompt, max_tokens=200, stream=True) as gone:
            next(gone)
    waiting = threading.Thread(target=_hang_up_while_waiting, args=(str(client.base_url),))
    waiting.start()
    text += "".join(chunk.choices[0].text for chunk in kept)
    assert text == expected
    waiting.join(10)
    _until(lambda: engine.running == 0)
    assert engine._batch is not None
    assert engine._batch.rows == 0


def _hang_up_while_waiting(url: str) -> None:
    body = {"model": "redx", "prompt": "x", "max_tokens": 250}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{url}completions", json=body, timeout=0.05)


def _until(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_adapter_that_is_removed_while_a_stream_runs(library: Path, composed: ComposedLM) -> None:
    engine = open_engine(library)
    try:
        with asked(engine) as client:
            expected = composed.generate("two", 150).text
            running = client.completions.create(model="redx", prompt="two", max_tokens=150, stream=True)
            text = next(running).choices[0].text
            remove_adapter(library, "b")
            with pytest.raises(openai.NotFoundError, match="choose one of redx, base, a, c"):
                client.completions.create(model="b", prompt="x")
            after = client.completions.create(model="redx", prompt="two", max_tokens=3).choices[0]
            text += "".join(chunk.choices[0].text for chunk in running)
            assert text == expected, "a stream ends with the adapters that it began with"
            assert after.model_dump()["redx"]["active"] == ["a", "c"]
            assert [model.id for model in client.models.list()] == ["redx", "base", "a", "c"]
            (kept,) = (library / "removed").iterdir()
            add_adapter(library, kept, load_base(read_library(library).base), "d")
            assert client.completions.create(model="d", prompt="x", max_tokens=2).choices[0].text
    finally:
        engine.close()


def test_a_library_that_is_damaged_is_one_sentence(library: Path) -> None:
    engine = open_engine(library)
    try:
        with asked(engine) as client:
            client.completions.create(model="a", prompt="x")
            remove_adapter(library, "c")
            file = library / "adapters" / "b" / "adapter_config.json"
            content = file.read_text()
            file.write_text("{")
            for _ in range(2):
                with pytest.raises(openai.InternalServerError, match="adapter_config"):
                    client.completions.create(model="a", prompt="x")
            file.write_text(content)
            client.completions.create(model="a", prompt="x")
    finally:
        engine.close()


def test_too_many_requests_may_try_again(library: Path) -> None:
    engine = open_engine(library, max_rows=1, max_waiting=0)
    try:
        with asked(engine) as client, pytest.raises(openai.InternalServerError, match="Too many requests") as full:
            client.completions.create(model="base", prompt="x")
        assert full.value.response.headers["retry-after"] == "1"
    finally:
        engine.close()


def test_rows_are_bounded_and_all_are_answered(library: Path) -> None:
    engine = open_engine(library, max_rows=5)
    try:
        with asked(engine) as client:
            answer = client.completions.create(model="redx", prompt=["one", "two", "three", "four"], max_tokens=4)
            assert all(choice.text for choice in answer.choices)
            many = client.completions.create(model="base", prompt=["x" * n for n in range(1, 41)], max_tokens=3)
            assert all(choice.text for choice in many.choices)
    finally:
        engine.close()


def test_a_text_that_never_has_room_is_refused(library: Path) -> None:
    for options in ({"max_rows": 3}, {"max_cache": 4 * 50 * 3 * 2 * 4 * 2 * 8}):  # four rows of fifty tokens
        engine = open_engine(library, **options)
        try:
            with asked(engine) as client:
                request: Any = {"model": "redx", "prompt": "x", "max_tokens": 60}
                with pytest.raises(openai.BadRequestError, match="4 rows of 61 tokens are more"):
                    client.completions.create(**request)
                assert client.completions.create(**request, extra_body={"redx": {"top": 1}}).choices[0].text
                answer = client.completions.create(model="a", prompt=["x", "yz", "k"], max_tokens=60)
                assert len(answer.choices) == 3
        finally:
            engine.close()


def test_a_batch_that_fails_ends_its_texts_alone(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(library)
    try:
        with asked(engine) as client:
            assert engine._batch is not None
            monkeypatch.setattr(engine._batch, "step", lambda: 1 / 0)
            with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
                client.completions.create(model="base", prompt="x")
            assert client.completions.create(model="base", prompt="x").choices[0].text
            assert engine._batch is not None
            monkeypatch.setattr(engine._batch, "start", lambda *_: 1 / 0)
            with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
                client.completions.create(model="base", prompt="x")
    finally:
        engine.close()


def test_the_token_is_asked_for(engine: Engine) -> None:
    with asked(engine, loopback=False, token=TOKEN) as client:
        assert client.models.list().data
        with pytest.raises(openai.AuthenticationError, match="needs its token"):
            client.with_options(api_key="wrong").models.list()
        assert httpx.get(str(client.base_url).replace("v1/", "metrics")).status_code == 401
        assert httpx.get(str(client.base_url).replace("v1/", "healthz")).status_code == 200


def test_names_that_mean_something_else_are_refused(library: Path, tmp_path: Path) -> None:
    base = load_base(read_library(library).base)
    add_adapter(library, library / "adapters" / "a", base, "redx")
    with pytest.raises(RedxError, match="means another model"):
        Engine(library, base)


def test_answers_are_recorded(library: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    for hashed in (False, True):
        path = file if not hashed else tmp_path / "hashed.jsonl"
        with (
            open_endpoint(library, audit=path, hashed=hashed) as app,
            serving_app(app) as url,
            OpenAI(base_url=f"{url}v1", api_key="none") as client,
        ):
            whole = client.completions.create(model="redx", prompt=PROMPT, max_tokens=4, seed=5).choices[0]
            with client.completions.create(model="a", prompt="x", max_tokens=200, stream=True) as gone:
                next(gone)
            _until(lambda path=path: len(path.read_text().splitlines()) == 2)
        first, second = map(json.loads, path.read_text().splitlines())
        assert ("answer" in first, "answer_sha256" in first) == (not hashed, hashed)
        assert first["options"]["seed"] == 5
        assert first["radius"] == whole.model_dump()["redx"]["radius"]
        assert set(first["adapter_hashes"]) == {"a", "b", "c"}
        assert second["finished"] == "client hung up"
        assert second["adapter_hashes"].keys() == {"a"}
    assert json.loads(file.read_text().splitlines()[0])["answer"] == whole.text


def test_an_answer_that_cannot_be_recorded_is_not_given(library: Path, tmp_path: Path) -> None:
    with (
        open_endpoint(library, audit=tmp_path / "a.jsonl") as app,
        serving_app(app) as url,
        OpenAI(base_url=f"{url}v1", api_key="none", max_retries=0) as client,
        pytest.MonkeyPatch.context() as patch,
    ):

        def full(file: int, content: bytes) -> int:
            raise OSError(28, "No space left on device")

        patch.setattr(audit.os, "write", full)
        with pytest.raises(openai.InternalServerError, match="No space left"):
            client.completions.create(model="base", prompt="x")
        stream = client.completions.create(model="base", prompt="x", max_tokens=4, stream=True)
        with pytest.raises(openai.APIError, match="No space left"):
            list(stream)
