"""`redx predict`: ask a trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli.common import AsJson, Folder, OneSeed, Routing, RuleName, print_json, say, show_table
from redx.errors import RedxError

if TYPE_CHECKING:
    from redx.model.model import Model


def predict(
    folder: Folder,
    text: Annotated[list[str], typer.Argument(help="questions", metavar="TEXT…", show_default=False)],
    rule: RuleName = None,
    router: Routing = None,
    without: Annotated[list[str] | None, typer.Option(help="expert to leave out; may be repeated")] = None,
    risk: Annotated[
        float | None, typer.Option(help="bound on the harm of the worst router", show_default="the run's")
    ] = None,
    abstain: Annotated[
        float | None,
        typer.Option(help="say 'none of ours' where a text looks like no known class, on at most this share of others"),
    ] = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Ask a trained model; print the answer, the weight and contribution of every expert, and the certified radius.

    Example: `redx predict runs/addition "What is 37 plus 12?"`
    """
    from redx.runs.folder import ask_model, read_config, task_of

    task = task_of(read_config(folder))
    if not task.text:
        raise RedxError(
            f"A run of '{task.name}' reads no text; ask it in Python with redx.load('{folder}').predict(…)."
        )

    def ask(model: Model) -> tuple[list[dict[str, Any]], str, str | None]:
        with model.using(rule, without=without or (), router=router):
            if risk is not None:
                model.calibrate(risk=risk, confidence=model.current_control().confidence)
            explained = zip(text, model.explain(text, abstain), strict=True)
            answers = [{"text": one, **answer.as_dict(), "router": model.routing} for one, answer in explained]
            note = None if router else model.routing_note
            if note:
                answers = [facts | {"note": note} for facts in answers]
            return answers, model.rule, note

    answers, used_rule, note = ask_model(folder, seed, ask)
    if note:
        say(f"note: {note}", error=True)
    if as_json:
        return print_json(answers)
    for facts in answers:
        if facts.get("abstained"):
            say(f"{facts['text']}  →  none of ours")
            continue
        say(f"{facts['text']}  →  {facts['answer']}")
        line = f"range {facts['range']}, " if facts["range"] else ""
        say(f"{line}base alone {facts['base']}, rule {used_rule}, certified radius {facts['radius']:.4g}")
        rows = [
            [expert, f"{weight:.4f}", f"{facts['contributions'][expert]:+.4f}"]
            for expert, weight in facts["weights"].items()
        ]
        show_table(["expert", "weight", f"adds to {facts['answer']}"], rows)
    say("Radius r: whoever moves less than a share r of the routing weight cannot change the answer.")
