"""The tables of docs/scale.md are those of the results that benchmarks/scale.py wrote."""

import json
from pathlib import Path

import pytest

import scale

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "docs" / "results" / "scale.json").read_text())


def test_the_page_shows_the_results() -> None:
    assert scale.render(RESULTS) in (ROOT / "docs" / "scale.md").read_text()


def test_what_is_needed_follows_from_the_measurements() -> None:
    assert scale.work_out(RESULTS) == pytest.approx(RESULTS["needs"])


def test_a_larger_cache_and_a_more_skewed_popularity_give_more_hits() -> None:
    small, large, skewed = (scale.simulate(s, m, requests=4000) for s, m in ((0.8, 50), (0.8, 500), (1.2, 50)))
    assert 0 < small < large < 1
    assert small < skewed < 1
