"""Commands for tasks, the machine, made data, the cache and backbones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import redx
from helpers.commands import Ask, refused, succeeded
from redx.tasks.arithmetic.questions import KINDS


def test_tasks_are_listed(ask: Ask) -> None:
    assert "toy" in json.loads(succeeded(ask("list", "--json")))


def test_version(ask: Ask) -> None:
    assert succeeded(ask("--version")).strip() == f"redx {redx.__version__}"


def test_the_machine_is_described(ask: Ask, own_cache: Path) -> None:
    assert json.loads(succeeded(ask("doctor", "--json")))["torch"] == torch.__version__


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_question_is_made(ask: Ask, kind: str, tmp_path: Path) -> None:
    made = tmp_path / "made.jsonl"
    out = succeeded(ask("data", kind, "--out", made, "--total", "200", "--seed", "3", "--json"))
    assert json.loads(out)["questions"] == 200
    lines = [json.loads(line) for line in made.read_text().splitlines()]
    assert len(lines) == 200
    assert all(tuple(line) == KINDS[kind].fields for line in lines)


def test_unknown_kinds_and_options_of_questions_are_refused(ask: Ask, tmp_path: Path) -> None:
    for words in (["nosuch"], ["addition", "--operators", "2"], ["ops", "--operation", "pow"]):
        refused(ask("data", *words, "--out", tmp_path / "x.jsonl"))
        assert not (tmp_path / "x.jsonl").exists()


def test_the_cache_is_shown_and_cleared(ask: Ask, own_cache: Path) -> None:
    (own_cache / "features" / "x").mkdir(parents=True)
    (own_cache / "features" / "x" / "a.npy").write_bytes(b"12345")
    assert json.loads(ask("cache", "info", "--json")[1])["entries"][0]["bytes"] == 5
    assert "features" in ask("cache", "info")[1]
    assert json.loads(ask("cache", "clear", "features", "--json")[1]) == {"freed": 5}
    refused(ask("cache", "clear", "nosuch"), "nosuch")


def test_a_backbone_is_a_folder_or_a_known_name(ask: Ask, qwen: Path) -> None:
    assert json.loads(succeeded(ask("fetch", "backbone", qwen, "--json"))) == {"folder": str(qwen)}
    refused(ask("fetch", "backbone", "nosuch"), "smollm2-135m")
