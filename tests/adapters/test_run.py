"""`redx run adapters` on a tiny model: a run like every other, and what only a language model can do."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import redx
from helpers.adapters import ALPHABETS, save_adapter
from helpers.commands import Ask, refused, succeeded
from helpers.tampering import CHANGES, changed
from redx.adapters import stages
from redx.adapters.base import load_base
from redx.adapters.checking import check_adapter
from redx.adapters.composed import ComposedLM
from redx.adapters.training import save_adapter as write_adapter
from redx.adapters.training import train_adapter
from redx.composition.summary import SCHEMA
from redx.config import LoraTraining, RunConfig
from redx.errors import RedxError
from redx.io.manifest import MANIFEST
from redx.models.calibration import read_calibration
from redx.runs.integrity import verify_folder
from redx.runs.parts import read_parts
from redx.runs.presets import reproduce

DOMAINS = list(ALPHABETS)


@pytest.fixture
def finished(adapters: redx.Run, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return shutil.copytree(adapters.folder, tmp_path / "copy")


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def settings_of(run: Path) -> dict[str, Any]:
    config = json.loads((run / "config.json").read_text())
    return {"backbone": config["backbone"], "data": config["table"]["file"]}


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != "cost"}


def test_the_summary_is_that_of_other_runs(adapters: redx.Run) -> None:
    summary = adapters.summary
    assert summary["schema"] == SCHEMA
    assert summary["seeds"] == [0]
    assert summary["domains"] == DOMAINS
    assert summary["data"]["groups"] == 18, "documents"
    rules = summary["rules"]
    assert {"base", "red/plain", "red/keys", "red/risk", "red", "fixed/plain", "average/linear", "average/cat"} <= set(
        rules
    )
    for domain in DOMAINS:
        own, worst = rules["red-oracle/plain"]["per_domain_loss"], rules["red/plain"]["per_domain_worst_loss"]
        assert worst[domain] >= own[domain]
        assert rules["red/plain"]["per_domain_worst_loss"][domain] >= rules["red/risk"]["per_domain_worst_loss"][domain]
    for name in ("red/plain", "red/risk"):
        certified = list(rules[name]["certified"].values())
        assert certified == sorted(certified, reverse=True)
        assert certified[0] == pytest.approx(rules[name]["accuracy"]["mean"])
        assert rules[name]["worst_harm"] >= rules["base"]["accuracy"]["mean"] - certified[-1] - 1e-9
    promise = rules["red"]["risk"]
    assert promise["risk"] == 0.2
    assert promise["calibration"] == 18, "documents, not tokens"
    assert summary["router"]["accuracy"] > 0.6
    assert summary["paired"]["rules"]["base"]["better"] <= 18
    assert set(summary["modularity"]["without"]) == set(DOMAINS)
    assert summary["cost"]["parameters"]["residual/plain"] > 0


def test_requests_are_measured_after_their_prompts(adapters: redx.Run) -> None:
    """The losses of base, own and worst adapter, computed anew by peft's forward on every test document."""
    requests = adapters.summary["requests"]
    assert (requests["prompt"], requests["requests"], requests["bound"]) == (12, 18, 0.5)
    assert requests["calibration"] == 18
    assert requests["risk"] == pytest.approx(0.5 / 19), "the smallest that 18 documents support"
    config = RunConfig.model_validate(json.loads((adapters.folder / "config.json").read_text()))
    data = stages.load(config, 0)
    composed = redx.load(adapters.folder)
    assert isinstance(composed, ComposedLM)
    base, own, worst = [], [], []
    for window in stages.windows(data.documents, "test", composed.base.tokenizer, 24, 6):
        logits = composed.stack.forward([None, *DOMAINS], window.tokens[None, :-1].expand(4, -1)).logits
        labels = window.tokens[1:].expand(4, -1)
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")[:, 11:].mean(1)
        base.append(losses[0])
        own.append(losses[1 + window.domain])
        worst.append(losses[1:].amax())
    found = requests["losses"]
    for name, values in (("base", base), ("own", own), ("plain, worst", worst)):
        assert found[name] == pytest.approx(float(torch.stack(values).mean()), rel=1e-5)
    assert found["request, worst"] <= found["plain, worst"]
    assert found["plain"] <= found["plain, worst"] + 1e-6
    assert found["request"] <= found["request, worst"] + 1e-6
    assert requests["low"] <= requests["excess"] <= requests["high"]


