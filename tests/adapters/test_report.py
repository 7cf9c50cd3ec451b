"""The report of a run of adapters, `redx report`, `redx check` and `redx list`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import redx
from helpers.commands import Ask
from redx.adapters.check import check_mean, mean_bound
from redx.adapters.report import describe_gains, is_adapters_run, verdict, write_report
from redx.composition.metrics import upper_bound


@pytest.fixture
def finished(adapters: redx.Run, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return shutil.copytree(adapters.folder, tmp_path / "copy")


def test_report_is_written_again(finished: Path, ask: Ask) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    for name in ("report.html", "report.md"):
        (finished / name).unlink()
    code, out, _ = ask("report", finished, "--json")
    assert code == 0
    assert Path(json.loads(out)["report"]) == finished / "report.html"
    page, text = (finished / "report.html").read_text(), (finished / "report.md").read_text()
    assert (finished / "figures" / "certified.svg").is_file()
    assert describe_gains(summary) in text
    for content in (page, text):
        assert verdict(summary) in content
        for way in ("base", "router", "any router", "merge cat"):
            for domain in summary["documents"]:
                assert f" {summary['ways'][way]['perplexity'][domain]:.2f} " in content.replace("<", " ").replace(
                    ">", " "
                )
        assert "redx run adapters --train --preset tiny" in content
        assert "parameters together" in content
    assert page.count("<table>") >= 6
    assert "http" not in page.replace("http://www.w3.org", "")


def test_report_of_an_unfinished_run(finished: Path, ask: Ask) -> None:
    (finished / "summary.json").unlink()
    code, _, err = ask("report", finished)
    assert code == 2
    assert "is not finished; repeat its command: redx run adapters" in err


def test_report_of_an_earlier_version_has_no_harm(finished: Path) -> None:
    path = finished / "summary.json"
    summary = json.loads(path.read_text())
    del summary["harm"]
    path.write_text(json.dumps(summary))
    assert "not measured on the test documents" in write_report(finished).read_text()


def test_damaged_summary(finished: Path, ask: Ask) -> None:
    (finished / "summary.json").write_text(json.dumps({"ways": 1}))
    code, _, err = ask("report", finished)
    assert code == 2
    assert "lacks figures of a report" in err
    assert err.count("\n") == 1


def test_adapters_are_reported_alone(finished: Path, toy: redx.Run, ask: Ask) -> None:
    assert is_adapters_run(finished)
    assert not is_adapters_run(toy.folder)
    code, _, err = ask("report", toy.folder, finished)
    assert code == 2
    assert "report on it alone" in err


def test_check(finished: Path, ask: Ask) -> None:
    rows = [json.loads(line) for line in (finished / "results.jsonl").read_text().splitlines()]
    shares = [row["right"] / row["tokens"] for row in rows if row["way"] == "router at risk"]
    words = ("--min-accuracy", 0, "--min-certified", 0, "--max-harm", 1, "--max-risk", 0.2, "--min-domain", 0)
    code, out, _ = ask("check", finished, *words, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["ok"]
    assert result["examples"] == len(shares)
    by_name = {check["name"]: check for check in result["checks"]}
    assert list(by_name) == ["min-accuracy", "min-certified", "max-harm", "max-risk", "min-domain"]
    assert by_name["min-accuracy"]["measured"] == pytest.approx(sum(shares) / len(shares))
    assert by_name["min-certified"]["measured"] <= by_name["min-accuracy"]["measured"]
    assert by_name["min-domain"]["domain"] in ("digits", "lower", "upper")
    for name in ("min-accuracy", "min-certified", "min-domain"):
        assert by_name[name]["bound"] <= by_name[name]["measured"]
    assert by_name["max-harm"]["bound"] > by_name["max-harm"]["measured"]
    code, out, _ = ask("check", finished, "--min-accuracy", 0.99, "--max-risk", 0.1)
    assert code == 1
    assert "2 of 2 checks are broken: min-accuracy (the lower bound" in out
    assert "calibrated for the risk 0.2, above 0.1" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "nothing to check; give a floor"),
        (["--against", "RUN"], "is not compared with another run"),
        (["--min-accuracy", "0.1", "--rule", "moe"], "only the rule red is checked"),
        (["--min-accuracy", "10"], "is a number from 0 to 1"),
    ],
)
def test_check_refuses(words: list[str], sentence: str, finished: Path, ask: Ask) -> None:
    code, _, err = ask("check", finished, *[finished if word == "RUN" else word for word in words])
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1


def test_check_of_an_earlier_version_cannot_tell_harm(finished: Path, ask: Ask) -> None:
    path = finished / "results.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "harmed" not in line))
    assert ask("check", finished, "--min-accuracy", 0)[0] == 0
    code, _, err = ask("check", finished, "--max-harm", 1)
    assert code == 2
    assert "was tested before this was measured" in err
    path.unlink()
    assert "is not finished" in ask("check", finished, "--max-harm", 1)[2]


def test_mean_bound_holds_as_often_as_it_says() -> None:
    """Of 2,000 samples of 20 shares, the bound exceeds the expectation in at most 10 %, for three distributions."""
    draw = torch.Generator().manual_seed(0)
    coins = (torch.rand(2000, 20, generator=draw) < 0.3).double()
    even = torch.rand(2000, 20, generator=draw).double()
    for values, expectation in ((coins, 0.3), (even, 0.5), (1 - coins, 0.7)):
        bounds = [mean_bound(float(row.mean()), 20, 0.9) for row in values]
        assert sum(bound > expectation for bound in bounds) <= 200
        assert max(bounds) > 0.1, "a bound of zero would hold as well"


def test_check_of_a_mean_turns_round_for_upper_bounds() -> None:
    most = check_mean("max-harm", [0.0] * 100, 0.05, 0.95)
    assert most.ok
    assert most.bound == pytest.approx(upper_bound(0, 100, 0.95))  # exact where all shares are 0
    least = check_mean("min-accuracy", [1.0] * 100, 0.98, 0.95)
    assert not least.ok
    assert least.bound == pytest.approx(1 - (most.bound or 0))


def test_list_names_adapters(ask: Ask) -> None:
    code, out, _ = ask("list", "--json")
    assert code == 0
    assert json.loads(out)["adapters"]["presets"] == ["default", "quick", "tiny"]
