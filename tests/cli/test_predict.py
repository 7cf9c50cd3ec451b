"""`redx predict`: answers with the weights and contributions of the experts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import redx
from helpers.commands import Ask, refused, succeeded
from redx.data.text import unpack_texts
from redx.models.backbones.language import FrozenLM
from redx.runs.folder import read_config
from redx.tasks import get_task


@pytest.mark.slow
def test_an_answer_comes_with_weights_and_contributions(ask: Ask, addition: redx.Run) -> None:
    (explanation,) = json.loads(succeeded(ask("predict", addition.folder, "What is 37 plus 12?", "--json")))
    assert explanation["text"] == "What is 37 plus 12?"
    assert {"answer", "range", "expert", "base", "weights", "contributions", "radius"} <= set(explanation)
    out = succeeded(ask("predict", addition.folder, "What is 37 plus 12?", "--rule", "sum"))
    assert all(name in out for name in ("range_2_20", "certified radius", "weight"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "named"), [("", "no text"), ("x" * 10_000, "10,000"), ("a\0b", "NUL"), ("   ", "no text")]
)
def test_unreadable_texts_are_refused(ask: Ask, addition: redx.Run, text: str, named: str) -> None:
    refused(ask("predict", addition.folder, text), named)


def test_a_run_that_reads_no_text_is_refused(ask: Ask, clouds: redx.Run) -> None:
    refused(ask("predict", clouds.folder, "1 2"), "redx.load")


@pytest.mark.slow
def test_experts_are_left_out_and_the_risk_is_chosen(ask: Ask, addition: redx.Run) -> None:
    question, name = "What is 37 plus 12?", redx.load(addition.folder).experts.names[0]
    words = ("predict", addition.folder, question, "--without", name, "--risk", "0.2", "--json")
    (answer,) = json.loads(succeeded(ask(*words)))
    assert name not in answer["weights"]
    with redx.load(addition.folder).using(without=[name]) as model:
        model.calibrate(risk=0.2)
        (expected,) = model.explain([question])
        assert answer["radius"] == pytest.approx(expected.radius, abs=1e-6)
        assert set(expected.as_dict()) <= set(answer)
    refused(ask("predict", addition.folder, question, "--without", "nobody"), "no expert 'nobody'")


@pytest.mark.slow
def test_with_cached_features_transformers_is_not_imported(addition: redx.Run) -> None:
    config = read_config(addition.folder)
    known = unpack_texts(get_task(config.task).load(config, 0).test.inputs[:1])[0]
    code = (
        "import sys; from redx.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('transformers' in sys.modules)"
    )
    environment = os.environ | {"REDX_CACHE": str(addition.folder.parent / "cache")}
    for text, loads in ((known, "False"), ("What is 3 plus 2 plus a text that nobody cached?", "True")):
        command = [sys.executable, "-c", code, "predict", str(addition.folder), text, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert done.stdout.split()[-1] == loads


@pytest.mark.slow
def test_a_new_text_is_encoded_once(ask: Ask, addition_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = FrozenLM.encode

    def count(self: FrozenLM, texts: list[str]) -> object:
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(FrozenLM, "encode", count)
    new = "What is 4 plus 11 and what nobody has asked?"
    succeeded(ask("predict", addition_copy, new, "--abstain", "0.5"))
    assert encoded.count(new) == 1
    encoded.clear()
    redx.load(addition_copy).predict([new], abstain=0.5)
    assert encoded.count(new) == 1
