"""A run from documents to report on a tiny model: figures, resumption, saving, and commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import redx
from helpers.adapters import ALPHABETS
from helpers.commands import Ask
from redx.adapters.base import load_base
from redx.adapters.checking import check_adapter
from redx.adapters.composed import ComposedLM
from redx.adapters.run import run_adapters
from redx.adapters.settings import LoraTraining, get_preset
from redx.adapters.training import save_adapter, train_adapter
from redx.errors import RedxError

DOMAINS = list(ALPHABETS)


@pytest.fixture
def finished(adapters: redx.Run, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return shutil.copytree(adapters.folder, tmp_path / "copy")


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def test_summary(finished: Path) -> None:
    summary = summary_of(finished)
    ways = summary["ways"]
    for way in ("base", "own adapter", "wrong adapter", "router", "keys", "uniform", "any router", "merge cat"):
        assert set(ways[way]["perplexity"]) == {*DOMAINS, "mean"}
    for domain in DOMAINS:
        assert ways["own adapter"]["perplexity"][domain] == ways[f"adapter {domain}"]["perplexity"][domain]
        assert ways["any router"]["perplexity"][domain] >= ways["own adapter"]["perplexity"][domain]
        assert ways["any router at risk"]["accuracy"][domain] <= ways["router at risk"]["accuracy"][domain]
    certified = summary["certified"]
    for curve in certified.values():
        values = list(curve.values())
        assert values == sorted(values, reverse=True)
    assert certified["certified"]["0"] == pytest.approx(ways["router"]["accuracy"]["mean"])
    assert certified["certified"]["1"] == pytest.approx(ways["any router"]["accuracy"]["mean"], abs=0.02)
    harm = summary["harm"]
    for domain in DOMAINS:  # what the base has right and no router spoils is certified
        for way, at_risk in (("any router", "certified"), ("any router at risk", "certified at risk")):
            assert harm[way]["mean"] >= ways["base"]["accuracy"]["mean"] - certified[at_risk]["1"] - 1e-9
            assert 0 <= harm[way][domain] <= ways["base"]["accuracy"][domain]
    assert harm["any router at risk"]["mean"] <= harm["any router"]["mean"]


def test_a_run_continues_and_repeats_nothing(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = summary_of(finished)
    config = json.loads((finished / "config.json").read_text())
    from redx.adapters import run as module
    from redx.adapters.settings import AdaptersConfig

    settings = AdaptersConfig.model_validate(config | {"data_hash": "", "adapters": {}})
    monkeypatch.setattr(module, "train_adapter", lambda *_: pytest.fail("trained again"))
    calls = []
    measure = module.measure
    monkeypatch.setattr(module, "measure", lambda *args, **options: calls.append(1) or measure(*args, **options))
    assert run_adapters(settings, finished).summary == before
    assert not calls
    (finished / "results.jsonl").unlink()  # as if it had been killed before it wrote them
    again = run_adapters(settings, finished).summary
    assert len(calls) == 1
    assert again | {"seconds": 0} == before | {"seconds": 0}
    with pytest.raises(RedxError, match=r"other settings \(risk\)"):
        run_adapters(settings.model_copy(update={"risk": 0.5}), finished)


def test_given_adapters(finished: Path, tmp_path: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    tiny = get_preset("tiny").model_copy(
        update={"backbone": config["backbone"], "data": config["data"], "train": False}
    )
    folders = {domain: finished / "adapters" / domain for domain in DOMAINS}
    again = run_adapters(tiny, tmp_path / "run", folders).summary
    before = summary_of(finished)
    for way in ("base", "own adapter", "router", "any router"):
        assert again["ways"][way] == before["ways"][way]
    del folders["upper"]
    with pytest.raises(RedxError, match="domain 'upper' has no adapter"):
        run_adapters(tiny, tmp_path / "other", folders)
    with pytest.raises(RedxError, match="no documents of the domain 'x'"):
        run_adapters(tiny, tmp_path / "other", {"x": folders["lower"]})


def test_save_and_load(finished: Path, tmp_path: Path) -> None:
    composed = ComposedLM.from_pretrained(finished)
    saved = composed.save_pretrained(tmp_path / "saved")
    loaded = ComposedLM.from_pretrained(saved)
    assert torch.equal(loaded.scores("abc"), composed.scores("abc"))
    by_keys = ComposedLM.from_pretrained(saved, router="keys").generate("0123", 2)
    assert by_keys == ComposedLM.from_pretrained(finished, router="keys").generate("0123", 2)
    card = (saved / "README.md").read_text()
    summary = summary_of(finished)
    assert f"{summary['certified']['certified at risk']['1']:.4f} with the cut-off" in card
    assert "library_name: redx" in card
    with pytest.raises(RedxError, match="not empty"):
        composed.save_pretrained(saved)
    composed.remove("lower")  # the figures are not those of two adapters
    other = (composed.save_pretrained(tmp_path / "two") / "README.md").read_text()
    assert "were not evaluated together" in other


def test_commands(ask: Ask, finished: Path, tmp_path: Path) -> None:
    code, out, _ = ask("adapters", "list", finished, "--json")
    assert code == 0
    assert [entry["name"] for entry in json.loads(out)["adapters"]] == DOMAINS
    assert "digits" in ask("adapters", "list", finished)[1]
    code, out, _ = ask("generate", finished, "abc", "012", "--max-new-tokens", 3, "--json")
    results = json.loads(out)
    assert code == 0
    assert [result["prompt"] for result in results] == ["abc", "012"]
    for result in results:
        assert result["radius"] == min(step["radius"] for step in result["tokens"])
        assert sum(result["weights"].values()) == pytest.approx(1)
    code, out, _ = ask("generate", finished, "abc", "--max-new-tokens", 3, "--tokens", "--weight", "lower=1")
    assert code == 0
    assert "radius of the sequence" in out
    code, out, _ = ask("generate", finished, "abc", "--max-new-tokens", 3, "--stream")
    assert code == 0
    assert out.rstrip("\n") == results[0]["text"].rstrip("\n")
    code, out, _ = ask("adapters", "save", finished, tmp_path / "saved", "--json")
    assert code == 0
    assert Path(json.loads(out)["folder"]).is_dir()
    code, out, _ = ask("adapters", "add", tmp_path / "saved", finished / "adapters" / "lower", "--name", "again")
    assert code == 0
    assert "rank 2" in out
    code, out, _ = ask("adapters", "remove", tmp_path / "saved", "again", "--json")
    assert code == 0
    assert Path(json.loads(out)["kept"]).is_dir()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["generate", "RUN", " "], "prompt is empty"),
        (["generate", "RUN", "a" * 400], "more than the 256"),
        (["generate", "RUN", "a", "--weight", "lower"], "is not NAME=VALUE"),
        (["generate", "RUN", "a", "--weight", "lower=nan"], "NaN or infinite"),
        (["generate", "RUN", "a", "--weight", "lower=0.5"], "sum to 0.5"),
        (["generate", "RUN", "a", "--weight", "lower=1", "--weight", "lower=1"], "twice"),
        (["generate", "RUN", "a", "--router", "best"], "no router 'best'"),
        (["generate", "RUN", "a", "b", "--stream"], "one prompt"),
        (["generate", "nowhere", "a"], "There is no nowhere"),
        (["adapters", "remove", "RUN", "x"], "no adapter 'x'"),
        (["run", "adapters"], "There are no adapters"),
        (["run", "adapters", "--train", "--preset", "huge"], "no preset 'huge'"),
        (["run", "adapters", "--train", "--risk", "2"], "setting risk cannot be 2"),
    ],
)
def test_bad_commands(ask: Ask, finished: Path, words: list[str], sentence: str) -> None:
    code, _, err = ask(*[finished if word == "RUN" else word for word in words])
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1


def test_only_upper_blocks_are_adapted(adapters: redx.Run, tmp_path: Path) -> None:
    base = load_base(json.loads((adapters.folder / "config.json").read_text())["backbone"])
    settings = LoraTraining(rank=2, steps=1, batch=1, tokens=8, first_block=2)
    model, _ = train_adapter(base, torch.arange(16).view(2, 8), settings, 0, "upper")
    save_adapter(model, tmp_path / "upper")
    model.unload()
    names = load_file(tmp_path / "upper" / "adapter_model.safetensors")
    assert {name.split("layers.")[1].split(".")[0] for name in names} == {"2"}
    assert len(names) == 2 * 7  # every linear layer of a block, and not the head
    assert check_adapter(tmp_path / "upper", base).rank == 2
