"""Audit files: one line for every answer, which a run answers again in the same way until it is changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import redx
from helpers.commands import Ask, refused, succeeded
from helpers.files import disk_full
from helpers.serving import asking
from redx.runs.editing import remove_expert
from redx.serve.audit import AuditFile, replay_file

POINTS = torch.randn(12, 6, generator=torch.Generator().manual_seed(5)).mul(4).tolist()


def record(folder: Path, file: Path, **settings: Any) -> list[dict[str, Any]]:
    """Ask a served run in several settings, and return the lines of its audit file."""
    with asking(folder, audit=file, **settings) as client:
        names = [expert["name"] for expert in client.get("/api/model").json()["experts"]]
        bodies: list[dict[str, Any]] = [
            {"inputs": POINTS},
            {"inputs": POINTS[:3], "rule": "sum", "risk": 0.3},
            {"inputs": POINTS[:2], "without": [names[0]], "detail": True},
            {"inputs": POINTS[:2], "weights": {names[1]: 1.0}},
            {"inputs": POINTS[:2], "abstain": 0.2, "router": "keys"},
        ]
        for body in bodies:
            assert client.post("/api/predict", json=body).status_code == 200
        assert client.post("/api/predict", json={"inputs": ["bad"]}).status_code == 422
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_answer_is_recorded_and_repeats(ask: Ask, clouds: redx.Run, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    lines = record(clouds.folder, file)
    assert len(lines) == len(POINTS) + 9
    assert {"time", "input", "answer", "weights", "radius", "cutoff", "base_hash", "expert_hashes", "redx"} <= set(
        lines[0]
    )
    assert file.stat().st_mode & 0o077 == 0
    text = succeeded(ask("replay", file, clouds.folder))
    assert f"{len(lines)} of {len(lines)} lines were answered again, 0 differ" in text
    record(clouds.folder, file)  # a second server appends
    assert replay_file(file, clouds.folder).lines == 2 * len(lines)


def test_a_changed_run_is_reported(ask: Ask, clouds_copy: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    record(clouds_copy, file)
    name = redx.load(clouds_copy).experts.names[2]
    remove_expert(clouds_copy, name)
    code, out, _ = ask("replay", file, clouds_copy, "--json")
    result = json.loads(out)
    assert code == 1
    assert result["changed"] == [f"expert {name}"]
    assert {one["field"] for one in result["differences"]} <= {"answer", "weights", "radius", "cutoff", "error"}
    code, out, _ = ask("replay", file, clouds_copy)
    assert code == 1
    assert f"Changed since then: expert {name}" in out


def test_a_forged_line_is_reported(clouds: redx.Run, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    lines = record(clouds.folder, file)
    lines[4]["answer"] = "neither"
    lines[7]["radius"] = lines[7]["radius"] / 2 + 0.2
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = replay_file(file, clouds.folder)
    assert [(one.line, one.field) for one in result.differences] == [(5, "answer"), (8, "radius")]
    assert result.changed == []


def test_hashes_hide_the_inputs(clouds: redx.Run, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    lines = record(clouds.folder, file, hashed=True)
    assert all("input" not in line and len(line["input_sha256"]) == 64 for line in lines)
    result = replay_file(file, clouds.folder)
    assert (result.hashed, result.same) == (len(lines), True)


def test_files_that_are_no_audit_files_are_refused(ask: Ask, clouds: redx.Run, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    refused(ask("serve", clouds.folder, "--audit", other, "--port", "0"), "something else")
    assert other.read_text() == "mine"
    refused(ask("serve", clouds.folder, "--audit", tmp_path / "none" / "a.jsonl", "--port", "0"), "Cannot write")
    refused(ask("replay", other, clouds.folder), "Line 1")
    refused(ask("replay", tmp_path / "missing", clouds.folder), "missing")
    (tmp_path / "wrong.jsonl").write_text(
        '{"kind": "x", "setting": {}, "options": {}, "base_hash": "", "expert_hashes": {}}\n'
    )
    refused(ask("replay", tmp_path / "wrong.jsonl", clouds.folder), "no answer of")


def test_an_answer_that_cannot_be_recorded_is_not_given(clouds: redx.Run, tmp_path: Path) -> None:
    with asking(clouds.folder, audit=tmp_path / "answers.jsonl") as client:
        with mock.patch.object(os, "write", disk_full):
            response = client.post("/api/predict", json={"inputs": POINTS})
        assert response.status_code == 422
        assert "Cannot record" in response.json()["error"]


@pytest.mark.slow
def test_chains_repeat(chains: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(chains.folder.parent / "cache"))
    file = tmp_path / "answers.jsonl"
    with asking(chains.folder, audit=file) as client:
        body = {"inputs": ["12 plus 5 minus 3", "how are you"], "epsilon": 0.5}
        chain, nothing = client.post("/api/predict", json=body).json()["answers"]
        (solved, _) = redx.solver(chains.folder).solve(body["inputs"])
        assert not isinstance(solved, redx.RedxError)
        assert chain["answer"] == solved.answer
        assert [step["answer"] for step in chain["steps"]] == [str(step.answer) for step in solved.steps]
        assert nothing["answer"] is None
        assert nothing["reason"]
    assert replay_file(file, chains.folder).same


def test_the_file_is_opened_for_its_owner_alone(tmp_path: Path) -> None:
    AuditFile(tmp_path / "a.jsonl").close()
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600
