"""Intents: a run from the files to an answer, with few examples of every intent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import redx
from helpers.clinc import INTENTS, expect, write_clinc
from helpers.commands import Ask, refused, succeeded
from redx.runs.presets import configure

FEW: dict[str, Any] = {"epochs": {"base": 3, "experts": 2, "router": 2}, "blocks": [1, -1]}  # BERT has three blocks


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_run_from_the_files_to_an_answer(
    ask: Ask, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect(monkeypatch, write_clinc(tmp_path / "tiny"))
    done = redx.run(
        "intents", "quick", out=tmp_path / "run", data_dir=str(tmp_path / "tiny"), backbone=str(bert), shots=8, **FEW
    )
    assert done.summary["data"] | {"train": 48, "validation": 36, "test": 24} == done.summary["data"]
    assert done.summary["domains"] == ["travel", "work 2", "work 10"]
    assert done.summary["study"]["labels"] == 6
    for path in (tmp_path / "tiny").iterdir():
        path.unlink()  # a model needs them no more
    (answer,) = json.loads(succeeded(ask("predict", done.folder, "do i need a visa for france", "--json")))
    assert answer["answer"] in {intent for names in INTENTS.values() for intent in names}
    assert set(answer["weights"]) == set(INTENTS)
    encoder = redx.load(done.folder).base.encoder
    assert encoder.width == 2 * len(
        range(encoder.width)[encoder.abstention_features]
    )  # abstention reads the last block alone


def test_shots_are_a_positive_number(ask: Ask) -> None:
    assert configure("intents", shots=10).shots == 10
    refused(ask("run", "intents", "--shots", "0"), "shots", "greater")


@pytest.mark.parametrize("preset", ["quick", "default"])
def test_presets_use_one_thread_and_compare_every_form(preset: str) -> None:
    config = configure("intents", preset)
    assert (config.threads, config.ownership.kind, config.backbone) == (1, "classes", "minilm-l6")
    assert {bank_id.form for bank_id in config.banks} == {"residual", "standalone", "pooled"}
    assert config.has_ownership  # whose scores the router's gates contain
