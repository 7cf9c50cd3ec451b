"""The HTTP API: answers as in Python, one sentence for every fault, and nothing on disk is changed."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import redx
from helpers.own_data import draw_clouds, write_arrays
from helpers.runs import run_on_clouds
from helpers.serving import asking, serving
from redx.data.dataset import Split
from redx.io.hashing import checksum
from redx.runs import folder
from redx.runs.calibration import risk_figures
from redx.runs.diff import diff_experts
from redx.runs.editing import remove_expert
from redx.serve import examples
from redx.serve.app import page_files
from redx.serve.guard import MAX_BODY
from redx.serve.queries import MAX_INPUTS
from redx.training import datasets

POINT = [0.5, -1.0, 8.0, 0.0, 0.25, 1.5]
POINTS = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)).mul(4).tolist()


def predict(client: Any, *inputs: Any, **body: Any) -> list[dict[str, Any]]:
    """Ask, and return the answers without their ids, which are different every time."""
    response = client.post("/api/predict", json={"inputs": list(inputs), **body})
    assert response.status_code == 200, response.text
    answers = response.json()["answers"]
    assert len({answer.pop("id") for answer in answers}) == len(inputs)
    return answers


@pytest.mark.parametrize("rule", ["red", "sum", "moe", "uniform", "base", "global", "red/plain"])
def test_answers_are_those_of_the_model(client: Any, clouds: redx.Run, rule: str) -> None:
    with redx.load(clouds.folder).using(rule) as model:
        explained = model.explain(POINTS)
    for answer, expected in zip(predict(client, *POINTS, rule=rule), explained, strict=True):
        assert (answer["answer"], answer["base"]) == (expected.answer, expected.base)
        assert answer["radius"] == pytest.approx(expected.radius, abs=1e-5)
        assert answer["weights"] == pytest.approx(expected.weights, abs=1e-5)
        assert answer["contributions"] == pytest.approx(expected.contributions, abs=1e-4)
        same = expected.as_dict()
        assert list(answer) == list(same)
        for field in ("range", "expert", "cutoff", "active"):
            assert answer[field] == same[field]


def test_a_setting_holds_for_one_request_only(client: Any, clouds: redx.Run) -> None:
    model = redx.load(clouds.folder)
    names, before = model.experts.names, predict(client, POINT)
    with model.using(without=[names[0]]):
        model.calibrate(risk=0.2)
        expected = model.explain([POINT])[0]
    (answer,) = predict(client, POINT, without=[names[0]], risk=0.2)
    assert answer["answer"] == expected.answer
    assert list(answer["weights"]) == list(names[1:])
    assert answer["radius"] == pytest.approx(expected.radius, abs=1e-5)
    assert predict(client, POINT) == before


def test_detail_gives_the_answer_to_any_weights(client: Any) -> None:
    (answer,) = predict(client, POINT, detail=True, rule="red/plain")
    detail, names = answer["detail"], list(answer["weights"])
    draw = torch.Generator().manual_seed(1)
    for _ in range(10):
        weights = torch.rand(len(names), generator=draw).softmax(-1)
        scores = torch.tensor(detail["offset"]) + weights @ torch.tensor(detail["experts"])
        (given,) = predict(client, POINT, rule="red/plain", weights=dict(zip(names, weights.tolist(), strict=True)))
        assert given["answer"] == detail["classes"][int(scores.argmax())]


def test_abstention_says_what_it_would_have_answered(client: Any) -> None:
    near, far = predict(client, POINT, [900.0] * 6, abstain=0.2)
    assert near["closest"] in ("high", "low")
    assert far["abstained"] in (True, False)
    assert (far["answer"] is None) == far["abstained"]


def test_the_model_describes_itself(client: Any, clouds: redx.Run) -> None:
    about = client.get("/api/model").json()
    assert about["kind"] == "numbers"
    assert [expert["name"] for expert in about["experts"]] == list(redx.load(clouds.folder).experts.names)
    red = {"name": "red", "about": "base + routed experts", "adversary": "simplex", "controlled": True}
    assert red | {"shares": "sums"} in about["rules"]
    assert not [rule for rule in about["rules"] if "oracle" in rule["name"]]
    assert client.get("/healthz").json()["status"] == "ok"


def test_a_diff_is_that_of_the_command(client: Any, clouds: redx.Run) -> None:
    name = redx.load(clouds.folder).experts.names[1]
    diff = client.post("/api/diff", json={"without": [name]}).json()
    expected = diff_experts(clouds.folder, removed=[name])
    for key in ("count", "accuracy", "flips", "gained", "lost", "domains", "certificates", "experts", "choice"):
        assert diff[key] == expected[key]


def test_what_is_compared_is_measured_on_choice_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the labels of calibration examples nor the test split change any figure of an alternative."""
    run = run_on_clouds(tmp_path / "run", write_arrays(tmp_path / "clouds.npz", **draw_clouds(2400))).folder
    read = datasets.read_feature_split

    def compare() -> list[Any]:
        with asking(run) as client:
            found = [client.post("/api/diff", json={"without": ["1"], "risk": risk}).json() for risk in (0.2, 1.0)]
            price = client.get("/api/price", params={"without": "1"}).json()
        now.append(price.pop("now"))
        return [*found, price]

    def other_labels(path: Path, part: str) -> Split:
        split = read(path, part)
        return Split(split.inputs, 1 - split.labels, split.domains)

    now: list[Any] = []
    before = compare()
    share = folder.read_config(run).ownership.calibration
    count = len(datasets.read_choices(run / "seed-0" / "features.safetensors", share, 0))
    assert count > 20
    assert [one.get("count", one.get("examples")) for one in before] == [count] * 3
    assert "cutoff" not in json.dumps(before[:2])
    monkeypatch.setattr(folder, "read_feature_split", other_labels)  # what calibration reads
    monkeypatch.setattr(examples, "read_feature_split", other_labels)  # the test split
    assert compare() == before
    assert now == [risk_figures(run)] * 2


