"""The headline of the report states gain and loss alike."""

from __future__ import annotations

from typing import Any

import pytest

from redx.report.headline import verdict


@pytest.mark.parametrize(("worst", "words"), [(0.7, "0.1000 less than the base"), (0.8, "not less than the base")])
def test_the_headline_states_a_loss_as_it_states_a_gain(worst: float, words: str) -> None:
    def entry(mean: float) -> dict[str, Any]:
        return {"accuracy": {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}}

    red = {**entry(0.75), "certified": {"1": worst}, "noise": {"swap": {"1": 0.72}}}
    said = " ".join(verdict({"base": entry(0.8), "red": red, "global": entry(0.755)}))
    assert words in said
    assert "0.0500 less than the base (0.8000)" in said
    assert "0.0050 less than the head trained on the pooled data (0.7550; the intervals overlap)" in said
    assert "wrong expert, 0.7200 are answered correctly" in said
