"""Tables of a run show both bases, that from statistics and that of the shared examples, and what owners share."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import redx
from helpers.commands import Ask, refused, succeeded
from helpers.own_data import draw_clouds, write_arrays
from redx.cli.common import show_brief, show_main_rules, show_rules
from redx.composition.rules import RULES
from redx.composition.summary import each_once
from redx.config import BankId
from redx.errors import RedxError
from redx.model.card import model_card
from redx.report.headline import verdict
from redx.report.short import CONTROL, WITHOUT_OWN_HINT, main_rules, short_rules
from redx.runs.folder import read_config
from redx.runs.parts import read_parts
from redx.runs.reports import write_reports
from redx.serve.loaded import LoadedRun

FLOOR = ["base", "base/shared", "red", "red/shared"]  # the first rows of short tables


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    """The run on clouds whose base is that of the shared examples; tests must not change it."""
    folder = tmp_path_factory.mktemp("plain") / "plain"
    file = write_arrays(folder.with_suffix(".npz"), **draw_clouds())
    epochs = {"base": 3, "experts": 2, "router": 2}
    words = ["statistics.use=false"]
    return redx.run("features", "quick", out=folder, assignments=words, file=str(file), study="none", epochs=epochs)


def cells(text: str, first: str) -> list[str]:
    """Return the cells of the first row of a table that begins so, in Markdown or as the terminal shows it."""
    rows = ([cell.strip() for cell in line.replace("│", "|").split("|")[1:-1]] for line in text.splitlines())
    return next(row for row in rows if row and row[0] == first)


def test_statistics_is_the_base_bit_for_bit(clouds: redx.Run) -> None:
    rules = clouds.summary["rules"]
    assert rules["statistics"] == rules["base"]
    assert rules["base/shared"] != rules["base"]
    lines = [json.loads(line) for line in (clouds.folder / "results.jsonl").read_text().splitlines()]
    by_rule = {
        name: [line | {"rule": ""} for line in lines if (line["rule"], line["bank"]) == (name, "")]
        for name in ("base", "statistics")
    }
    assert by_rule["base"] == by_rule["statistics"] != []
    model = redx.load(clouds.folder)
    inputs = draw_clouds(seed=1)["x"]
    answers = {}
    for rule in ("base", "statistics", "base/shared"):
        model.rule = rule
        answers[rule] = model.forward(torch.tensor(inputs, dtype=torch.float32))
    assert torch.equal(answers["base"], answers["statistics"])
    assert not torch.allclose(answers["base"], answers["base/shared"])


def test_the_figures_of_the_shared_base_are_those_of_its_parts(clouds: redx.Run) -> None:
    banks = read_parts(clouds.folder, 0).banks
    for name, bank in (("base/shared", "shared"), ("base", "risk")):
        parts = banks[BankId("residual", bank)]
        right = float((parts.base.argmax(-1) == parts.labels).double().mean())
        assert clouds.summary["rules"][name]["accuracy"]["mean"] == pytest.approx(right)
    assert set(clouds.summary["paired"]["rules"]) >= {"base", "base/shared", "red/shared"}


def test_short_tables_begin_with_the_floor_and_show_no_number_twice(
    clouds: redx.Run, plain: redx.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = clouds.summary["rules"]
    assert short_rules(rules)[:4] == FLOOR
    assert "statistics" not in (*short_rules(rules), *main_rules(rules))
    show_main_rules(clouds.summary)
    out = capsys.readouterr().out
    assert cells(out, "base")[1:3] == ["sum of statistics", "sums"]
    assert [cells(out, name)[2] for name in FLOOR] == ["sums", "nothing", "sums", "nothing"]
    assert cells(out, "moe")[2] == "nothing"
    assert cells(out, "global")[2] == "data"
    show_brief(clouds.summary)
    out = capsys.readouterr().out
    assert cells(out, "the base: sum of the owners' statistics")[1] == "sums"
    assert cells(out, "RED on the shared examples' base, under any router")[1] == "nothing"
    without = plain.summary["rules"]
    assert not {"statistics", "base/shared"} & set(without)
    usual = [name for name in RULES if name in without and RULES[name].hint is not None]
    assert [name for name in short_rules(without) if name != CONTROL] == usual
    assert short_rules(without).index(CONTROL) == usual.index("red") + 1
    show_main_rules(plain.summary)
    assert cells(capsys.readouterr().out, "base")[1:3] == ["the base alone", "nothing"]


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("show", [show_main_rules, show_brief, show_rules], ids=["short", "brief", "all"])
def test_tables_fit_the_terminal(
    show: Callable[[dict[str, Any]], None],
    width: int,
    clouds: redx.Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(clouds.summary)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    rows = [line for line in lines if line[:1] in set("┏┃┡│└")]
    assert max(map(len, rows)) <= width
    whole = [row for row in rows if WITHOUT_OWN_HINT not in row]  # this one belongs to the row above
    assert not any("…" in row or row.startswith("│  ") for row in whole)  # no cell is cut or takes a second line
    assert any("wider terminal" in line for line in lines) == (show is show_rules and width < 120)


def test_the_report_says_what_the_base_is(clouds: redx.Run, plain: redx.Run) -> None:
    text = (clouds.folder / "report.md").read_text()
    figures = clouds.summary["rules"]
    means = [f"{figures[name]['accuracy']['mean']:.4f}" for name in ("base", "base/shared")]
    bases = f"base: sum of the owners' statistics {means[0]}, the shared examples' base {means[1]}"
    assert bases in verdict(clouds.summary)
    assert bases in text
    assert "The base is the sum of the owners' statistics" in text
    table = text.partition("**Rules compared on the same examples**")[2].partition("Difference:")[0]
    assert [cells(table, name)[1] for name in FLOOR] == ["sums", "nothing", "sums", "nothing"]
    assert "| statistics |" not in table
    assert cells(text.partition("Every rule with every bank")[2], "base")[1] == "sums"
    assert "The router `mlp` was also trained on examples of all domains" in text
    without = (plain.folder / "report.md").read_text()
    assert "sum of the owners' statistics" not in without.partition("## Glossary")[0]


def test_runs_with_and_without_statistics_are_compared(clouds: redx.Run, plain: redx.Run, tmp_path: Path) -> None:
    text = write_reports([clouds.folder, plain.folder], tmp_path / "both.html").with_suffix(".md").read_text()
    assert "The base of `clouds` is the sum of the owners' statistics." in text
    assert re.search(r"has the highest accuracy of \d of 9 rules", text)  # only one run has the other two
    assert cells(text, "base")[1] == "sums / nothing"
    assert "in the order of the runs" in text
    assert cells(text, "red/shared")[1] == "nothing"
    assert cells(text, "global")[1] == "data"
    paired = text.partition("Paired differences")[2]
    assert cells(paired, "plain")[2] == "nothing"  # what owners share in the second run
    assert "| plain | red-oracle |" in paired


def test_the_card_and_the_page_say_what_owners_share(clouds: redx.Run, plain: redx.Run, tmp_path: Path) -> None:
    card = model_card(read_config(clouds.folder), ("high", "low"), [], clouds.summary)
    assert [cells(card, name)[1] for name in FLOOR] == ["sums", "nothing", "sums", "nothing"]
    assert "The base is the sum of the owners' statistics" in card
    card = model_card(read_config(plain.folder), ("high", "low"), [], plain.summary)
    assert cells(card, "base")[1] == "nothing"
    assert "The base is" not in card
    shown = {rule["name"]: rule for rule in LoadedRun.read(clouds.folder, None).rules()}
    assert shown["red"]["shares"] == "sums"
    assert shown["base/shared"]["shares"] == shown["red/shared"]["shares"] == shown["moe"]["shares"] == "nothing"
    assert shown["base"]["about"] == "sum of statistics"
    assert "statistics" not in shown
    shown = {rule["name"]: rule for rule in LoadedRun.read(plain.folder, None).rules()}
    assert shown["red"]["shares"] == "nothing"
    assert "base/shared" not in shown


def test_the_rule_statistics_is_asked_for(clouds: redx.Run, plain: redx.Run, ask: Ask) -> None:
    found = json.loads(succeeded(ask("evaluate", clouds.folder, "--rule", "statistics", "--json")))["rules"]
    assert found == {"statistics": clouds.summary["rules"]["base"]}
    for words in (("evaluate",), ("certify",)):
        assert "statistics" in succeeded(ask(*words, clouds.folder, "--rule", "statistics"))
        refused(ask(*words, plain.folder, "--rule", "statistics"), "ask 'base'")
        refused(ask(*words, clouds.folder, "--rule", "statistics/shared"), "reads no bank")
    model = redx.load(plain.folder)
    with pytest.raises(RedxError, match="ask 'base'"), model.using("statistics"):
        model.rule_and_bank()


def test_every_figure_is_shown_once(clouds: redx.Run) -> None:
    names = list(each_once(clouds.summary["rules"]))
    assert {"base", "base/shared", "statistics", "red/risk", "red/shared"} <= set(names)
    assert not {"red", "moe", "global"} & set(names)


def test_statistics_of_numbers_are_refused(tmp_path: Path, ask: Ask) -> None:
    words = ("run", "toy", "--preset", "quick", "--set", "statistics.use=true", "--out", tmp_path / "toy")
    refused(ask(*words), "has no classes", "statistics.use")
    assert not (tmp_path / "toy").exists()
