"""The decomposer as the extension of a run of chains: trained in a stage of its own, it answers sentences by steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from redx.config import RunConfig
from redx.errors import RedxError
from redx.tasks.arithmetic.decomposers import Decomposer, restore_decomposer, train_decomposer
from redx.tasks.arithmetic.program import Program
from redx.tasks.arithmetic.solver import Chain, Executor, SolvedStep, Solver, solve_readable

if TYPE_CHECKING:
    from torch import Tensor

    from redx.model.model import Model

NAME = "decomposer"


def is_wanted(config: RunConfig) -> bool:
    """Return whether a run with these settings has a decomposer."""
    return config.questions.decomposer != "none"


def train(config: RunConfig, seed: int) -> dict[str, Tensor]:
    """Train the model that turns a sentence into steps, and return its tensors."""
    return train_decomposer(config.questions.decomposer, seed, config.backbone).tensors()


def restore(config: RunConfig, tensors: dict[str, Tensor]) -> Decomposer:
    """Return the decomposer with these tensors."""
    return restore_decomposer(config.questions.decomposer, tensors, config.backbone)


def solver(module: Decomposer, model: Model, rule: str) -> Solver:
    """Return what takes sentences to chains of solved steps."""
    return Solver(module, Executor(model, rule))


class DescribedSteps(Executor):
    """Solves steps by a function that answers questions, and keeps the whole description of each answer.

    Parameters
    ----------
    answer
        Takes questions to the description of each answer, with `answer`, `expert`, `weights` and `radius`.
    """

    def __init__(self, answer: Callable[[Sequence[str]], list[dict[str, Any]]]) -> None:
        self.answer = answer
        self.described: dict[str, dict[str, Any]] = {}

    def ask(self, questions: Sequence[str]) -> list[SolvedStep]:
        new = [question for question in dict.fromkeys(questions) if question not in self.described]
        if new:
            self.described |= dict(zip(new, self.answer(new), strict=True))
        solved = []
        for question in questions:
            facts = self.described[question]
            step = SolvedStep(question, int(facts["answer"]), facts["expert"], facts["weights"], facts["radius"])
            solved.append(step)
        return solved


def answer(
    module: Decomposer, inputs: Sequence[str], ask: Callable[[Sequence[str]], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the description of every sentence's answer, with that of each of its steps.

    Parameters
    ----------
    module
        The decomposer.
    inputs
        The sentences.
    ask
        Asks the composed model single questions.
    """
    executor = DescribedSteps(ask)
    programs: list[Program | RedxError] = module.decompose(inputs)
    return [_describe(chain, executor) for chain in solve_readable(executor, programs)]


def _describe(chain: Chain | RedxError, executor: DescribedSteps) -> dict[str, Any]:
    if isinstance(chain, RedxError):
        return {"answer": None, "reason": str(chain), "program": None, "steps": [], "radius": None}
    steps = [{"question": step.question} | executor.described[step.question] for step in chain.steps]
    return {
        "answer": chain.answer,
        "reason": chain.reason,
        "program": str(chain.program),
        "steps": steps,
        "radius": chain.radius if steps else None,
        "weakest": chain.weakest if steps else None,
    }
