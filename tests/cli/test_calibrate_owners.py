"""`redx calibrate --data --export` and `--from`: owners measure the model where their examples are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from sklearn.datasets import load_digits

import redx
from helpers.clinc import expect, write_clinc
from helpers.commands import Ask, refused, succeeded
from helpers.own_data import write_arrays, write_table
from helpers.runs import contents
from redx.composition.owners import read_owner_file
from redx.models.calibration import read_calibration
from redx.runs.folder import load_seed, read_config
from redx.runs.integrity import verify_folder

pytestmark = pytest.mark.slow
DOMAINS = [f"pair {index}" for index in range(5)]
KEPT = 1400  # examples that the run is made with; owners have the others


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits whose domains have labels of their own, and the owners' examples and files."""
    home = tmp_path_factory.mktemp("owners")
    x, y = load_digits(return_X_y=True)
    file = write_arrays(home / "run.npz", x=x[:KEPT], y=y[:KEPT], domain=[DOMAINS[label // 2] for label in y[:KEPT]])
    settings = {"study": "none", "epochs": {"base": 3, "experts": 2, "router": 1}}
    settings |= {"statistics": {"use": True, "size": 50}}
    redx.run("features", "quick", out=home / "run", file=str(file), risk=0.05, **settings)
    for index in range(len(DOMAINS)):
        own = numpy.flatnonzero(y[KEPT:] // 2 == index) + KEPT
        write_arrays(home / f"{index}.npz", x=x[own], y=y[own])
    return home


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Path:
    """A copy of the run, which a test may change."""
    return Path(shutil.copytree(home / "run", tmp_path / "run"))


@pytest.fixture
def files(home: Path, run: Path, tmp_path: Path, ask: Ask) -> list[Path]:
    """What every owner sends."""
    for index in range(len(DOMAINS)):
        succeeded(ask("calibrate", run, "--data", home / f"{index}.npz", "--export", tmp_path / f"{index}.json"))
    return [tmp_path / f"{index}.json" for index in range(len(DOMAINS))]


def sent(files: list[Path]) -> list[str]:
    return [word for file in files for word in ("--from", str(file))]


def test_owners_calibrate_as_one_place_would(home: Path, run: Path, files: list[Path], ask: Ask) -> None:
    figures = json.loads(succeeded(ask("calibrate", run, *sent(files), "--risk", 0.05, "--json")))["0"]
    assert (figures["by"], figures["owners"]) == ("domain", DOMAINS)
    x, y = load_digits(return_X_y=True)
    model, held = redx.load(run), torch.from_numpy(x[KEPT:]).float()
    here = model.current_control()
    there = redx.load(home / "run")
    central = there.calibrate(held, y[KEPT:].tolist(), risk=0.05, by="domain", small="silent")
    assert torch.equal(here.domain_cutoffs("simplex"), central.domain_cutoffs("simplex"))
    assert torch.equal(here.domain_cutoffs("box"), central.domain_cutoffs("box"))
    assert model.predict(held) == there.predict(held)
    assert not verify_folder(run)
    other = succeeded(ask("calibrate", run, *sent(files[::-1]), "--risk", 0.05, "--json"))
    assert json.loads(other)["0"] == figures


def test_exporting_changes_nothing_and_a_saved_model_is_enough(home: Path, run: Path, ask: Ask, tmp_path: Path) -> None:
    before = contents(run)
    words = ("--data", home / "1.npz", "--export")
    written = json.loads(succeeded(ask("calibrate", run, *words, tmp_path / "own.json", "--json")))
    assert contents(run) == before
    assert written["domains"] == {"pair 1": written["examples"]}
    redx.load(run).save_pretrained(tmp_path / "sent", calibration=False)
    assert "no example" in succeeded(ask("calibrate", tmp_path / "sent", *words, tmp_path / "saved.json"))
    one, other = read_owner_file(tmp_path / "own.json"), read_owner_file(tmp_path / "saved.json")
    assert one == other.model_copy(update={"seed": 0})
    succeeded(ask("calibrate", run, "--from", tmp_path / "saved.json", "--risk", 0.05))


def test_domains_without_a_file_are_silent_and_named(run: Path, files: list[Path], ask: Ask) -> None:
    out = " ".join(succeeded(ask("calibrate", run, *sent(files[:2]), "--risk", 0.05)).split())
    assert "No owner sent thresholds of pair 2, pair 3, pair 4: the experts are silent there." in out
    out = " ".join(succeeded(ask("calibrate", run, *sent(files[:2]), "--risk", 0.001)).split())
    assert "The examples of pair 0, pair 1 are too few for the risk 0.001" in out
    for verb in (("check", run, "--max-risk", 0.05), ("experts", "list", run)):
        assert "Calibrated by the owners of pair 0, pair 1" in succeeded(ask(*verb))
    assert json.loads(succeeded(ask("check", run, "--max-risk", 0.05, "--json")))["owners"] == DOMAINS[:2]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rules"]["red"]["risk"]["owners"] == DOMAINS[:2]


def test_the_control_is_stored_and_another_risk_follows_from_it(run: Path, files: list[Path], ask: Ask) -> None:
    succeeded(ask("calibrate", run, *sent(files[:3]), "--risk", 0.05))
    direct = json.loads(succeeded(ask("calibrate", run, *sent(files[:3]), "--risk", 0.2, "--json")))
    succeeded(ask("calibrate", run, *sent(files[:3]), "--risk", 0.05))
    assert json.loads(succeeded(ask("calibrate", run, "--risk", 0.2, "--json"))) == direct
    control = read_calibration(run / "seed-0")
    assert control is not None
    assert control.owners == tuple(DOMAINS[:3])
    refused(ask("calibrate", run, "--by", "all"), "each domain keeps the risk by itself", "--own")
    refused(ask("calibrate", run, "--small", "merge"), "each domain keeps the risk by itself")
    model = load_seed(run / "seed-0", read_config(run))
    assert model.compared_controls()  # banks that are compared keep examples of their own
    assert not any(control.owners for control in model.compared_controls().values())
    succeeded(ask("calibrate", run, "--own", "--risk", 0.05))
    assert "owners" not in json.loads((run / "seed-0" / "risk.json").read_text())


def test_a_change_of_experts_calibrates_on_own_examples_with_a_warning(run: Path, files: list[Path], ask: Ask) -> None:
    succeeded(ask("calibrate", run, *sent(files), "--risk", 0.05))
    code, _, err = ask("experts", "remove", run, "pair 2")
    assert code == 0
    assert "the thresholds of the owners of pair 0, pair 1, pair 2, pair 3, pair 4 hold no longer" in err
    control = read_calibration(run / "seed-0")
    assert control is not None
    assert (control.owners, control.by, control.small) == ((), "domain", "silent")
    before = contents(run)
    refused(
        ask("calibrate", run, "--from", files[0]), "0.json was made with another state of this model", "export it anew"
    )
    assert contents(run) == before


def test_files_that_do_not_belong_are_refused_and_nothing_changes(
    home: Path, run: Path, files: list[Path], ask: Ask, tmp_path: Path
) -> None:
    before = contents(run)
    refused(ask("calibrate", run, *sent([files[0], files[0]])), "given twice")
    again = Path(shutil.copy(files[0], tmp_path / "again.json"))
    refused(ask("calibrate", run, *sent([files[0], again])), "both have thresholds of 'pair 0'", "who owns that domain")
    content = json.loads(files[1].read_text())
    for change, words in {
        ("base", "0" * 32): "of another run",
        ("model", "0" * 32): "another state of this model",
        ("format", 2): "does not hold an owner's thresholds",
    }.items():
        again.write_text(json.dumps(content | dict([change])))
        refused(ask("calibrate", run, *sent([files[0], again])), words, "export it anew")
    refused(ask("calibrate", run, "--from", tmp_path / "none.json"), "There is no")
    refused(ask("calibrate", run, "--from", home / "0.npz"), "cannot be read")
    refused(ask("calibrate", run, "--from", files[0], "--by", "all"), "leave out --by")
    refused(ask("calibrate", run, "--from", files[0], "--small", "merge"), "leave out --by, --small")
    refused(ask("calibrate", run, "--from", files[0], "--seed", 7), "holds no seed 7")
    refused(ask("calibrate", run, "--from", files[0], "--risk", 2), "between 0 and 1")
    assert contents(run) == before


def test_bad_examples_get_one_sentence(home: Path, run: Path, ask: Ask, tmp_path: Path) -> None:
    own = dict(numpy.load(home / "0.npz"))
    out = tmp_path / "out.json"
    for name, (arrays, words) in {
        "unknown": ({"x": own["x"], "y": own["y"] + 50}, "no class of this model"),
        "unlabelled": ({"x": own["x"]}, "y"),
        "nan": ({"x": own["x"] * numpy.nan, "y": own["y"]}, "NaN"),
        "empty": ({"x": own["x"][:0], "y": own["y"][:0]}, "contains no examples"),
        "narrow": ({"x": own["x"][:, :3], "y": own["y"]}, "shape"),
    }.items():
        file = write_arrays(tmp_path / f"{name}.npz", **arrays)
        refused(ask("calibrate", run, "--data", file, "--export", out), name, words)
        assert not out.exists()
    refused(ask("calibrate", run, "--data", home / "0.npz"), "give both")
    refused(ask("calibrate", run, "--export", out), "give both")
    refused(ask("calibrate", run, "--data", home / "0.npz", "--export", out, "--risk", 0.1), "leave out --risk")
    refused(ask("calibrate", run, "--data", tmp_path / "none.npz", "--export", out), "There is no file")
    write_arrays(tmp_path / "one.npz", x=own["x"][:1], y=own["y"][:1])
    succeeded(ask("calibrate", run, "--data", tmp_path / "one.npz", "--export", out))
    refused(ask("calibrate", run, "--data", tmp_path / "one.npz", "--export", out), "another name with --export")
    shown = " ".join(succeeded(ask("calibrate", run, "--from", out, "--risk", 0.05)).split())
    assert "The examples of pair 0 are too few for the risk 0.05" in shown


def test_examples_that_the_run_was_trained_on_give_a_warning(
    home: Path, run: Path, tmp_path: Path, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    every = dict(numpy.load(home / "run.npz"))
    write_arrays(tmp_path / "known.npz", x=every["x"], y=every["y"])
    succeeded(ask("calibrate", run, "--data", tmp_path / "known.npz", "--export", tmp_path / "out.json"))
    assert f"of the {KEPT} examples are among those of the run's training data" in caplog.text
    assert "leave them out" in caplog.text


def test_shared_labels_are_refused_in_one_sentence(clouds_copy: Path, ask: Ask, tmp_path: Path) -> None:
    draw = numpy.random.default_rng(0)
    write_arrays(tmp_path / "own.npz", x=draw.normal(size=(20, 6)), y=["high"] * 20)
    words = ("--data", tmp_path / "own.npz", "--export", tmp_path / "out.json")
    refused(ask("calibrate", clouds_copy, *words), "labels do not name the domain of their owner")


def test_python_does_the_same(home: Path, run: Path, tmp_path: Path) -> None:
    own = dict(numpy.load(home / "2.npz"))
    model = redx.load(run)
    x, y = torch.from_numpy(own["x"]).float(), own["y"].tolist()
    written = model.export_thresholds(x, y, tmp_path / "own.json")
    assert written.domains["pair 2"].examples == len(y)
    control = model.calibrate_from([tmp_path / "own.json"], risk=0.05)
    assert control.owners == ("pair 2",)
    model.save_pretrained(tmp_path / "saved")
    again = redx.load(tmp_path / "saved")
    assert again.current_control().to_json() == control.to_json()
    assert again.predict(x) == model.predict(x)
    model.calibrate(x, y, risk=0.05)
    assert not model.current_control().owners


def test_a_run_on_texts_reads_the_owners_table(qwen: Path, tmp_path: Path, ask: Ask, own_cache: Path) -> None:
    records = [
        {"text": f"number {n} is {word}", "label": word, "domain": domain}
        for n in range(40)
        for domain, words in {"size": ("big", "small"), "light": ("dark", "bright")}.items()
        for word in words
    ]
    table = write_table(tmp_path / "all.jsonl", records)
    few: dict[str, Any] = {"epochs": {"base": 2, "experts": 1, "router": 1}, "study": "none", "blocks": [1]}
    run = redx.run(
        "jsonl", "quick", out=tmp_path / "run", file=str(table), domain="domain", backbone=str(qwen), **few
    ).folder
    own = [
        {"question": f"example {n} is {record['label']}", "topic": record["label"]} for n, record in enumerate(records)
    ]
    own = [record for record in own if record["topic"] in ("big", "small")]
    write_table(tmp_path / "own.jsonl", own)
    words = ("--data", tmp_path / "own.jsonl", "--label", "topic", "--export", tmp_path / "own.json")
    assert "size" in succeeded(ask("calibrate", run, *words))
    out = " ".join(succeeded(ask("calibrate", run, "--from", tmp_path / "own.json", "--risk", 0.05)).split())
    assert "No owner sent thresholds of light" in out


def test_a_run_on_intents_reads_the_owners_queries(
    bert: Path, tmp_path: Path, ask: Ask, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect(monkeypatch, write_clinc(tmp_path / "tiny"))
    few: dict[str, Any] = {
        "epochs": {"base": 2, "experts": 1, "router": 1},
        "study": "none",
        "shots": 8,
        "blocks": [1, -1],
    }
    run = redx.run(
        "intents", "quick", out=tmp_path / "run", data_dir=str(tmp_path / "tiny"), backbone=str(bert), **few
    ).folder
    own = [
        {"text": f"my {n}. question about {intent}", "label": intent} for n in range(20) for intent in ("visa", "plug")
    ]
    write_table(tmp_path / "own.csv", own)
    succeeded(ask("calibrate", run, "--data", tmp_path / "own.csv", "--export", tmp_path / "own.json"))
    assert read_owner_file(tmp_path / "own.json").domains["travel"].examples == 40
    out = " ".join(succeeded(ask("calibrate", run, "--from", tmp_path / "own.json", "--risk", 0.05)).split())
    assert "No owner sent thresholds of work 2, work 10" in out
