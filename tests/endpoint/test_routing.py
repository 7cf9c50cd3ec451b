"""The router over HTTP: choices, requests that are handed on, and an upstream that is down or sends elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from openai import OpenAI
from starlette.testclient import TestClient

from helpers.commands import Ask, refused
from helpers.serving import serving_app
from helpers.upstreams import upstream_server
from redx.adapters.choosing import PromptRouter
from redx.adapters.library import remove_adapter
from redx.endpoint.routing import open_routing
from redx.endpoint.upstream import Upstream
from redx.errors import RedxError

PROMPT = "What is 12 plus 30?"
JSON = {"Content-Type": "application/json"}
TOKEN = "0123456789abcdef"


@contextmanager
def routing(library: Path, url: str | None = None, **options: Any) -> Iterator[TestClient]:
    upstream = Upstream(url, "secret of the upstream") if url else None
    with (
        open_routing(library, upstream, **options) as app,
        TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client,  # type: ignore[arg-type]
    ):
        yield client


def test_route_answers_as_python_does(library: Path) -> None:
    expected = PromptRouter.from_pretrained(library, -9.0).route(PROMPT).to_dict()
    assert expected["adapter"] in ("a", "b", "c")
    with routing(library, cutoff=-9.0) as client:
        assert client.post("/route", json={"prompt": PROMPT}).json() == expected
        chat = client.post("/route", json={"messages": [{"role": "user", "content": PROMPT}]})
        assert chat.json()["scores"] == pytest.approx(expected["scores"]), "without a template the contents are read"
        assert "redx_routed_total 2.0" in client.get("/metrics").text
        assert client.get("/healthz").json() == {"status": "ok", "waiting": 0}


def test_an_adapter_that_is_removed_is_not_chosen_any_more(library: Path) -> None:
    with routing(library, cutoff=-99.0) as client:
        before = client.post("/route", json={"prompt": PROMPT}).json()["adapter"]
        remove_adapter(library, before)
        after = client.post("/route", json={"prompt": PROMPT}).json()
    assert after["adapter"] not in (None, before)
    assert before not in after["weights"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "Send a prompt, or messages"),
        ({"prompt": " "}, 400, "prompt is empty"),
        ({"prompt": 3}, 400, "prompt"),
        ({"messages": []}, 400, "messages are empty"),
        ({"prompt": "x", "adapter": "a"}, 400, "adapter"),
        ([], 400, "no JSON object"),
        ({"prompt": "x" * 5_000_000}, 413, "bytes"),
    ],
)
def test_faults_are_one_sentence(kept_library: Path, body: Any, status: int, words: str) -> None:
    with routing(kept_library) as client:
        response = client.post("/route", json=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_the_token_is_asked_for(kept_library: Path) -> None:
    with routing(kept_library, loopback=False, token=TOKEN) as client:
        assert client.post("/route", json={"prompt": PROMPT}).status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert client.post("/route", json={"prompt": PROMPT}, headers=headers).status_code == 200


def test_requests_are_handed_on_with_the_name_of_the_adapter(kept_library: Path) -> None:
    chosen = PromptRouter.from_pretrained(kept_library, -99.0).route(PROMPT).adapter
    assert chosen
    with upstream_server() as (url, server):
        options: dict[str, Any] = {"names": [f"{chosen}=my-lora"], "base_name": "my-base"}
        with routing(kept_library, f"{url}/v1", cutoff=-99.0, **options) as client:
            body = {"model": "redx", "prompt": PROMPT, "max_tokens": 3, "top_k": 5}
            answer = client.post("/v1/completions", json=body, headers={"Authorization": "Bearer of the client"})
            assert answer.json() == {"model": "my-lora"}
            assert answer.headers["x-redx-model"] == "my-lora"
            client.post("/v1/chat/completions", json={"model": "b", "messages": [{"role": "user", "content": "x"}]})
            client.post("/v1/completions", json={"model": "base", "prompt": ["x", "y"]})
            listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
        with routing(kept_library, url, cutoff=99.0, **options) as client:
            client.post("/v1/completions", json=body)
    (path, first, headers), (chat_path, second, _), (_, third, _), (_, unsure, _) = server.asked
    assert (path, chat_path) == ("/v1/completions", "/v1/chat/completions")
    assert first == {**body, "model": "my-lora"}
    assert headers["Authorization"] == "Bearer secret of the upstream"
    assert second["model"] == ("my-lora" if chosen == "b" else "b")
    assert third["model"] == unsure["model"] == "my-base"
    assert listed == ["redx", "base", "a", "b", "c"]


def test_the_openai_client_streams_through_it(kept_library: Path) -> None:
    with (
        upstream_server() as (url, server),
        open_routing(kept_library, Upstream(url)) as app,
        serving_app(app) as here,
        OpenAI(base_url=f"{here}v1", api_key="none") as client,
        client.completions.create(model="redx", prompt=PROMPT, stream=True) as stream,
    ):
        first = next(iter(stream))
        assert first.model_dump()["text"] == "one", "before the upstream has ended"
        server.go_on.set()
        assert [event.model_dump()["text"] for event in stream] == ["two"]


def test_a_client_that_hangs_up_ends_the_request_of_the_upstream(kept_library: Path) -> None:
    with (
        upstream_server() as (url, server),
        open_routing(kept_library, Upstream(url)) as app,
        serving_app(app) as here,
    ):
        body = {"model": "redx", "prompt": PROMPT, "stream": True}
        with httpx.stream("POST", f"{here}v1/completions", json=body) as response:
            next(response.iter_raw())
        assert server.hung_up.wait(10)


def test_faults_of_the_upstream_are_one_sentence(kept_library: Path) -> None:
    body = {"model": "redx", "prompt": PROMPT}
    with upstream_server() as (url, server), routing(kept_library, url) as client:
        server.status, server.location = 307, "http://127.0.0.1:9/elsewhere"
        response = client.post("/v1/completions", json=body, follow_redirects=False)
        assert response.status_code == 502
        assert "sends elsewhere" in response.json()["error"]["message"]
        assert "location" not in response.headers
        server.status, server.location = 429, None
        assert client.post("/v1/completions", json=body).status_code == 429
    with routing(kept_library, url) as client:  # it is down now
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 502
        assert "cannot be reached" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "gpt", "prompt": "x"}, 404, "There is no model 'gpt'; choose one of redx, base, a, b, c"),
        ({"prompt": "x"}, 404, "There is no model"),
        ({"model": "redx", "prompt": ["x", "y"]}, 400, "One text a request"),
        ({"model": "redx", "messages": []}, 400, "messages are empty"),
        ({"model": "redx", "prompt": "\ud800"}, 400, "surrogate"),
    ],
)
def test_requests_that_cannot_be_routed(kept_library: Path, body: dict[str, Any], status: int, words: str) -> None:
    with upstream_server() as (url, server), routing(kept_library, url) as client:
        response = client.post("/v1/completions", content=json.dumps(body), headers=JSON)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]
    assert not server.asked


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://me:secret@host", "http://host:99999", "http://"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(RedxError):
        Upstream(url)


def test_the_verb_prints_choices(ask: Ask, kept_library: Path) -> None:
    code, out, _ = ask("route", kept_library, PROMPT, "one", "--json")
    assert code == 0
    router = PromptRouter.from_pretrained(kept_library)
    assert json.loads(out) == [router.route(text).to_dict() for text in (PROMPT, "one")]
    code, out, _ = ask("route", kept_library, PROMPT, "--cutoff", "99")
    assert code == 0
    assert "none (base)" in out
    assert "exceeds 99 (not calibrated)" in out


def test_the_verb_refuses_what_does_not_fit(ask: Ask, kept_library: Path) -> None:
    refused(ask("route", kept_library), "--serve")
    refused(ask("route", kept_library, PROMPT, "--serve"), "--serve")
    refused(ask("route", kept_library, PROMPT, "--upstream", "http://x"), "--serve")
    refused(ask("route", kept_library, "--serve", "--name", "a=b"), "--upstream")
    refused(ask("route", kept_library, "--serve", "--host", "0.0.0.0"), "--token")
    serve = ("route", kept_library, "--serve", "--port", "0", "--upstream", "http://127.0.0.1:1")
    refused(ask(*serve, "--name", "d=x"), "no adapter 'd'")
    refused(ask(*serve, "--name", "d"), "ADAPTER=NAME")