def test_a_risk_of_requests_that_nothing_supports_is_refused(finished: Path, tmp_path: Path) -> None:
    settings = settings_of(finished)
    for risk, message in ((0.01, "18 calibration requests"), (0.6, "the bound")):
        with pytest.raises(RedxError, match=message):
            redx.run("adapters", "tiny", out=tmp_path / "run", train=True, request_risk=risk, **settings)


def test_the_figures_are_those_of_the_model(adapters: redx.Run) -> None:
    """The losses of base and own adapters, computed anew by peft's forward on every test document."""
    config = RunConfig.model_validate(json.loads((adapters.folder / "config.json").read_text()))
    assert config.adapters is not None
    data = stages.load(config, 0)
    composed = redx.load(adapters.folder)
    assert isinstance(composed, ComposedLM)
    found: dict[str, list[torch.Tensor]] = {"base": [], "red-oracle/plain": []}
    windows = stages.windows(data.documents, "test", composed.base.tokenizer, config.adapters.tokens, 6)
    for window in windows:
        for name, row in (("base", None), ("red-oracle/plain", DOMAINS[window.domain])):
            logits = composed.stack.forward([row], window.tokens[None, :-1]).logits[0]
            found[name].append(torch.nn.functional.cross_entropy(logits, window.tokens[1:], reduction="none"))
    for name, losses in found.items():
        assert adapters.summary["rules"][name]["loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)


def test_a_run_continues_and_repeats_nothing(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, settings = summary_of(finished), settings_of(finished)
    monkeypatch.setattr(stages, "train_adapter", lambda *_: pytest.fail("trained again"))
    calls = []
    keep = stages.shortlisted_parts
    monkeypatch.setattr(stages, "shortlisted_parts", lambda *args: calls.append(1) or keep(*args))
    again = redx.run("adapters", "tiny", out=finished, train=True, **settings).summary
    assert without_times(again) == without_times(before)
    assert not calls
    shutil.rmtree(finished / "seed-0" / "parts")  # as if it had been killed before it wrote them
    again = redx.run("adapters", "tiny", out=finished, train=True, **settings).summary
    assert len(calls) == 1
    assert without_times(again) == without_times(before)
    with pytest.raises(RedxError, match=r"other settings \(risk\)"):
        redx.run("adapters", "tiny", out=finished, train=True, risk=0.5, **settings)


def test_two_seeds_settings_and_tracking(finished: Path, tmp_path: Path) -> None:
    run = redx.run(
        "adapters",
        "tiny",
        seeds=[0, 1],
        out=tmp_path / "two",
        assignments=["adapters.training.steps=2", "adapters.merges=[]", "router.training.epochs=3"],
        track="tensorboard",
        train=True,
        domain=["digits", "lower"],
        **settings_of(finished),
    )
    assert run.summary["seeds"] == [0, 1]
    assert run.summary["domains"] == ["digits", "lower"]
    assert not [name for name in run.summary["rules"] if name.startswith("average")]
    assert run.summary["rules"]["red"]["accuracy"]["low"] < run.summary["rules"]["red"]["accuracy"]["high"]
    first, second = (read_parts(run.folder, seed).banks for seed in (0, 1))
    assert not all(torch.equal(first[bank].base, second[bank].base) for bank in first)
    assert list((run.folder / "track").rglob("events.*")), "training curves"
    assert run.load(1).names == ["digits", "lower"]
    command, missing = reproduce(RunConfig.model_validate(json.loads((run.folder / "config.json").read_text())))
    assert not missing
    assert "--train" in command
    assert "--domain digits --domain lower" in command


def test_given_adapters(finished: Path, tmp_path: Path) -> None:
    folders = {domain: finished / "seed-0" / "adapters" / domain for domain in DOMAINS}
    settings = settings_of(finished)
    again = redx.run("adapters", "tiny", out=tmp_path / "run", adapter=folders, **settings).summary
    before = summary_of(finished)
    for rule in ("base", "red-oracle", "red/plain", "average/cat"):
        assert again["rules"][rule] == before["rules"][rule]
    given = [f"{name}={folder}" for name, folder in folders.items()]
    for wrong, words in {
        (*given[:2],): "domain 'upper' has no adapter",
        (*given, f"x={folders['lower']}"): "no documents of the domain 'x'",
        ("lower",): "is not NAME=FOLDER",
        (given[0], given[0]): "given twice",
        (): "There are no adapters",
    }.items():
        with pytest.raises(RedxError, match=words):
            redx.run("adapters", "tiny", out=tmp_path / "other", adapter=list(wrong), **settings)
    other = save_adapter(Path(settings["backbone"]), tmp_path / "dora", 0, use_dora=True)
    with pytest.raises(RedxError, match="use_dora"):
        redx.run("adapters", "tiny", out=tmp_path / "other", adapter={"lower": other}, train=True, **settings)
    assert not (tmp_path / "other").exists(), "refused before anything is written"


def test_verbs_know_the_run(finished: Path, ask: Ask) -> None:
    for words in (
        ["report", finished],
        ["evaluate", finished, "--rule", "red"],
        ["certify", finished],
        ["inspect", finished],
        ["check", finished, "--against", finished],
    ):
        code, _, err = ask(*words)
        assert code == 0, err
    code, out, _ = ask("experts", "list", finished, "--json")
    assert code == 0
    assert [info["domain"] for info in json.loads(out)] == DOMAINS
    code, out, _ = ask("list", "--json")
    assert list(json.loads(out)["adapters"]["presets"]) == ["tiny", "quick", "default"]


def test_report_has_perplexities(adapters: redx.Run) -> None:
    page, text = (adapters.report.with_suffix(end).read_text() for end in (".html", ".md"))
    rules = adapters.summary["rules"]
    for content in (page, text):
        assert "mean perplexity is" in content
        assert "redx run adapters --preset tiny --seed 0" in content
        for name in ("base", "red/plain", "average/cat"):
            for domain in DOMAINS:
                assert f"{math.exp(rules[name]['per_domain_loss'][domain]):.3f}" in content


def test_calibrate_for_another_risk(finished: Path, ask: Ask) -> None:
    code, out, _ = ask("calibrate", finished, "--risk", 0.06, "--json")
    assert code == 0
    assert json.loads(out)["0"]["calibration"] == 18
    control = read_calibration(finished / "seed-0")
    assert control is not None
    assert control.risk == 0.06
    assert math.isfinite(control.cutoffs.simplex)
    code, out, _ = ask("evaluate", finished, "--rule", "red/risk", "--rule", "red-oracle/risk", "--json")
    assert code == 0
    rules = json.loads(out)["rules"]
    assert rules["red/risk"]["loss"] is None, "it was measured with another cut-off"
    assert rules["red-oracle/risk"]["loss"] is not None
    code, _, err = ask("calibrate", finished, "--risk", 0.01)
    assert code == 2
    assert "with 18 calibration groups" in err


def test_check_counts_documents(finished: Path, ask: Ask) -> None:
    words = ("--min-accuracy", 0, "--min-certified", 0, "--max-harm", 1, "--max-risk", 0.2, "--min-domain", 0)
    code, out, _ = ask("check", finished, *words, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["examples"] == 18
    by_name = {check["name"]: check for check in result["checks"]}
    for name in ("min-accuracy", "min-certified", "min-domain"):
        assert by_name[name]["bound"] <= by_name[name]["measured"]
    assert by_name["max-harm"]["bound"] > by_name["max-harm"]["measured"]
    code, out, _ = ask("check", finished, "--min-accuracy", 0.99, "--max-risk", 0.1)
    assert code == 1
    assert "18 groups of test examples" in out
    assert "calibrated for the risk 0.2, above 0.1" in out


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "RUN", "abc"],
        ["experts", "remove", "RUN", "lower"],
        ["experts", "diff", "RUN", "--remove", "lower"],
        ["router", "train", "RUN"],
    ],
)
def test_verbs_of_classifiers_say_what_to_use(words: list[str], finished: Path, ask: Ask) -> None:
    code, _, err = ask(*[finished if word == "RUN" else word for word in words])
    assert code == 2
    assert "redx generate" in err
    assert "delete" not in err
    assert err.count("\n") == 1


