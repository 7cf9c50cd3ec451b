"""Programs solved step by step by the experts of a model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helpers.solvers import ExactExecutor
from redx.tasks.arithmetic.program import Program, Step

PROGRAMS = st.builds(
    Program,
    st.integers(1, 100),
    st.lists(st.builds(Step, st.sampled_from("+-"), st.integers(1, 50)), min_size=1, max_size=6).map(tuple),
)


@given(st.lists(PROGRAMS, max_size=8))
def test_chains_follow_their_steps(programs: list[Program]) -> None:
    for program, chain in zip(programs, ExactExecutor().solve(programs), strict=True):
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


def test_answers_come_from_the_experts_and_not_from_arithmetic() -> None:
    chain = ExactExecutor(shift=1).solve([Program(12, (Step("+", 5), Step("-", 3)))])[0]
    assert [step.question for step in chain.steps] == ["What is 12 plus 5?", "What is 18 minus 3?"]
    assert chain.answer == 16


def test_operands_outside_the_range_are_refused() -> None:
    large, zero, start = ExactExecutor().solve(
        [Program(60, (Step("-", 51),)), Program(3, (Step("+", 0),)), Program(101, (Step("-", 50),))]
    )
    assert "not 51" in str(large.reason)
    assert "not 0" in str(zero.reason)
    assert "not from 101" in str(start.reason)