@pytest.mark.parametrize("given", [{"without": "1"}, {"risk": 0.2}, {"without": "1", "risk": 0.2}])
def test_the_test_split_is_shown_for_the_run_as_it_stands_alone(client: Any, given: dict[str, Any]) -> None:
    response = client.get("/api/examples", params=given)
    assert response.status_code == 422
    assert "as it stands; leave out" in response.json()["error"]


def test_examples_are_filtered_and_sorted(client: Any) -> None:
    table = client.get("/api/examples?filter=all&limit=200").json()
    rows = table["rows"]
    assert [row["radius"] for row in rows] == sorted(row["radius"] for row in rows)
    right = [row["answer"] == row["label"] for row in rows]
    base = [row["base"] == row["label"] for row in rows]
    expected = {
        "fragile": sum(ok and row["radius"] < 1 for ok, row in zip(right, rows, strict=True)),
        "helped": sum(ok and not before for ok, before in zip(right, base, strict=True)),
        "harmed": sum(before and not ok for ok, before in zip(right, base, strict=True)),
        "wrong": sum(not ok for ok in right),
        "all": table["total"],
    }
    assert table["counts"] == expected
    domain = table["domains"][0]
    only = client.get("/api/examples", params={"domain": domain, "filter": "all", "descending": True}).json()
    assert {row["domain"] for row in only["rows"]} == {domain}
    (one,) = client.get(f"/api/examples?row={rows[3]['row']}").json()["rows"]
    assert one == rows[3]
    (answer,) = predict(client, one["input"])
    assert answer["answer"] == one["answer"]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"inputs": []}, "no inputs"),
    "no list": ({"inputs": "a text"}, "inputs"),
    "a text": ({"inputs": ["a text"]}, "not a list of"),
    "too few numbers": ({"inputs": [[1.0, 2.0]]}, "6 numbers"),
    "no rule": ({"inputs": [POINT], "rule": "none"}, "no rule 'none'"),
    "an oracle": ({"inputs": [POINT], "rule": "oracle"}, "true domain"),
    "no router": ({"inputs": [POINT], "router": "none"}, "no router"),
    "no expert": ({"inputs": [POINT], "without": ["none"]}, "no expert 'none'"),
    "all experts": ({"inputs": [POINT], "without": ["0", "1", "2", "3"]}, "last expert"),
    "risk": ({"inputs": [POINT], "risk": 2}, "risk"),
    "risk as text": ({"inputs": [POINT], "risk": "0.1"}, "risk"),
    "risk of a rule without": ({"inputs": [POINT], "rule": "moe", "risk": 0.1}, "no risk control"),
    "a risk too small": ({"inputs": [POINT], "risk": 0.0001}, "calibration examples"),
    "weights off the simplex": ({"inputs": [POINT], "weights": [0.5, 0.2, 0.1, 0.1]}, "sum to 0.9"),
    "negative weights": ({"inputs": [POINT], "weights": [1.5, -0.5, 0, 0]}, "from 0 to 1"),
    "few weights": ({"inputs": [POINT], "weights": [0.5, 0.5]}, "4 experts"),
    "weights of nobody": ({"inputs": [POINT], "weights": {"none": 1.0}}, "no expert 'none'"),
    "weights without a router": ({"inputs": [POINT], "rule": "base", "weights": [1, 0, 0, 0]}, "no routing weights"),
    "unknown entry": ({"inputs": [POINT], "wight": 1}, "wight"),
    "many": ({"inputs": [[0]] * 10_000}, f"{MAX_INPUTS:,} at once"),
    "ε": ({"inputs": [POINT], "epsilon": -1}, "epsilon"),
    "true": ({"inputs": [[True] * 6]}, "6 numbers"),
}


