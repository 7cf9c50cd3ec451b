"""The verbs of experts as files: list, add, remove, replace, train, diff; and the router's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli.common import AsJson, Folder, OneSeed, Routing, print_json, show_table
from redx.errors import RedxError

if TYPE_CHECKING:
    from redx.models.composed import Model

Place = Annotated[Path, typer.Argument(help="folder of an expert, with expert.json in it", metavar="FOLDER")]
Name = Annotated[str, typer.Argument(help="name of an expert; `redx experts list RUN` shows them", metavar="NAME")]
Rule = Annotated[str | None, typer.Option(help="rule, or rule/bank", show_default="red")]
Text = Annotated[str | None, typer.Option(help="column with the text", show_default="question or text")]
Label = Annotated[str | None, typer.Option(help="column with the label", show_default="answer or label")]


def list_experts(folder: Folder, seed: OneSeed = None, as_json: AsJson = False) -> None:
    """List the experts of a run: what each was trained on, how good it is at home, when it speaks.

    Example: `redx experts list runs/mnist`
    """
    from redx.runs.folder import load

    model = load(folder, seed)
    told = [expert.info for expert in model.experts]
    if as_json:
        return print_json(told)
    main = model.config.main_bank("residual")
    source = str(model.config.trained_as(main) if main in model.config.banks else main)
    rows = []
    for facts in told:
        own, metrics = facts.get("ownership", {}), facts.get("metrics", {})
        shares = [metrics.get(name) for name in ("base", source)] + [own.get("cutoff"), own.get("speaks")]
        classes = facts.get("classes", [])
        shown = ", ".join(classes[:6]) + (f" … ({len(classes)})" if len(classes) > 6 else "")
        count = str(facts.get("training", {}).get("examples", "—"))
        rows.append([facts["domain"], count, shown, facts.get("dtype", "—"), *map(_figure, shares)])
    columns = [
        "expert",
        "examples",
        "classes",
        "kept as",
        "base at home",
        "expert at home",
        "cut-off",
        "speaks at home",
    ]
    show_table(columns, rows, f"Experts of {folder}")


def add(folder: Folder, expert: Place, seed: OneSeed = None, as_json: AsJson = False) -> None:
    """Add an expert that was trained elsewhere on the same base; nothing else is touched or retrained.

    Example: `redx experts add runs/mnist runs/mnist/seed-0/removed/8-9`
    """
    from redx.models.expert import Expert
    from redx.runs import editing

    model, name = editing.add_expert(folder, expert, seed), Expert.load(expert).name
    _done(as_json, {"added": name, "experts": model.experts.names}, f"added {name}; {_router_note(model)}")


def remove(folder: Folder, name: Name, seed: OneSeed = None, as_json: AsJson = False) -> None:
    """Remove an expert; its folder is kept beside the others, and the router's mass goes to those that are left.

    Example: `redx experts remove runs/mnist 8-9`
    """
    from redx.runs import editing

    kept = editing.remove_expert(folder, name, seed)
    _done(as_json, {"removed": name, "kept": str(kept)}, f"removed {name}; it is kept in {kept}")


def replace(folder: Folder, name: Name, expert: Place, seed: OneSeed = None, as_json: AsJson = False) -> None:
    """Replace an expert by another, trained on the same base; the old one is kept beside the others.

    Example: `redx experts replace runs/mnist 8-9 runs/other/seed-0/experts/8-9`
    """
    from redx.models.expert import Expert
    from redx.runs import editing

    new = Expert.load(expert).name
    model, kept = editing.replace_expert(folder, name, expert, seed)
    told = f"replaced {name} by {new}; the old one is kept in {kept}; {_router_note(model)}"
    _done(as_json, {"replaced": name, "by": new, "kept": str(kept)}, told)


def train(
    folder: Folder,
    domain: Annotated[str, typer.Option(help="name of the expert", show_default=False)],
    data: Annotated[Path, typer.Option(help="its data: JSONL, CSV, Parquet or .npz", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="folder to write", show_default="trained/NAME")] = None,
    text: Text = None,
    label: Label = None,
    dtype: Annotated[str, typer.Option(help="precision to keep it in: float32, bfloat16 or float16")] = "float32",
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Train one expert alone, anywhere: it needs the base and the shared subset of a run, and its own data.

    Of the run's folder only config.json and the seed's model.json, base.safetensors and shared.safetensors are read.

    Example: `redx experts train runs/addition --domain dozens --data dozens.jsonl`
    """
    from redx.runs import editing

    place = out or Path("trained") / domain
    expert = editing.train_expert(folder, domain, data, place, text=text, label=label, dtype=dtype, seed=seed)
    facts = {"domain": expert.name, "folder": str(place), **expert.info["training"], **expert.info["metrics"]}
    _done(as_json, facts, f"trained {expert.name} on {facts['anchors']} anchors; it is in {place}")


