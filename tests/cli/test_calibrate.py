"""`redx calibrate`, and the risk that `redx experts` prints."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.commands import Ask, refused, succeeded
from redx.runs.calibration import risk_figures


def test_the_risk_that_is_kept_now_is_printed(ask: Ask, clouds_copy: Path) -> None:
    out = succeeded(ask("calibrate", clouds_copy, "--risk", "0.25"))
    assert "as it stands now, on the test split" in " ".join(out.split())
    assert "before" not in out
    assert "No router costs more than 0.25 of the base's accuracy, on average over calibration sets." in out
    out = succeeded(ask("calibrate", clouds_copy, "--risk", "0.5", "--confidence", "0.9", "--json"))
    figures = json.loads(out)["0"]
    assert (figures["risk"], figures["confidence"]) == (0.5, 0.9)


def test_mistakes_get_one_sentence(ask: Ask, clouds_copy: Path) -> None:
    refused(ask("calibrate", clouds_copy, "--risk", "2"), "between 0 and 1")
    refused(ask("calibrate", clouds_copy, "--risk", "0.000001"), "cannot be promised", "choose at least")
    refused(ask("calibrate", clouds_copy, "--risk", "0.5", "--confidence", "1"), "between 0 and 1")
    refused(ask("calibrate", "nowhere", "--risk", "0.5"), "nowhere")


def test_a_change_of_experts_shows_the_risk(ask: Ask, clouds_copy: Path) -> None:
    out = succeeded(ask("experts", "remove", clouds_copy, "1"))
    assert "as it stands now, on the test split" in out
    result = json.loads(succeeded(ask("experts", "add", clouds_copy, clouds_copy / "seed-0/removed/1", "--json")))
    assert result["risk"] == risk_figures(clouds_copy)


def test_a_diff_shows_the_cut_off_once_and_only_that_of_the_run_as_it_stands(ask: Ask, clouds_copy: Path) -> None:
    words = ("experts", "diff", clouds_copy, "--remove")
    now = risk_figures(clouds_copy)
    assert now is not None
    changes = [json.loads(succeeded(ask(*words, name, "--json"))) for name in ("0", "1")]
    assert [change.pop("now") for change in changes] == [now, now]
    assert changes[0] != changes[1]
    for change in changes:
        assert "cutoff" not in json.dumps(change)
        assert "test" not in json.dumps(change)
    out = " ".join(succeeded(ask(*words, "1")).split())
    assert (out.count("cut-off"), out.count("as it stands, on the test split")) == (1, 1)
    assert f"{now['low']:.4f}-{now['high']:.4f}" in out
    assert out.index("choice examples") < out.index("as it stands, on the test split")
