"""The monitor of a server: labels of earlier answers, figures for Prometheus, bounded memory, and the token."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

import redx
from helpers.parts import draw_parts
from helpers.serving import asking
from redx.composition.parts import predicted_classes
from redx.composition.risk import own_mistakes
from redx.errors import RedxError
from redx.model.answers import find_opposed
from redx.runs.calibration import calibrate_run
from redx.serve import metrics
from redx.serve.live import LiveMonitor
from redx.serve.loaded import LoadedRun
from redx.serve.queries import LabelBody, Query
from redx.serve.service import Service

POINTS = torch.randn(12, 6, generator=torch.Generator().manual_seed(5)).mul(4).tolist()
TOKEN = {"authorization": "Bearer " + "x" * 16}


def figures(client: Any) -> dict[tuple[str, ...], float]:
    """Return the samples of /metrics by name and values of their labels, which are sorted by name."""
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def send(client: Any, *labels: dict[str, Any], status: int = 200) -> dict[str, Any]:
    """Send labels and return the reply."""
    response = client.post("/api/labels", json={"labels": list(labels)})
    assert response.status_code == status, response.text
    return response.json()


def test_labels_count_once_and_all_or_none(clouds: redx.Run) -> None:
    with asking(clouds.folder) as client:
        answers = client.post("/api/predict", json={"inputs": POINTS}).json()["answers"]
        before = client.get("/api/monitor").json()
        assert before["monitored"]
        assert (before["alarm"], before["tests"][0]["lines"], before["tests"][-1]["lines"]) == (False, 0, len(POINTS))
        first, second, third = ({"id": one["id"], "label": one["base"]} for one in answers[:3])
        reply = send(client, first, second)
        assert (reply["counted"], reply["tests"][0]["lines"]) == (2, 2)
        harmed = sum(one["radius"] < 1 or one["answer"] != one["base"] for one in answers[:2])
        assert reply["tests"][0]["harmed"] == harmed
        for wrong, word in (
            (first, "has a label already"),
            ({"id": "nobody", "label": "high"}, "none of the last"),
            ({**third, "label": "nonsense"}, "no class of the run"),
            ({**third, "domain": "nowhere"}, "nowhere"),
        ):
            assert word in send(client, third, wrong, status=422)["error"] or wrong["id"] == third["id"]
        assert "already" in send(client, third, third, status=422)["error"]
        assert client.get("/api/monitor").json()["tests"][0]["lines"] == 2  # none of these counted
        assert send(client, third)["counted"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"labels": []},
        {"labels": [{"id": "a"}]},
        {"labels": [{"id": "a", "label": None}]},
        {"labels": [{"id": "a", "label": True}]},
        {"labels": [{"id": "a" * 200, "label": "b"}]},
        {"labels": [{"id": "a", "label": "b" * 20_000}]},
        {"labels": [{"id": "a", "label": "b", "more": 1}]},
        {"labels": [{"id": "a", "label": "b"}] * 1_001},
        [1],
    ],
)
def test_labels_that_cannot_be_read_are_one_sentence(client: Any, body: Any) -> None:
    response = client.post("/api/labels", json=body)
    assert response.status_code == 422
    assert response.json()["error"].count("\n") == 0


def test_text_from_outside_is_no_markup(client: Any) -> None:
    reply = send(client, {"id": "<script>alert(1)</script>", "label": "high"}, status=422)
    assert "<script>" in reply["error"]
    response = client.post("/api/labels", json={"labels": [{"id": "<b>", "label": "high"}]})
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"


def test_metrics_count_requests_answers_and_alarms(clouds: redx.Run) -> None:
    with asking(clouds.folder) as client:
        answers = client.post("/api/predict", json={"inputs": POINTS, "rule": "red"}).json()["answers"]
        client.post("/api/predict", json={"inputs": POINTS[:2], "rule": "moe"})
        client.post("/api/predict", json={"inputs": ["bad"]})
        client.get("/nowhere/\u00e9?x=1")
        client.get("/api/predict/unknown")
        send(client, {"id": answers[0]["id"], "label": answers[0]["base"]})
        found = figures(client)
    assert found["redx_requests_total", "POST", "/api/predict", "200"] == 2
    assert found["redx_requests_total", "POST", "/api/predict", "422"] == 1
    assert found["redx_requests_total", "GET", metrics.UNKNOWN, "404"] == 2
    assert found["redx_request_seconds_count", "/api/predict"] == 3
    assert (found["redx_answers_total", "red"], found["redx_answers_total", "moe"]) == (len(POINTS), 2)
    assert found["redx_monitor_lines", "", "confidences"] == len(POINTS)
    assert found["redx_monitor_lines", "", "overall"] == 1
    assert found["redx_monitor_alarm", "", "overall"] == 0
    assert found["redx_monitor_e_value", "", "confidences"] > 0
    assert found["redx_monitor_promised_risk",] > 0
    domains = {key[1] for key in found if key[0] == "redx_monitor_lines" and key[2] == "domain"}
    assert domains == set(redx.load(clouds.folder).domain_names)


def test_metrics_and_labels_need_the_token(clouds: redx.Run) -> None:
    with asking(clouds.folder, token="x" * 16) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/api/monitor").status_code == 401
        assert client.post("/api/labels", json={"labels": []}).status_code == 401
        assert client.get("/metrics", headers=TOKEN).status_code == 200
        assert client.get("/api/monitor", headers=TOKEN).status_code == 200
        samples = client.get("/metrics", headers=TOKEN).text
        assert 'redx_requests_total{method="GET",path="/metrics",status="401"} 1.0' in samples
        foreign = {**TOKEN, "sec-fetch-site": "cross-site"}
        assert client.get("/metrics", headers=foreign).status_code == 403


def test_abstentions_are_counted(clouds: redx.Run) -> None:
    with asking(clouds.folder) as client:
        body = {"inputs": [[1e3 * value for value in row] for row in POINTS], "abstain": 0.5}
        answers = client.post("/api/predict", json=body).json()["answers"]
        assert figures(client)["redx_abstained_total",] == sum(one["abstained"] for one in answers)


def test_memory_is_bounded(clouds: redx.Run) -> None:
    loaded = LoadedRun.read(clouds.folder, None)
    live = LiveMonitor(loaded, 0.05, kept=5)
    answers = [
        {"id": str(number), "answer": "high", "base": "high", "radius": 1.0, "confidence": 0.0} for number in range(12)
    ]
    live.count([Query(list(range(12)))], [answers])
    assert len(live._answers) == 5
    with pytest.raises(RedxError, match="none of the last 5 answers"):
        live.label([LabelBody(id="6", label="high")])
    assert live.label([LabelBody(id="7", label="high"), LabelBody(id="11", label="high")]) == 2
    assert live.watch.monitor.overall.lines == 2


def test_a_changed_run_is_monitored_anew(clouds_copy: Path) -> None:
    with asking(clouds_copy) as client:
        answers = client.post("/api/predict", json={"inputs": POINTS}).json()["answers"]
        before = client.get("/api/monitor").json()
        calibrate_run(clouds_copy, 0.3)
        after = client.get("/api/monitor").json()
        assert (after["risk"], after["tests"][-1]["lines"]) == (0.3, 0)
        assert after["version"] > before["version"]
        label = {"id": answers[0]["id"], "label": answers[0]["base"]}
        assert "none of the last" in send(client, label, status=422)["error"]


def test_the_audit_file_and_the_server_agree(clouds: redx.Run, tmp_path: Path) -> None:
    from redx.serve.monitor import monitor_file

    audit, labels = tmp_path / "a.jsonl", tmp_path / "l.jsonl"
    with asking(clouds.folder, audit=audit) as client:
        answers = client.post("/api/predict", json={"inputs": POINTS}).json()["answers"]
        rows = [{"id": one["id"], "label": one["base"]} for one in answers]
        live = send(client, *rows)
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert monitor_file(clouds.folder, audit, labels).to_dict()["tests"] == live["tests"]


def test_a_run_without_a_promise_is_served_all_the_same(clouds: redx.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadedRun, "promise_hash", None)
    with asking(clouds.folder) as client:
        answers = client.post("/api/predict", json={"inputs": POINTS}).json()["answers"]
        assert client.get("/api/monitor").json() == {"monitored": False}
        assert "promises nothing" in send(client, {"id": answers[0]["id"], "label": "high"}, status=422)["error"]
        assert not [key for key in figures(client) if key[0].startswith("redx_monitor")]


def test_a_monitor_that_cannot_be_made_stops_no_answer(clouds: redx.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RedxError("no calibration examples; give some.")

    monkeypatch.setattr("redx.serve.watch.calibration_confidences", fail)
    service = Service(clouds.folder)
    try:
        assert service.batcher.submit(Query(POINTS)).result(60)
        assert service.watch() == {"monitored": False}
    finally:
        service.close()


def test_opposed_experts_are_those_that_would_do_the_harm_themselves() -> None:
    parts = draw_parts(200, 4, 5)
    truth = predicted_classes(parts.base)
    sure = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    sure[:, 2] = -math.inf  # an expert in quarantine
    opposed = find_opposed(parts.with_confidences(sure, None))
    for expert in range(4):
        domains = torch.full((200,), expert)
        known = redx.Parts(parts.base, parts.residuals, parts.gates, truth, domains, sure)
        assert torch.equal(opposed[:, expert], own_mistakes(known))
    assert opposed[:, 0].any()
    assert not opposed[:, 0].all()
    assert not opposed[:, 2].any()
