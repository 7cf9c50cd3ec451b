"""Chains of steps: the executor's algebra, and `redx run steps` and `redx solve` on a tiny language model."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redx
from redx import cli
from redx.tasks.arithmetic import chain_study
from redx.tasks.arithmetic.canonical import canonical
from redx.tasks.arithmetic.program import Program, Step
from redx.tasks.arithmetic.solver import Chain, Executor, SolvedStep

PROGRAMS = st.builds(
    Program,
    st.integers(1, 100),
    st.lists(st.builds(Step, st.sampled_from("+-"), st.integers(1, 50)), min_size=1, max_size=6).map(tuple),
)


class Told(Executor):
    """An executor that is told the answers."""

    def __init__(self, shift: int = 0) -> None:
        self.shift, self.asked = shift, list[str]()

    def ask(self, questions: Sequence[str]) -> list[SolvedStep]:
        self.asked += questions
        return [self.answer(question) for question in questions]

    def answer(self, question: str) -> SolvedStep:
        first, sign, second = canonical(question).split()
        true = int(first) + int(second) if sign == "+" else int(first) - int(second)
        return SolvedStep(question, true + self.shift, "add", {"add": 1.0}, 1 / (1 + int(second)))


@given(st.lists(PROGRAMS, max_size=8))
def test_chains_follow_their_steps(programs: list[Program]) -> None:
    for program, chain in zip(programs, Told().solve(programs), strict=True):
        within = [2 <= result <= 100 for result in program.results()]
        if all(within):
            assert chain.answer == program.value()
            assert len(chain.steps) == len(program.steps)
            assert chain.radius == min(step.radius for step in chain.steps)
            assert chain.steps[chain.weakest - 1].radius == chain.radius
        else:
            assert chain.answer is None
            assert chain.reason
            assert f"Step {within.index(False) + 1} " in chain.reason
            assert "out of range" in chain.reason


def test_answers_come_from_the_experts_and_not_from_python() -> None:
    chain = Told(shift=1).solve([Program(12, (Step("+", 5), Step("-", 3)))])[0]
    assert [step.question for step in chain.steps] == ["What is 12 plus 5?", "What is 18 minus 3?"]
    assert chain.answer == 16


def test_operands_that_no_expert_knows_are_refused() -> None:
    large, zero, start = Told().solve(
        [Program(60, (Step("-", 51),)), Program(3, (Step("+", 0),)), Program(101, (Step("-", 50),))]
    )
    assert "not 51" in str(large.reason)
    assert "not 0" in str(zero.reason)
    assert "not from 101" in str(start.reason)


def test_blame_goes_to_the_first_part_whose_oracle_mends_it() -> None:
    right, wrong = Program(12, (Step("+", 5),)), Program(12, (Step("-", 5),))
    exam = chain_study.Exam(["12 plus 5"] * 2, [right, right])
    good, bad = Told(), Told(shift=1)

    def due(read: list[Program], executors: dict[str, Executor]) -> list[str | None]:
        chains: list[Chain] = executors["red"].solve(read)
        ok = [chain.answer == right.value() for chain in chains]
        return chain_study.blame(executors, exam, chains, ok)

    assert due([right, wrong], {"red": good, "red-oracle": good, "oracle": good}) == [None, "decomposition"]
    assert due([right, right], {"red": bad, "red-oracle": good, "oracle": good}) == ["routing"] * 2
    assert due([right, right], {"red": bad, "red-oracle": bad, "oracle": good}) == ["composition"] * 2
    assert due([right, right], {"red": bad, "red-oracle": bad, "oracle": bad}) == ["expert"] * 2


def test_a_run_of_steps_tells_of_chains(chains: redx.Run) -> None:
    found = chains.summary["study"]["chains"]
    assert set(found["accuracy"]["red"]) == {"2", "3", "4", "5-8"}
    assert {"red", "moe", "uniform", "sum", "oracle"} <= set(found["accuracy"])
    for row in found["certified"].values():
        shares = list(row.values())
        assert shares == sorted(shares, reverse=True)
    for name, row in found["budget"].items():
        assert row["wrong"] == pytest.approx(sum(row[part] for part in chain_study.PARTS)), name
    assert "Error budget" in (chains.folder / "report.md").read_text()


def solve(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main([str(word) for word in ("solve", *words)])
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_solve_prints_objects_in_order(chains: redx.Run, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["12 plus 5 minus 3", "", "3 times 4", "12 plus 5", "no numbers", "7 plus 99", "-5 plus 3", "2.5 plus 1"]
    code, out, _ = solve(capsys, chains.folder, *texts, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [each["text"] for each in found] == texts
    for each in found:
        assert {"text", "program", "steps", "answer", "reason"} <= set(each)
        assert (each["answer"] is None) == bool(each["reason"])
        for step in each["steps"]:
            assert set(step) == {"question", "answer", "expert", "weights", "radius"}
    reasons = [each["reason"] for each in found if each["reason"] and not each["steps"]]
    assert len(set(reasons)) == len(reasons) >= 5


def test_solve_reads_lines_from_stdin(
    chains: redx.Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "asked.txt").write_text("12 plus 5\n30 minus 3\n")
    with (tmp_path / "asked.txt").open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        _, out, _ = solve(capsys, chains.folder, "--json")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["12 plus 5", "30 minus 3"]


def test_solve_needs_a_run_with_a_decomposer(toy: redx.Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = solve(capsys, toy.folder, "1 plus 2")
    assert code == 2
    assert "redx run steps" in err