@pytest.mark.parametrize(("body", "words"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_sentence(client: Any, body: dict[str, Any], words: str) -> None:
    response = client.post("/api/predict", json=body)
    assert response.status_code == 422
    (sentence,) = response.json().values()
    assert words in sentence
    assert "\n" not in sentence
    assert len(sentence) < 320


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"inputs": [[NaN, 1, 1, 1, 1, 1]]}', 422),
        (b'{"inputs": [[1e999, 1, 1, 1, 1, 1]]}', 422),
        (b"{", 422),
        (b"\xff\xfe", 422),
        (b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}", 422),
        (b'{"inputs": [], "inputs": []}', 422),
        (b'{"inputs": ["' + b"a" * MAX_BODY + b'"]}', 413),
        (b'{"inputs": ["' + b"a" * 2**20 + b'"]}', 422),
    ],
    ids=["NaN", "infinity", "half", "no UTF-8", "deep", "twice", "too large", "1 MB text"],
)
def test_a_bad_body_is_one_sentence(client: Any, content: bytes, status: int) -> None:
    response = client.post("/api/predict", content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert set(response.json()) == {"error"}


def test_a_body_without_length_is_bounded(client: Any) -> None:
    chunks = (b"a" * 2**16 for _ in range(2 * MAX_BODY // 2**16))
    response = client.post("/api/predict", content=chunks, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert client.post("/api/predict", content=b"x=1").status_code == 415


def test_texts_are_checked(addition: redx.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    with asking(addition.folder) as client:
        for value, words in (("  ", "empty"), ("a" * 2**20, "characters"), (7, "no text"), ("\0", "NUL")):
            response = client.post("/api/predict", json={"inputs": ["What is 3 plus 4?", value]})
            assert response.status_code == 422
            assert words in response.json()["error"]
        assert predict(client, "What is 3 plus 4?")[0]["answer"].isdigit()


# --- who may ask


def test_foreign_hosts_and_origins_are_refused(client: Any) -> None:
    body = {"json": {"inputs": [POINT]}}
    assert client.get("/api/model", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    assert client.post("/api/predict", headers={"origin": "http://evil.example"}, **body).status_code == 403
    assert client.post("/api/predict", headers={"sec-fetch-site": "cross-site"}, **body).status_code == 403
    assert client.post("/api/predict", headers={"origin": "http://127.0.0.1"}, **body).status_code == 200
    assert client.get("/healthz", headers={"host": "localhost:1"}).status_code == 200
    response = client.options("/api/predict", headers={"origin": "http://127.0.0.1"})
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_every_response_has_a_strict_policy(client: Any) -> None:
    for path in ("/", "/docs", "/api/model", "/page/main.js", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_a_token_opens_the_api(clouds: redx.Run) -> None:
    token = "sixteen-letters-or-more"
    with asking(clouds.folder, loopback=False, token=token) as client:
        assert client.get("/").status_code == 200  # the page itself holds no data
        assert client.get("/api/model").status_code == 401
        assert client.get("/openapi.json").status_code == 401
        assert client.get("/api/model", headers={"authorization": f"Bearer {token}x"}).status_code == 401
        assert client.get("/api/model", headers={"authorization": f"Bearer {token}"}).status_code == 200
        assert client.get("/api/model", headers={"authorization": f"bearer {token}"}).status_code == 200
        for given in (token, f"Basic {token}", f"Bearer{token}", "Bearer", "Bearer "):
            assert client.get("/api/model", headers={"authorization": given}).status_code == 401


def test_a_full_queue_asks_to_try_again(clouds: redx.Run) -> None:
    with asking(clouds.folder) as client:
        client.service.batcher.max_requests = 0  # type: ignore[attr-defined]
        response = client.post("/api/predict", json={"inputs": [POINT]})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert client.get("/").status_code == 200


# --- the page and the run


def test_the_page_is_small_and_asks_nobody_else(client: Any) -> None:
    files = page_files()
    assert sum(len(content) for _, content in files.values()) < 150_000
    for name, (_, content) in files.items():
        addresses = content.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"http:" not in addresses, name
        assert b"https:" not in addresses, name
        assert client.get(f"/page/{name}").content == content
    assert client.get("/page/..%2fapp.py").status_code == 404


def test_the_docs_describe_every_path(client: Any) -> None:
    page = client.get("/docs").text
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in page
    assert "http-equiv" not in page
    assert "<script" not in page


def test_serving_changes_nothing_in_the_run(clouds_copy: Path) -> None:
    def content() -> dict[str, str]:
        return {str(path): checksum(path) for path in clouds_copy.rglob("*") if path.is_file()}

    before = content()
    with asking(clouds_copy) as client:
        name = client.get("/api/model").json()["experts"][0]["name"]
        predict(client, POINT, without=[name], risk=0.2, abstain=0.2, detail=True, epsilon=0.5)
        client.post("/api/diff", json={"without": [name]})
        client.get("/api/price")
    assert content() == before


def test_a_run_that_is_changed_meanwhile_is_read_again(clouds_copy: Path) -> None:
    with asking(clouds_copy) as client:
        first = client.post("/api/predict", json={"inputs": [POINT]}).json()
        name = next(iter(first["answers"][0]["weights"]))
        remove_expert(clouds_copy, name)
        second = client.post("/api/predict", json={"inputs": [POINT]}).json()
        assert second["version"] > first["version"]
        assert name not in second["answers"][0]["weights"]
        assert client.post("/api/diff", json={"without": [name]}).status_code == 422
        with redx.load(clouds_copy).using() as model:
            assert second["answers"][0]["radius"] == pytest.approx(model.explain([POINT])[0].radius, abs=1e-5)


@pytest.mark.slow
def test_a_thousand_concurrent_requests_are_all_answered(clouds: redx.Run) -> None:
    points = torch.randn(1000, 6, generator=torch.Generator().manual_seed(3)).mul(4).tolist()
    expected = redx.load(clouds.folder).predict(points)

    async def ask(url: str) -> list[str]:
        import httpx2

        limits = httpx2.Limits(max_connections=1000)
        async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=120, trust_env=False) as client:
            replies = await asyncio.gather(*(client.post("/api/predict", json={"inputs": [one]}) for one in points))
        assert {reply.status_code for reply in replies} == {200}
        return [reply.json()["answers"][0]["answer"] for reply in replies]

    with serving(clouds.folder) as (url, service):
        assert asyncio.run(ask(url)) == expected
        assert service.batcher.batches < 1000  # they were answered together
        assert service.batcher.waiting == 0


def test_numbers_survive_the_way_to_the_browser(client: Any, clouds: redx.Run) -> None:
    """The scores in JSON are the float32 values themselves, so that sums in the browser start from the same numbers."""
    (answer,) = predict(client, POINT, detail=True, rule="red/plain")
    with redx.load(clouds.folder).using("red/plain") as model:
        parts = model.parts([POINT])
    sent = json.loads(json.dumps(answer["detail"]["experts"]))
    assert torch.equal(torch.tensor(sent), parts.residuals[0])
    assert all(math.isfinite(value) for value in answer["detail"]["offset"])


@pytest.mark.slow
def test_a_regression_is_served(toy: redx.Run) -> None:
    pairs = [[12, 5], [90, 99], [40, 3]]
    expected = redx.load(toy.folder).predict(pairs)
    with asking(toy.folder) as client:
        answers = predict(client, *pairs, detail=True, epsilon=1.0)
        assert [answer["answer"] for answer in answers] == expected
        detail = answers[0]["detail"]
        assert detail["regression"]
        assert len(detail["offset"]) == 1
        assert {answer["worst"]["changed"] for answer in answers if answer["radius"] < 1} <= {True}
        (row,) = client.get("/api/examples?row=7").json()["rows"]
        (again,) = predict(client, row["input"])
        assert again["answer"] == row["answer"]
