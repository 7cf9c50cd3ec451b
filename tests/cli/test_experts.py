"""Commands that list, add, remove, replace and train experts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import redx
from redx.cli import main
from redx.io.files import write_json
from redx.io.reading import read_json
from redx.models.composed import Model

NAMES = ("range_2_20", "range_21_40", "range_41_60", "range_61_80", "range_81_100")


QUESTIONS = ["What is 37 plus 12?", "What is 2 plus 3?", "What is 50 plus 49?", "What is 11 plus 20?"]


@pytest.fixture
def run(addition: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that may be changed."""
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    return Path(shutil.copytree(addition.folder, tmp_path / "run"))


@pytest.fixture
def model(run: Path) -> Model:
    return redx.load(run)


def do(*words: object) -> None:
    """A command that ends well."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 0


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one sentence a command ends with."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("redx: ")
    assert "\n" not in said
    return said


def test_commands_change_a_run_and_lose_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "seed-0" / "parts" / "residual-owned.safetensors").read_bytes()
    do("experts", "remove", str(run), NAMES[4])
    kept = run / "seed-0" / "removed" / NAMES[4]
    assert redx.load(run).domains == NAMES[:4]
    assert (run / "seed-0" / "parts" / "residual-owned.safetensors").read_bytes() != before
    do("evaluate", str(run), "--rule", "red")
    do("experts", "add", str(run), str(kept))
    assert (run / "seed-0" / "parts" / "residual-owned.safetensors").read_bytes() == before
    do("experts", "replace", str(run), NAMES[4], str(kept))
    assert (run / "seed-0" / "parts" / "residual-owned.safetensors").read_bytes() == before
    do("experts", "list", str(run))
    assert NAMES[4] in capsys.readouterr().out


def test_an_expert_is_trained_anywhere_from_base_and_shared_subset(run: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    for name in ("config.json", "seed-0/model.json", "seed-0/base.safetensors", "seed-0/shared.safetensors"):
        (away / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(run / name, away / name)
    lines = [{"question": f"What is {a} plus {b}?", "answer": a + b} for a in range(2, 8) for b in range(2, 5)]
    data = tmp_path / "small.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    do("experts", "train", str(away), "--domain", "small sums", "--data", str(data), "--out", str(tmp_path / "one"))
    kept = ["--dtype", "float16", "--out", str(tmp_path / "half")]
    do("experts", "train", str(away), "--domain", "small sums", "--data", str(data), *kept)
    one, half = (load_file(tmp_path / name / "expert.safetensors") for name in ("one", "half"))
    assert all(torch.equal(one[name].half(), half[name]) for name in one if one[name].is_floating_point())
    do("experts", "add", str(run), str(tmp_path / "half"))
    do("router", "train", str(run), "--domain", "small sums", "--data", str(data))
    model = redx.load(run)
    assert model.experts.names == (*NAMES, "small sums")
    assert set(model.explain(QUESTIONS)[0]["weights"]) == set(model.experts.names)


def test_router_train_does_only_that(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    do("experts", "remove", str(run), NAMES[0])
    others = {path: path.read_bytes() for path in (run / "seed-0" / "experts").rglob("*.safetensors")}
    base = (run / "seed-0" / "base.safetensors").read_bytes()
    do("router", "train", str(run))
    assert redx.load(run).facts.routed == NAMES[1:]
    assert (run / "seed-0" / "base.safetensors").read_bytes() == base
    assert all(path.read_bytes() == content for path, content in others.items())
    do("experts", "add", str(run), str(run / "seed-0" / "removed" / NAMES[0]))
    assert "redx router train" in capsys.readouterr().out
    assert "--router keys" in refused(capsys, "predict", run, "What is 3 plus 4?")
    do("predict", str(run), "What is 3 plus 4?", "--router", "keys")


def test_bad_input_gets_one_sentence_and_changes_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = run / "seed-0" / "experts" / NAMES[0]
    listed = sorted(path.name for path in place.parent.iterdir())

    def spoil(name: str) -> Path:
        return Path(shutil.copytree(place, tmp_path / name))

    assert "already" in refused(capsys, "experts", "add", run, place)
    truncated = spoil("truncated")
    do("experts", "remove", str(run), NAMES[0])
    do("experts", "add", str(run), str(run / "seed-0" / "removed" / NAMES[0]))
    capsys.readouterr()
    (truncated / "expert.safetensors").write_bytes((place / "expert.safetensors").read_bytes()[:500])
    assert "truncated" in refused(capsys, "experts", "replace", run, NAMES[0], truncated)
    outside = spoil("outside")
    write_json(outside / "expert.json", read_json(place / "expert.json") | {"domain": "../x"})
    assert "cannot be called" in refused(capsys, "experts", "add", run, outside)
    pickled = spoil("pickled")
    (pickled / "expert.safetensors").rename(pickled / "expert.pt")
    assert "unpickling runs" in refused(capsys, "experts", "add", run, pickled)
    (tmp_path / "bomb.zip").write_bytes(b"PK\x03\x04")
    assert "give the folder of an expert" in refused(capsys, "experts", "add", run, tmp_path / "bomb.zip")
    broken = spoil("nan")
    tensors = load_file(place / "expert.safetensors")
    save_file({name: value.float() * float("nan") for name, value in tensors.items()}, broken / "expert.safetensors")
    assert "contains NaN" in refused(capsys, "experts", "replace", run, NAMES[0], broken)
    odd = spoil("odd")
    save_file({name: value[..., :1].contiguous() for name, value in tensors.items()}, odd / "expert.safetensors")
    assert "do not fit" in refused(capsys, "experts", "replace", run, NAMES[0], odd)
    assert "There is no expert 'x'" in refused(capsys, "experts", "remove", run, "x")
    assert "nothing to compare" in refused(capsys, "experts", "diff", run)
    assert "not there" in refused(capsys, "experts", "add", run, tmp_path / "nowhere")
    for name in NAMES[1:]:
        do("experts", "remove", str(run), name)
    assert "last expert" in refused(capsys, "experts", "remove", run, NAMES[0])
    for name in NAMES[1:]:
        do("experts", "add", str(run), str(run / "seed-0" / "removed" / name))
    assert sorted(path.name for path in place.parent.iterdir()) == listed


def test_bad_own_data_is_refused_by_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "own.jsonl"
    words = ("experts", "train", run, "--domain", "x", "--data", data)
    data.write_text('{"question": "What is 3 plus 4?", "answer": 7}\n{"question": "huge", "answer": 1000}\n')
    assert "2" in (said := refused(capsys, *words))
    assert "no class of this model" in said
    data.write_text('{"question": "What is 3 plus 4?", "answer": 7}\n')
    assert "at least 8" in refused(capsys, *words)
    assert "no column 'b'" in refused(capsys, *words, "--text", "b")
    assert not (Path("trained") / "x").exists()
    assert "cannot be called" in refused(capsys, "experts", "train", run, "--domain", "../x", "--data", data)
    assert "cannot be kept as 'int8'" in refused(capsys, *words, "--dtype", "int8")
