"""`redx calibrate --by domain`: every domain keeps the risk, and loading, answering and saving know it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

import redx
from helpers.commands import Ask, refused, succeeded
from helpers.own_data import write_arrays
from redx.io.files import write_json, write_tensors
from redx.io.safetensors_files import read_tensors
from redx.runs.folder import load_seed, read_config
from redx.runs.parts import read_parts
from redx.runs.transaction import edit


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits, whose domains have labels of their own."""
    home = tmp_path_factory.mktemp("digits")
    x, y = load_digits(return_X_y=True)
    file = write_arrays(home / "digits.npz", x=x, y=y, domain=[f"pair {label // 2}" for label in y])
    epochs = {"base": 3, "experts": 2, "router": 1}
    settings = {"study": "none", "epochs": epochs, "statistics": {"use": True, "size": 50}}
    return redx.run("features", "quick", out=home / "run", file=str(file), risk=0.05, **settings).folder


def test_domains_are_promised_the_risk_and_named(run: Path, ask: Ask) -> None:
    figures = json.loads(succeeded(ask("calibrate", run, "--risk", 0.05, "--by", "domain", "--json")))["0"]
    assert (figures["by"], figures["cutoff"]) == ("domain", None)
    assert sorted(figures["domains"]) == [f"pair {index}" for index in range(5)]
    assert sum(one["calibration"] for one in figures["domains"].values()) == figures["calibration"]
    model = load_seed(run / "seed-0", read_config(run))
    control = model.current_control()
    assert control.by == "domain"
    stored = next(parts for bank, parts in read_parts(run, 0).banks.items() if str(bank) == "residual/risk")
    assert stored.cutoffs is not None
    assert isinstance(stored.cutoffs.simplex, torch.Tensor)
    named = model.parts_of(torch.zeros(1, model.base.width), next(b for b in model.banks if str(b) == "residual/risk"))
    assert named.cutoffs is not None
    assert isinstance(named.cutoffs.simplex, torch.Tensor)
    assert "domain" in succeeded(ask("calibrate", run, "--by", "domain"))


def test_answers_and_saved_models_have_the_cutoff_of_the_bases_domain(run: Path, ask: Ask, tmp_path: Path) -> None:
    succeeded(ask("calibrate", run, "--risk", 0.05, "--by", "domain"))
    model, x = redx.load(run), torch.from_numpy(load_digits(return_X_y=True)[0][:30]).float()
    explained = model.explain(x)
    cutoffs = model.parts(x).cutoffs
    assert cutoffs is not None
    assert [one.cutoff for one in explained] == cutoffs.simplex.tolist()  # pyright: ignore
    model.save_pretrained(tmp_path / "saved")
    again = redx.load(tmp_path / "saved")
    assert [one.cutoff for one in again.explain(x)] == [one.cutoff for one in explained]


def test_a_model_of_ones_own_is_controlled_and_exported_by_domain() -> None:
    x, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    x, domains = x.float(), {"low": (0, 1, 2, 3, 4), "high": (5, 6, 7, 8, 9)}
    model = redx.Model(classes=[str(label) for label in range(10)]).fit_base(x[:200], y[:200])
    for name, own in domains.items():
        rows = torch.isin(y[:600], torch.tensor(own)).nonzero()[:, 0]
        model.add_expert(name, x[rows], y[rows])
    control = model.calibrate(x[600:1000], y[600:1000].tolist(), risk=0.05, by="domain")
    assert (control.by, sorted(control.domain_names)) == ("domain", ["high", "low"])
    assert sum(control.domain_counts) == 400
    assert torch.allclose(model.head()(model.embed(x[:50])), model(x[:50]), atol=1e-4)


def test_back_to_all_examples_restores_every_cutoff(run: Path, ask: Ask) -> None:
    before = json.loads(succeeded(ask("calibrate", run, "--risk", 0.05, "--by", "all", "--json")))
    succeeded(ask("calibrate", run, "--by", "domain", "--small", "silent"))
    assert json.loads(succeeded(ask("calibrate", run, "--risk", 0.05, "--by", "all", "--json"))) == before


def test_domains_that_share_classes_are_named_by_the_base(clouds_copy: Path, ask: Ask, tmp_path: Path) -> None:
    before = json.loads(succeeded(ask("calibrate", clouds_copy, "--risk", 0.2, "--json")))
    assert before["0"]["by"] == "all"
    figures = json.loads(succeeded(ask("calibrate", clouds_copy, "--risk", 0.2, "--by", "domain", "--json")))["0"]
    assert sum(one["calibration"] for one in figures["domains"].values()) == figures["calibration"]
    counted = [sum(count["examples"] for count in (one, one["true"])) for one in figures["domains"].values()]
    assert sum(counted) == 2 * len(next(iter(read_parts(clouds_copy, 0).banks.values())))
    told = succeeded(ask("calibrate", clouds_copy, "--risk", 0.2, "--by", "domain"))
    assert "for which the base names the domain" in " ".join(told.split())
    model = redx.load(clouds_copy)
    x = torch.randn(40, model.base.width)
    named = model.parts_of(x, model.rule_and_bank()[1]).named
    assert named is not None
    assert len(named.unique()) > 1
    stored = next(parts for bank, parts in read_parts(clouds_copy, 0).banks.items() if str(bank) == "residual/risk")
    assert stored.named is not None
    model.save_pretrained(tmp_path / "saved", shared=False, calibration=False)
    again = redx.load(tmp_path / "saved")
    assert torch.equal(again.parts_of(x, again.rule_and_bank()[1]).named, named)  # pyright: ignore
    assert json.loads(succeeded(ask("calibrate", clouds_copy, "--risk", 0.2, "--by", "all", "--json"))) == before
    refused(ask("calibrate", clouds_copy, "--by", "owner"), "by all or by domain")


def test_a_run_without_domains_is_refused_by_domain(clouds_copy: Path, ask: Ask) -> None:
    file = clouds_copy / "seed-0" / "thresholds.safetensors"
    tensors = read_tensors(file)
    for name in ("domains", "domain_head"):
        del tensors[name]
    about = clouds_copy / "seed-0" / "risk.json"
    content = {name: value for name, value in json.loads(about.read_text()).items() if name != "domains"}
    with edit(clouds_copy / "seed-0") as transaction:
        write_tensors(transaction.new("thresholds.safetensors"), tensors)
        write_json(transaction.new("risk.json"), content)
    refused(ask("calibrate", clouds_copy, "--by", "domain"), "knows no domains")
    refused(ask("calibrate", clouds_copy, "--by", "owner"), "by all or by domain")