def test_save_and_load(finished: Path, tmp_path: Path) -> None:
    composed = ComposedLM.from_pretrained(finished)
    saved = composed.save_pretrained(tmp_path / "saved")
    loaded = ComposedLM.from_pretrained(saved)
    assert torch.equal(loaded.scores("abc"), composed.scores("abc"))
    by_keys = ComposedLM.from_pretrained(saved, router="keys").generate("0123", 2)
    assert by_keys == ComposedLM.from_pretrained(finished, router="keys").generate("0123", 2)
    card = (saved / "README.md").read_text()
    red = summary_of(finished)["rules"]["red"]
    assert f"| {red['certified']['1']:.4f} |" in card
    assert "library_name: redx" in card
    assert "ComposedLM.from_pretrained" in card
    with pytest.raises(RedxError, match="not empty"):
        composed.save_pretrained(saved)
    composed.remove("lower")  # the figures are not those of two adapters
    other = (composed.save_pretrained(tmp_path / "two") / "README.md").read_text()
    assert "without an evaluation" in other


def test_a_saved_model_can_be_verified(finished: Path, tmp_path: Path, ask: Ask) -> None:
    saved = ComposedLM.from_pretrained(finished).save_pretrained(tmp_path / "saved")
    assert verify_folder(saved) == []
    lower = finished / "seed-0" / "adapters" / "lower"
    succeeded(ask("adapters", "add", saved, lower, "--name", "again"))
    assert verify_folder(saved) == [], "a change by redx keeps the manifest"
    for name in ("library.json", "router.safetensors", "adapters/lower/ownership.safetensors"):
        with changed(saved / name, CHANGES["another meaning"]):
            assert [one.file for one in verify_folder(saved)] == [name]
            refused(ask("generate", saved, "abc", "--max-new-tokens", 1), "is not as redx wrote it")
    (saved / MANIFEST).unlink()
    refused(ask("generate", saved, "abc", "--max-new-tokens", 1), "has no manifest.json")


