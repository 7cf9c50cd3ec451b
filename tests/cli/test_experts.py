"""Commands that list, add, remove, replace and train experts, and train the router."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import redx
from helpers.commands import Ask, refused, succeeded
from helpers.own_data import draw_clouds, write_arrays
from helpers.runs import RunCopy
from redx.io.files import write_json
from redx.io.reading import read_json

QUESTIONS = ["What is 37 plus 12?", "What is 2 plus 3?", "What is 50 plus 49?", "What is 11 plus 20?"]


def test_experts_are_removed_added_and_replaced_without_loss(run_copy: RunCopy, ask: Ask) -> None:
    run, last = run_copy.folder, run_copy.names[-1]
    parts = run_copy.seed / "parts" / "residual-risk.safetensors"
    before = parts.read_bytes()
    succeeded(ask("experts", "remove", run, last))
    assert redx.load(run).experts.names == run_copy.names[:-1]
    assert parts.read_bytes() != before
    succeeded(ask("evaluate", run, "--rule", "red"))
    succeeded(ask("experts", "add", run, run_copy.removed(last)))
    assert parts.read_bytes() == before
    succeeded(ask("experts", "replace", run, last, run_copy.removed(last)))
    assert parts.read_bytes() == before
    assert last in succeeded(ask("experts", "list", run))


def train_elsewhere(ask: Ask, run: RunCopy, data: Path, tmp_path: Path) -> None:
    """Train an expert from the base and the shared subset alone, add it, and retrain the router."""
    away = tmp_path / "away"
    for name in ("config.json", "seed-0/model.json", "seed-0/base.safetensors", "seed-0/shared.safetensors"):
        (away / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(run.folder / name, away / name)
    own = ("--domain", "new one", "--data", data)
    succeeded(ask("experts", "train", away, *own, "--out", tmp_path / "full"))
    succeeded(ask("experts", "train", away, *own, "--out", tmp_path / "half", "--dtype", "float16"))
    full, half = (load_file(tmp_path / name / "expert.safetensors") for name in ("full", "half"))
    assert all(torch.equal(full[name].half(), half[name]) for name in full if full[name].is_floating_point())
    succeeded(ask("experts", "add", run.folder, tmp_path / "half"))
    succeeded(ask("router", "train", run.folder, *own))


@pytest.mark.slow
def test_an_expert_on_texts_is_trained_elsewhere(addition_copy: Path, tmp_path: Path, ask: Ask) -> None:
    run = RunCopy(addition_copy, redx.load(addition_copy).experts.names)
    lines = [{"question": f"What is {a} plus {b}?", "answer": a + b} for a in range(2, 8) for b in range(2, 5)]
    data = tmp_path / "small.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    train_elsewhere(ask, run, data, tmp_path)
    model = redx.load(run.folder)
    assert set(model.experts.names) == {*run.names, "new one"}
    assert set(model.explain(QUESTIONS)[0].weights) == set(model.experts.names)


def test_an_expert_on_features_is_trained_elsewhere(clouds_copy: Path, tmp_path: Path, ask: Ask) -> None:
    run = RunCopy(clouds_copy, redx.load(clouds_copy).experts.names)
    arrays = draw_clouds(40, seed=5)
    data = write_arrays(tmp_path / "small.npz", x=arrays["x"] - 20, y=arrays["y"])
    train_elsewhere(ask, run, data, tmp_path)
    model = redx.load(run.folder)
    assert set(model.experts.names) == {*run.names, "new one"}
    assert model.explain([[-20.0] * 6])[0].expert == "new one"  # the router was trained on its data


def test_training_the_router_changes_nothing_else(run_copy: RunCopy, ask: Ask) -> None:
    run, (first, *rest) = run_copy.folder, run_copy.names
    succeeded(ask("experts", "remove", run, first))
    others = {path: path.read_bytes() for path in (run_copy.seed / "experts").rglob("*.safetensors")}
    base = (run_copy.seed / "base.safetensors").read_bytes()
    succeeded(ask("router", "train", run))
    assert redx.load(run).info.routed == tuple(rest)
    assert (run_copy.seed / "base.safetensors").read_bytes() == base
    assert all(path.read_bytes() == content for path, content in others.items())
    assert "redx router train" in succeeded(ask("experts", "add", run, run_copy.removed(first)))


@pytest.mark.slow
def test_keys_routes_while_the_router_lacks_a_gate_and_every_answer_says_so(addition_copy: Path, ask: Ask) -> None:
    run = RunCopy(addition_copy, redx.load(addition_copy).experts.names)
    succeeded(ask("experts", "remove", run.folder, run.names[0]))
    succeeded(ask("router", "train", run.folder))
    note = f"the trained router has no gate for {run.names[0]!r}, so keys routes until `redx router train RUN`"
    added = succeeded(ask("experts", "add", run.folder, run.removed(run.names[0]), "--json"))
    assert json.loads(added)["note"] == note
    words = ("predict", run.folder, "What is 3 plus 4?")
    for rule in ((), ("--rule", "sum")):
        code, out, err = ask(*words, *rule, "--json")
        assert (code, err) == (0, f"note: {note}\n")
        assert [(answer["router"], answer["note"]) for answer in json.loads(out)] == [("keys", note)]
    assert note in ask(*words)[2]
    code, out, err = ask(*words, "--router", "keys", "--json")
    assert (code, err, "note" in json.loads(out)[0]) == (0, "", False)
    refused(ask(*words, "--router", "router"), "has no gate", "redx router train RUN")
    succeeded(ask("router", "train", run.folder))
    code, out, err = ask(*words, "--json")
    assert (code, err, json.loads(out)[0]["router"]) == (0, "", "router")


def test_bad_experts_are_refused_in_one_sentence_and_change_nothing(
    run_copy: RunCopy, tmp_path: Path, ask: Ask
) -> None:
    run, (first, *rest) = run_copy.folder, run_copy.names
    expert = run_copy.seed / "experts" / first
    listed = sorted(path.name for path in expert.parent.iterdir())
    tensors = load_file(expert / "expert.safetensors")

    def copy(name: str) -> Path:
        return Path(shutil.copytree(expert, tmp_path / name))

    refused(ask("experts", "add", run, expert), "already")
    truncated = copy("truncated")
    succeeded(ask("experts", "remove", run, first))
    succeeded(ask("experts", "add", run, run_copy.removed(first)))
    (truncated / "expert.safetensors").write_bytes((expert / "expert.safetensors").read_bytes()[:500])
    refused(ask("experts", "replace", run, first, truncated), "truncated")
    outside = copy("outside")
    write_json(outside / "expert.json", read_json(expert / "expert.json") | {"domain": "../x"})
    refused(ask("experts", "add", run, outside), "cannot be called")
    pickled = copy("pickled")
    (pickled / "expert.safetensors").rename(pickled / "expert.pt")
    refused(ask("experts", "add", run, pickled), "unpickling runs")
    (tmp_path / "bomb.zip").write_bytes(b"PK\x03\x04")
    refused(ask("experts", "add", run, tmp_path / "bomb.zip"), "give the folder of an expert")
    broken: dict[str, Any] = {name: value.float() * float("nan") for name, value in tensors.items()}
    save_file(broken, copy("nan") / "expert.safetensors")
    refused(ask("experts", "replace", run, first, tmp_path / "nan"), "contains NaN")
    narrow = {name: value[..., :1].contiguous() for name, value in tensors.items()}
    save_file(narrow, copy("narrow") / "expert.safetensors")
    refused(ask("experts", "replace", run, first, tmp_path / "narrow"), "do not fit")
    refused(ask("experts", "remove", run, "x"), "There is no expert 'x'")
    refused(ask("experts", "diff", run), "nothing to compare")
    refused(ask("experts", "add", run, tmp_path / "nowhere"), "not there")
    for name in rest:
        succeeded(ask("experts", "remove", run, name))
    refused(ask("experts", "remove", run, first), "last expert")
    for name in rest:
        succeeded(ask("experts", "add", run, run_copy.removed(name)))
    assert sorted(path.name for path in expert.parent.iterdir()) == listed


@pytest.mark.slow
def test_bad_data_for_a_new_expert_are_refused_by_line(addition_copy: Path, tmp_path: Path, ask: Ask) -> None:
    data = tmp_path / "own.jsonl"
    words = ("experts", "train", addition_copy, "--domain", "x", "--data", data)
    data.write_text('{"question": "What is 3 plus 4?", "answer": 7}\n{"question": "huge", "answer": 1000}\n')
    refused(ask(*words), "2", "no class of this model")
    data.write_text('{"question": "What is 3 plus 4?", "answer": 7}\n')
    refused(ask(*words), "at least 8")
    refused(ask(*words, "--text", "b"), "no column 'b'")
    assert not (Path("trained") / "x").exists()
    refused(ask("experts", "train", addition_copy, "--domain", "../x", "--data", data), "cannot be called")
    refused(ask(*words, "--dtype", "int8"), "cannot be kept as 'int8'")


def test_what_a_change_would_do_is_shown_and_nothing_is_written(run_copy: RunCopy, ask: Ask) -> None:
    run, name = run_copy.folder, run_copy.names[2]
    files = sorted(path for path in run.rglob("*") if path.is_file())
    diff = json.loads(succeeded(ask("experts", "diff", run, "--remove", name, "--json")))
    assert sorted(path for path in run.rglob("*") if path.is_file()) == files
    assert set(diff["domains"]) <= set(run_copy.names)
    assert diff["flips"] >= len(diff["examples"])
    total = sum(domain["examples"] for domain in diff["domains"].values())
    assert total == diff["count"] > 0
    change = diff["accuracy"]["after"] - diff["accuracy"]["before"]
    assert diff["gained"] - diff["lost"] == round(change * total)
    certified = diff["certificates"]["0"]
    assert certified["before"] == diff["accuracy"]["before"]
    assert certified["after"] == diff["accuracy"]["after"]
    succeeded(ask("experts", "remove", run, name))
    back = json.loads(succeeded(ask("experts", "diff", run, "--add", run_copy.removed(name), "--json")))
    assert back["accuracy"] == {"before": diff["accuracy"]["after"], "after": diff["accuracy"]["before"]}
    assert (back["gained"], back["lost"]) == (diff["lost"], diff["gained"])
    assert "Certificates" in succeeded(ask("experts", "diff", run, "--add", run_copy.removed(name)))
