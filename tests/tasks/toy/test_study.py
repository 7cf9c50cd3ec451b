"""What the toy experiments must show, trained as the quick preset trains them."""

from pathlib import Path

import pytest

import redx
from redx.tasks.toy import study

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    cases = study._cases
    with pytest.MonkeyPatch.context() as patch:  # every ablation, each with hardly trained experts
        patch.setattr(study, "_cases", lambda config, epochs, counts: cases(config, 10, (2, 5)))
        return redx.run("toy", "quick", out=tmp_path_factory.mktemp("toy") / "run")


def test_linear_and_residual_experts_survive_every_mixture(run: redx.Run) -> None:
    for rule in ("uniform/linear", "average/linear", "moe/linear", "red", "fixed", "red-oracle", "base"):
        entry = run.summary["rules"][rule]
        assert set(entry["per_domain"].values()) == {1.0}, rule
        assert entry["certified"]["1"] == 1.0, rule


def test_mlp_experts_collapse_when_averaged(run: redx.Run) -> None:
    rules = run.summary["rules"]
    assert rules["uniform/mlp"]["accuracy"]["mean"] <= 0.10
    assert rules["average/mlp"]["accuracy"]["mean"] <= 0.10
    assert rules["moe/mlp"]["certified"]["1"] <= 0.10


def test_proposition_3_holds(run: redx.Run) -> None:
    measured = run.summary["study"]["proposition_3"]["0"]
    assert measured["holds"]
    assert 0 < measured["largest_error"] <= measured["epsilon"] + 1e-6


def test_the_study_reports_every_segment(run: redx.Run) -> None:
    segments = run.summary["study"]["segments"]
    assert set(segments) == {
        *("oracle/linear", "uniform/linear", "average/linear", "oracle/mlp", "uniform/mlp", "average/mlp"),
        *("base", "red-oracle/residual", "fixed/residual"),
    }
    assert all(len(shares) == 5 for by_seed in segments.values() for shares in by_seed.values())


def test_without_a_base_the_mixture_falls(run: redx.Run) -> None:
    text = (Path(run.folder) / "report.md").read_text()
    assert "the base removed" in text
    assert "number of MLP experts" in text