def diff(
    folder: Folder,
    add: Annotated[list[Path] | None, typer.Option(help="expert folder to add; repeatable")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="expert to remove; repeatable")] = None,
    rule: Rule = None,
    router: Routing = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Show what a change would do before it is done: flips, gain and loss by domain, certificates; nothing is written.

    Removing and adding the same name replaces it.

    Example: `redx experts diff runs/mnist --remove 8-9`
    """
    from redx.runs.diff import diff_experts

    found = diff_experts(folder, add or [], remove or [], rule=rule, router=router, seed=seed)
    if as_json:
        return print_json(found)
    total = sum(each["examples"] for each in found["domains"].values())
    everything = {"examples": total, **found["accuracy"], "gained": found["gained"], "lost": found["lost"]}
    rows = [
        [name, *(f"{value:.4f}" if isinstance(value, float) else str(value) for value in each.values())]
        for name, each in (*found["domains"].items(), ("all", everything))
    ]
    show_table(["domain", "examples", "before", "after", "gained", "lost"], rows, f"{found['flips']} answers flip")
    proofs = [
        [f"ε = {name}", f"{each['before']:.4f}", f"{each['after']:.4f}", str(each["broken"]), str(each["appeared"])]
        for name, each in found["certificates"].items()
    ]
    show_table(["certified at", "before", "after", "broken", "appeared"], proofs, "Certificates")
    flips = [
        [
            str(each["row"]),
            each.get("text", each["domain"]),
            str(each["label"]),
            str(each["before"]),
            str(each["after"]),
        ]
        for each in found["examples"][:10]
    ]
    if flips:
        show_table(
            ["test row", "example", "right", "before", "after"], flips, f"{len(flips)} of {found['flips']} flips"
        )


def train_router(
    folder: Folder,
    domain: Annotated[
        list[str] | None, typer.Option(help="expert whose data the run does not have; repeatable")
    ] = None,
    data: Annotated[list[Path] | None, typer.Option(help="that expert's data, one for each --domain")] = None,
    text: Text = None,
    label: Label = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Train the router of a run anew for the experts it has now, and nothing else.

    Example: `redx router train runs/mnist`
    """
    from redx.runs import editing

    more = dict(zip(domain or [], data or [], strict=False))
    if len(domain or []) != len(data or []):
        raise RedxError("Each --domain needs its --data, in the same order.")
    found = editing.retrain_router(folder, more, text=text, label=label, seed=seed)
    _done(as_json, found, f"trained the router of {folder} for {', '.join(found['experts'])}")


def _done(as_json: bool, facts: dict[str, Any], told: str) -> None:
    print_json(facts) if as_json else typer.echo(told)


def _figure(value: Any) -> str:
    return "—" if value is None else f"{value:.4f}"


def _router_note(model: Model) -> str:
    lacking = model.router.missing(model.experts.names) if model.router else []
    if not lacking:
        return "the router knows it"
    return (
        f"the trained router has no gate for {lacking[0]!r}, for its width is fixed; "
        "until `redx router train RUN` is run, ask with --router keys"
    )