def test_a_run_whose_adapters_were_changed_is_not_continued(finished: Path, ask: Ask) -> None:
    """Its parts would count the columns of other adapters as those of its domains."""
    settings = settings_of(finished)
    succeeded(ask("adapters", "remove", finished, "lower"))
    refused(ask("certify", finished), "were made with another experts")
    with pytest.raises(RedxError, match="has the adapters digits, upper, and its run is of digits, lower, upper"):
        redx.run("adapters", "tiny", out=finished, train=True, **settings)
    (kept,) = (finished / "seed-0" / "removed").iterdir()
    succeeded(ask("adapters", "add", finished, kept, "--name", "lower"))
    with pytest.raises(RedxError, match="has the adapters digits, upper, lower, and its run is of"):
        redx.run("adapters", "tiny", out=finished, train=True, **settings)


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
    lower = finished / "seed-0" / "adapters" / "lower"
    code, out, _ = ask("adapters", "add", tmp_path / "saved", lower, "--name", "again")
    assert code == 0
    assert "rank 2" in out
    code, out, _ = ask("generate", tmp_path / "saved", "abc", "--max-new-tokens", 1, "--json")
    assert json.loads(out)[0]["weights"]["again"] == 0, "the trained router does not know it"
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
        (["certify", "RUN", "--rule", "sum"], "no bank that the rule 'sum' reads"),
        (["run", "adapters"], "There are no adapters"),
        (["run", "adapters", "--train", "--preset", "huge"], "no preset 'huge'"),
        (["run", "adapters", "--train", "--risk", "2"], "Setting 'risk' is not usable"),
        (["run", "adapters", "--train", "--set", "adapters.rank=3"], "no setting 'adapters.rank'"),
    ],
)
def test_bad_commands(ask: Ask, finished: Path, words: list[str], sentence: str) -> None:
    code, _, err = ask(*[finished if word == "RUN" else word for word in words])
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1


def test_a_risk_that_few_documents_cannot_promise(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RedxError, match="with 18 calibration documents"):
        redx.run("adapters", "tiny", out=tmp_path / "x", train=True, risk=0.01, **settings_of(finished))
    assert not (tmp_path / "x").exists()


def test_only_upper_blocks_are_adapted(adapters: redx.Run, tmp_path: Path) -> None:
    base = load_base(json.loads((adapters.folder / "config.json").read_text())["backbone"])
    settings = LoraTraining(rank=2, steps=1, batch=1, tokens=8, first_block=2)
    model, _ = train_adapter(base, torch.arange(16).view(2, 8), settings, 0, "upper")
    write_adapter(model, tmp_path / "upper")
    model.unload()
    names = load_file(tmp_path / "upper" / "adapter_model.safetensors")
    assert {name.split("layers.")[1].split(".")[0] for name in names} == {"2"}
    assert len(names) == 2 * 7  # every linear layer of a block, and not the head
    assert check_adapter(tmp_path / "upper", base).rank == 2
