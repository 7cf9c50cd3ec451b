"""`redx calibrate`, and the risk that `redx experts` prints."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.commands import Ask, refused, succeeded


def test_the_risk_before_and_after_is_printed(ask: Ask, clouds_copy: Path) -> None:
    out = succeeded(ask("calibrate", clouds_copy, "--risk", "0.25"))
    assert "before" in out
    assert "0.25" in out
    assert "No router costs more than 0.25 of the base's accuracy, on average over calibration sets." in out
    out = succeeded(ask("calibrate", clouds_copy, "--risk", "0.5", "--confidence", "0.9", "--json"))
    figures = json.loads(out)["0"]
    assert (figures["before"]["risk"], figures["before"]["confidence"]) == (0.25, None)
    assert (figures["after"]["risk"], figures["after"]["confidence"]) == (0.5, 0.9)


def test_mistakes_get_one_sentence(ask: Ask, clouds_copy: Path) -> None:
    refused(ask("calibrate", clouds_copy, "--risk", "2"), "between 0 and 1")
    refused(ask("calibrate", clouds_copy, "--risk", "0.000001"), "cannot be promised", "choose at least")
    refused(ask("calibrate", clouds_copy, "--risk", "0.5", "--confidence", "1"), "between 0 and 1")
    refused(ask("calibrate", "nowhere", "--risk", "0.5"), "nowhere")


def test_a_change_of_experts_shows_the_risk(ask: Ask, clouds_copy: Path) -> None:
    out = succeeded(ask("experts", "remove", clouds_copy, "1"))
    assert "risk on the test split" in out
    result = json.loads(succeeded(ask("experts", "add", clouds_copy, clouds_copy / "seed-0/removed/1", "--json")))
    assert result["risk"]["before"]["risk"] == result["risk"]["after"]["risk"]
    assert "choice examples" in succeeded(ask("experts", "diff", clouds_copy, "--remove", "1"))
