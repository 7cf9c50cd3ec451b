"""The result of a check as a table, as Markdown and as JUnit, whatever names are in it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from redx.runs.check_output import Check, CheckResult, show_bound, table_rows, to_junit, to_markdown

NASTY = "a|b`c<d>&\"e'\x1b[31m\n@all\u202e]]>"
HOLDS = Check("min-accuracy", 0.9, 0.95, 0.91, True)
BROKEN = Check("min-domain", 0.9, 0.5, 0.4, False, "the lower bound 0.4000 is below 0.9", NASTY)
UNKNOWN = Check("max-risk", 0.01, None, None, False, "the run is not calibrated")
LOST = Check("against-accuracy", 0.05, -0.1, 0.03, False, "5 lost", gained=0.0, lost=5.0)


def result(*checks: Check) -> CheckResult:
    return CheckResult(NASTY, "red", NASTY, 0.95, (0, 1), 2000, checks)


def test_the_verdict_is_one_sentence() -> None:
    assert result(HOLDS).verdict == "The check holds for the rule red at confidence 0.95."
    assert result(HOLDS, HOLDS, HOLDS).verdict.startswith("All 3 checks hold")
    broken = result(HOLDS, UNKNOWN)
    assert broken.verdict == "1 of 2 checks is broken: max-risk (the run is not calibrated)."
    assert (broken.ok, broken.to_dict()["ok"], result(HOLDS).ok) == (False, False, True)


def test_rows_show_what_was_measured_and_what_is_demanded() -> None:
    assert table_rows(result(HOLDS, UNKNOWN, LOST)) == [
        ["min-accuracy", "0.9500", "0.9100", "≥ 0.9", "ok"],
        ["max-risk", "—", "—", "≤ 0.01", "broken"],
        ["against-accuracy", "0 gained, 5 lost", "p = 0.0300", "p ≥ 0.05", "broken"],
    ]


@pytest.mark.parametrize(("floor", "step"), [(0.95, 1e-9), (0.99852, 1e-9), (1e-7, 1e-12), (0.3, 1e-17), (0, 0)])
def test_a_bound_is_shown_on_its_side_of_the_floor(floor: float, step: float) -> None:
    for name in ("min-accuracy", "max-harm"):
        for bound in (floor - step, floor, floor + step):
            shown = float(show_bound(name, bound, floor))
            assert (shown <= floor) == (bound <= floor) if name == "max-harm" else (shown >= floor) == (bound >= floor)


def test_markdown_is_one_table_whose_cells_no_name_can_leave() -> None:
    text = to_markdown(result(HOLDS, BROKEN, UNKNOWN))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 5
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert "\x1b" not in text
    outside_code = re.sub(r"`[^`]*`", "", text)
    assert "@all" in text
    assert "@all" not in outside_code
    assert "<d>" not in outside_code


def test_junit_has_one_case_per_check_and_any_name_survives() -> None:
    content = to_junit(result(HOLDS, BROKEN, UNKNOWN))
    root = ElementTree.fromstring(content)
    (suite,) = root
    assert (root.tag, suite.tag, suite.get("tests"), suite.get("failures")) == ("testsuites", "testsuite", "3", "2")
    cases = suite.findall("testcase")
    assert [case.find("failure") is None for case in cases] == [True, False, False]
    assert cases[1].get("name") == "min-domain: a|b`c<d>&\"e'\\x1b[31m\\n@all\\u202e]]>"
    assert [failure.get("message") for failure in root.iter("failure")] == [BROKEN.reason, UNKNOWN.reason]
