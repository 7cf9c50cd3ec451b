"""The toy tasks: each runs alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import redx
from helpers.runs import few_epochs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["toy-linear", "toy-mlp", "toy-residual"])
def test_each_toy_runs_alone(name: str, tmp_path: Path) -> None:
    done = redx.run(name, "quick", out=tmp_path / name, **few_epochs(name))
    assert done.report.exists()
    assert set(done.summary["rules"]) >= {"base", "red" if name == "toy-residual" else "moe"}
    assert len(redx.load(done.folder).predict([[1, 2]])) == 1
