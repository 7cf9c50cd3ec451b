"""`redx check`: exit codes, what it prints and writes, and one sentence for every mistake."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import redx
from helpers.checked_runs import with_answers, write_risk, write_run
from helpers.commands import Ask, refused, succeeded
from redx.runs.check import NAMES, read_settings

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "check.md"


@pytest.fixture
def run(clouds: redx.Run, tmp_path: Path) -> Path:
    """A run with one seed, of whose hundred answers 96 are right."""
    return write_run(tmp_path / "run", clouds, with_answers([False] * 4 + [True] * 96))


@pytest.fixture
def worse(clouds: redx.Run, tmp_path: Path) -> Path:
    """The same with 80 right answers."""
    return write_run(tmp_path / "worse", clouds, with_answers([False] * 20 + [True] * 80))


def test_the_exit_code_is_0_while_all_checks_hold_and_1_when_one_is_broken(ask: Ask, run: Path) -> None:
    holds = succeeded(ask("check", run, "--min-accuracy", "0.9", "--min-domain", "0.9"))
    assert "0.9600" in holds
    assert holds.endswith("Both checks hold for the rule red at confidence 0.95.\n")
    code, out, err = ask("check", run, "--min-accuracy", "0.9", "--min-certified", "0.95", "--max-risk", "0.01")
    assert (code, err) == (1, "")
    assert "2 of 3 checks are broken: min-certified (the lower bound 0.9108 is below 0.95)" in out
    assert "max-risk (the run is not calibrated)." in out
    write_risk(run, 0, 0.01)
    succeeded(ask("check", run, "--max-risk", "0.01"))


def test_confidence_and_rule_are_options(ask: Ask, run: Path) -> None:
    assert ask("check", run, "--min-accuracy", "0.91")[0] == 0
    assert ask("check", run, "--min-accuracy", "0.91", "--confidence", "0.99")[0] == 1
    assert "rule sum" in succeeded(ask("check", run, "--min-accuracy", "0.9", "--rule", "sum"))


def test_a_worse_run_is_found_by_comparison_alone(ask: Ask, run: Path, worse: Path) -> None:
    better = succeeded(ask("check", run, "--against", worse))
    assert "16 gained, 0 lost" in better
    code, out, _ = ask("check", worse, "--against", run)
    assert code == 1
    assert "16 test examples lost and 0 gained, p < 0.0001" in out


def test_json_holds_every_figure_and_keeps_the_exit_code(ask: Ask, run: Path, worse: Path) -> None:
    code, out, err = ask("check", run, "--against", worse, "--min-accuracy", "0.99", "--json")
    answer = json.loads(out)
    assert (code, err, answer["ok"], answer["examples"], answer["seeds"]) == (1, "", False, 100, [0])
    assert [check["name"] for check in answer["checks"]] == ["min-accuracy", "against-accuracy", "against-certified"]
    assert [check["ok"] for check in answer["checks"]] == [False, True, True]
    assert answer["checks"][0]["measured"] == 0.96


def test_markdown_and_junit_are_written_also_when_a_floor_is_broken(ask: Ask, run: Path, tmp_path: Path) -> None:
    files = ("--markdown", tmp_path / "out" / "check.md", "--junit", tmp_path / "out" / "check.xml")
    code, _, _ = ask("check", run, "--min-accuracy", "0.99", "--max-harm", "0.5", *files)
    assert code == 1
    assert "| min-accuracy | 0.9600 |" in (tmp_path / "out" / "check.md").read_text()
    root = ElementTree.parse(tmp_path / "out" / "check.xml").getroot()
    assert root.get("failures") == "1"
    assert len(list(root.iter("testcase"))) == 2


def test_floors_of_redx_toml_are_used_and_the_file_is_named(ask: Ask, run: Path, tmp_path: Path) -> None:
    (tmp_path / "redx.toml").write_text("[check]\nmin_accuracy = 0.99\n")
    code, out, _ = ask("check", run)
    assert code == 1
    assert "redx.toml" in out
    succeeded(ask("check", run, "--min-accuracy", "0.9"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), ("nothing to check", "--against", "--min-accuracy", "--max-risk", "redx.toml")),
        (("--min-accuracy", "96"), ("min-accuracy", "write 0.96 for 96 %")),
        (("--max-harm", "-0.1"), ("max-harm", "-0.1")),
        (("--max-harm", "nan"), ("max-harm", "nan")),
        (("--min-accuracy", "0.9", "--confidence", "1"), ("confidence", "0.95")),
        (("--min-accuracy", "0.9", "--rule", "best"), ("no rule 'best'", "red")),
        (("--min-accuracy", "0.9", "--rule", "red/none"), ("no bank 'none'", "risk")),
        (("--min-accuracy", "0.9", "--rule", "moe"), ("moe",)),
        (("--against", "nowhere"), ("nowhere", "redx run")),
        (("--min-accuracy", "0.9", "--markdown", "run"), ("Cannot write run",)),
        (("--min-accuracy", "0.9", "--junit", "run/config.json/x"), ("Cannot write run/config.json/x",)),
    ],
    ids=lambda value: " ".join(value) or "nothing",
)
def test_mistakes_get_one_sentence(ask: Ask, run: Path, words: tuple[str, ...], message: tuple[str, ...]) -> None:
    refused(ask("check", run, *words), *message)


def test_what_is_no_finished_run_is_refused(ask: Ask, run: Path) -> None:
    refused(ask("check", "nowhere", "--min-accuracy", "0.9"), "nowhere/config.json", "redx run")
    refused(ask("check", run / "config.json", "--min-accuracy", "0.9"), "is a file")
    (run / "data.json").write_text('{"split": "random", "sha256": {}}')
    refused(ask("check", run, "--against", run), "different test splits")
    (run / "data.json").unlink()
    refused(ask("check", run, "--against", run), "data.json")
    (run / "seed-0" / "parts" / "residual-risk.safetensors").unlink()
    refused(ask("check", run, "--min-accuracy", "0.9"), "no parts of seed 0")


def test_the_file_and_the_workflow_of_the_guide_work(
    ask: Ask, run: Path, worse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert set(tomllib.loads(block)["check"]) <= set(NAMES)
    (tmp_path / "redx.toml").write_text(block)
    assert read_settings(run).floors.given()
    (workflow,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"redx (check .*)", workflow)
    assert commands
    for command in commands:
        words = shlex.split(command.replace("runs/toy", "run").replace("runs/main", "worse"))
        assert ask(*words)[0] in (0, 1)
        assert (tmp_path / "check.md").read_text().startswith("### redx check")
