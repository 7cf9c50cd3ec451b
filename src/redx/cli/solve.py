"""`redx solve`: answer sentences by chains of steps, with the decomposer and the experts of a run of `steps`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli.common import Folder, OneSeed, RuleName, say, show_table
from redx.errors import RedxError

if TYPE_CHECKING:
    from redx.tasks.arithmetic.solver import Chain

BATCH = 2048  # lines of stdin that are solved together


def solve(
    folder: Folder,
    text: Annotated[list[str] | None, typer.Argument(help="questions", metavar="[TEXT…]", show_default="stdin")] = None,
    rule: RuleName = None,
    seed: OneSeed = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line, in order")] = False,
) -> None:
    """Answer sentences step by step, each with its certified radius; without TEXT, every line of stdin is one.

    Exit code 1 when a question cannot be answered, with the reason.

    Example: `redx solve runs/steps "12 plus 5 minus 3"`
    """
    from redx.runs.folder import solver

    answering = solver(folder, seed, rule)
    lines = iter(text) if text else (line.rstrip("\r\n") for line in sys.stdin)
    failed = False
    while batch := list(itertools.islice(lines, BATCH)):
        for question, chain in zip(batch, answering.solve(batch), strict=True):
            facts = describe_chain(question, chain)
            failed |= facts["answer"] is None
            print(json.dumps(facts)) if as_json else show_chain(facts)
    if failed:
        raise typer.Exit(1)


def describe_chain(text: str, chain: Chain | RedxError) -> dict[str, Any]:
    """Return a solved question as plain values."""
    if isinstance(chain, RedxError):
        return {"text": text, "program": None, "steps": [], "answer": None, "reason": str(chain)}
    return {
        "text": text,
        "program": str(chain.program),
        "steps": [dataclasses.asdict(step) for step in chain.steps],
        "answer": chain.answer,
        "reason": chain.reason,
        "radius": chain.radius,
    }


def show_chain(facts: dict[str, Any]) -> None:
    """Print a solved question."""
    if facts["program"]:
        say(facts["text"], *facts["program"].split("\n"))
    if facts["steps"]:
        rows = [
            [
                step["question"],
                str(step["answer"]),
                step["expert"],
                ", ".join(f"{name} {weight:.3f}" for name, weight in step["weights"].items()),
                f"{step['radius']:.4g}",
            ]
            for step in facts["steps"]
        ]
        show_table(["step", "answer", "expert", "weights", "radius"], rows)
    if facts["answer"] is None:
        return say(f"redx: {facts['reason']}", error=True)
    say(f"= {facts['answer']}, certified radius {facts['radius']:.4g}")
