"""The study of chains: which part is to blame for a wrong answer, and what a run reports."""

from __future__ import annotations

import pytest

import redx
from helpers.solvers import ExactExecutor
from redx.tasks.arithmetic import chain_evaluation
from redx.tasks.arithmetic.program import Program, Step
from redx.tasks.arithmetic.solver import Chain, Executor


def test_the_first_part_whose_oracle_corrects_the_answer_is_to_blame() -> None:
    right, wrong = Program(12, (Step("+", 5),)), Program(12, (Step("-", 5),))
    exam = chain_evaluation.Exam(["12 plus 5"] * 2, [right, right])
    good, bad = ExactExecutor(), ExactExecutor(shift=1)

    def blamed(read: list[Program], executors: dict[str, Executor]) -> list[str | None]:
        chains: list[Chain] = executors["red"].solve(read)
        ok = [chain.answer == right.value() for chain in chains]
        return chain_evaluation.attribute_errors(executors, exam, chains, ok)

    assert blamed([right, wrong], {"red": good, "red-oracle": good, "oracle": good}) == [None, "decomposition"]
    assert blamed([right, right], {"red": bad, "red-oracle": good, "oracle": good}) == ["routing"] * 2
    assert blamed([right, right], {"red": bad, "red-oracle": bad, "oracle": good}) == ["composition"] * 2
    assert blamed([right, right], {"red": bad, "red-oracle": bad, "oracle": bad}) == ["expert"] * 2


@pytest.mark.slow
def test_a_run_of_steps_reports_on_chains(chains: redx.Run) -> None:
    study = chains.summary["study"]["chains"]
    assert set(study["accuracy"]["red"]) == {"2", "3", "4", "5-8"}
    assert {"red", "moe", "uniform", "sum", "oracle"} <= set(study["accuracy"])
    for row in study["certified"].values():
        shares = list(row.values())
        assert shares == sorted(shares, reverse=True)
    for name, row in study["budget"].items():
        assert row["wrong"] == pytest.approx(sum(row[part] for part in chain_evaluation.PARTS)), name
    assert "Error budget" in (chains.folder / "report.md").read_text()
