"""The verbs around experts: list, add, remove, replace, kit, train, diff; and `router train`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli import early
from redx.cli.calibrate import say_owners, show_quarantine, show_risk
from redx.cli.common import AsJson, Folder, OneSeed, Routing, RuleName, print_json, say, show_table
from redx.errors import RedxError

if TYPE_CHECKING:
    from redx.model.model import Model

SHOWN_FLIPS = 10
Unverified = Annotated[bool, typer.Option("--unverified", help="accept an expert without a fingerprint of its base")]
ExpertFolder = Annotated[
    Path, typer.Argument(help="folder of an expert, with expert.json in it", metavar="FOLDER", callback=early.expert)
]
Force = Annotated[bool, typer.Option("--force", help="take it although a measurement is against it")]
Admit = Annotated[bool, typer.Option("--admit", help="let it take part even if it harms more than it helps")]
Name = Annotated[str, typer.Argument(help="name of an expert; `redx experts list RUN` shows them", metavar="NAME")]
Text = Annotated[str | None, typer.Option(help="column with the text", show_default="question or text")]
Label = Annotated[str | None, typer.Option(help="column with the label", show_default="answer or label")]


def list_experts(folder: Folder, seed: OneSeed = None, as_json: AsJson = False) -> None:
    """List the experts of a run: their data, their classes, and their accuracy in their own domain.

    Example: `redx experts list runs/mnist`
    """
    from redx.runs.calibration import owners_of, quarantine_of
    from redx.runs.folder import ask_model, choose_seed
    from redx.runs.plans import own_stages

    config, number = choose_seed(folder, seed)
    if stages := own_stages(config):
        descriptions = stages.expert_infos(folder / f"seed-{number}")
    else:
        descriptions = ask_model(folder, number, lambda model: [expert.info for expert in model.experts])
    quarantine = quarantine_of(folder, number)
    if as_json:
        return print_json([info | {"quarantine": quarantine.get(info["domain"])} for info in descriptions])
    main = config.main_bank("residual")
    source = str(config.trained_as(main) if main in config.banks else main)
    rows = []
    for info in descriptions:
        shares = [info.get("metrics", {}).get(name) for name in ("base", source)]
        classes = info.get("classes", [])
        shown = ", ".join(classes[:6]) + (f" … ({len(classes)})" if len(classes) > 6 else "")
        shown += f" ({len(info['new_classes'])} new)" if info.get("new_classes") else ""
        count = str(info.get("training", {}).get("examples", "—"))
        rows.append([info["domain"], count, shown, info.get("dtype", "—"), *map(_figure, shares)])
    columns = ["expert", "examples", "classes", "stored as", "base, own domain", "expert, own domain"]
    show_table(columns, rows, f"Experts of {folder}")
    show_quarantine(quarantine)
    say_owners(owners_of(folder, number))


def add(
    folder: Folder,
    expert: ExpertFolder,
    seed: OneSeed = None,
    unverified: Unverified = False,
    force: Force = False,
    admit: Admit = False,
    as_json: AsJson = False,
) -> None:
    """Add an expert that was trained elsewhere on the same base; nothing else is touched or retrained.

    Exit code 1, and nothing is changed, if it was trained on calibration examples of the run, if its statistics make
    the base worse on held-out examples, or if with it the worst router harms more test examples than the risk allows.

    Example: `redx experts add runs/mnist runs/mnist/seed-0/removed/8-9`
    """
    from redx.models.expert import Expert
    from redx.runs import editing

    with _risk_shown(folder, seed, as_json) as (change, risk):
        model = editing.add_expert(folder, expert, seed, unverified, force, _warn, change.update, admit)
        name = Expert.load(expert).name
        _warn_unverified(unverified, name)
    new = list(model.experts[name].new_classes)
    result = {
        "added": name,
        "experts": model.experts.names,
        "new_classes": new,
        "change": change,
        "risk": risk,
        "note": model.routing_note,
    }
    state = "in quarantine" if name in risk.get("quarantine", {}) and not admit else _router_note(model)
    _print_result(as_json, result, f"added {name}{_class_note(new)}; {state}")


def remove(folder: Folder, name: Name, seed: OneSeed = None, as_json: AsJson = False) -> None:
    """Remove an expert; its folder is kept in seed-N/removed, and the router's weight goes to the other experts.

    Example: `redx experts remove runs/mnist 8-9`
    """
    early.check_expert(folder, name, seed)
    from redx.runs import editing

    with _risk_shown(folder, seed, as_json) as (change, risk):
        kept = editing.remove_expert(folder, name, seed, change.update)
    result = {"removed": name, "kept": str(kept), "change": change, "risk": risk}
    _print_result(as_json, result, f"removed {name}; it is kept in {kept}")


def replace(
    folder: Folder,
    name: Name,
    expert: ExpertFolder,
    seed: OneSeed = None,
    unverified: Unverified = False,
    force: Force = False,
    admit: Admit = False,
    as_json: AsJson = False,
) -> None:
    """Replace an expert by another that was trained on the same base; the old one is kept in seed-N/removed.

    The new one is measured as by `redx experts add`, and refused with exit code 1.

    Example: `redx experts replace runs/mnist 8-9 runs/other/seed-0/experts/8-9`
    """
    early.check_expert(folder, name, seed)
    from redx.models.expert import Expert
    from redx.runs import editing

    new = Expert.load(expert).name
    with _risk_shown(folder, seed, as_json) as (change, risk):
        model, kept = editing.replace_expert(folder, name, expert, seed, unverified, force, _warn, change.update, admit)
        _warn_unverified(unverified, new)
    classes = list(model.experts[new].new_classes)
    note = f"replaced {name} by {new}{_class_note(classes)}"
    message = f"{note}; the old one is kept in {kept}; {_router_note(model)}"
    result = {"replaced": name, "by": new, "kept": str(kept), "new_classes": classes, "change": change, "risk": risk}
    result["note"] = model.routing_note
    _print_result(as_json, result, message)


def kit(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="archive to write")] = Path("kit.zip"),
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Write what the owner of a domain needs to train an expert: base, settings, and shared examples as features.

    The archive holds no text, and no calibration, choice or test example.

    Example: `redx experts kit runs/addition --out kit.zip`
    """
    from redx.runs.kit import write_kit

    inside = write_kit(folder, out, seed)
    if as_json:
        return print_json(inside)
    rows = [[name, f"{size:,}"] for name, size in inside["files"].items()]
    show_table(["file", "bytes"], rows, str(out))
    say(
        f"{inside['examples']} shared examples with {inside['features']} features each, {inside['classes']} classes, "
        f"{len(inside['domains'])} domains ({', '.join(inside['domains'][:SHOWN_FLIPS])}), "
        f"base {inside['fingerprint']}"
    )
    for sentence in inside["reveals"]:
        say(f"an owner sees {sentence}")
    if statistics := inside["statistics"]:
        say(
            f"an owner sends back an expert and, without --no-statistics, sums over its examples: "
            f"{statistics['features']:,} features and their products, at most {statistics['bytes']:,} bytes"
        )


def train(
    domain: Annotated[str, typer.Option(help="name of the expert", show_default=False)],
    data: Annotated[
        Path, typer.Option(help="its data: JSONL, CSV, Parquet or .npz", show_default=False, callback=early.table)
    ],
    folder: Annotated[
        Path | None, typer.Argument(help="folder of a finished run", metavar="[RUN]", callback=early.run_folder)
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(help="kit of a run, instead of the run", show_default=False, callback=early.present)
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="with --kit: the backbone on this machine", show_default="the run's")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder to write", show_default="trained/NAME")] = None,
    text: Text = None,
    label: Label = None,
    dtype: Annotated[str, typer.Option(help="precision to store it in: float32, bfloat16 or float16")] = "float32",
    new_classes: Annotated[
        bool, typer.Option("--new-classes", help="accept labels that the base does not know, as classes of this expert")
    ] = False,
    row_hashes: Annotated[
        bool, typer.Option("--row-hashes/--no-row-hashes", help="let the expert carry hashes of its rows")
    ] = True,
    statistics: Annotated[
        bool,
        typer.Option(
            "--statistics/--no-statistics",
            help="let the expert bring sums over its examples, by which the base learns from them",
        ),
    ] = True,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Train one expert alone, on any machine, from its own data and a kit of a run, or the run itself.

    Of the run's folder only config.json and the seed's model.json, base.safetensors and shared.safetensors are read.

    Example: `redx experts train --kit kit.zip --domain dozens --data dozens.jsonl --out dozens`
    """
    from redx.runs import editing
    from redx.runs.kit import read_kit

    if (folder is None) == (kit is None):
        raise RedxError("Give the folder of a run, or a kit of one with --kit.")
    if (backbone is not None and kit is None) or (seed is not None and kit is not None):
        raise RedxError("--backbone goes with --kit, and --seed with the folder of a run; leave it out.")
    source = read_kit(kit, backbone) if kit is not None else folder
    assert source is not None

    target = out or Path("trained") / domain
    columns = {"text": text, "label": label}
    expert = editing.train_expert(
        source,
        domain,
        data,
        target,
        **columns,
        dtype=dtype,
        seed=seed,
        new_classes=new_classes,
        row_hashes=row_hashes,
        statistics=statistics,
    )
    new = list(expert.new_classes)
    result = {"domain": expert.name, "folder": str(target), **expert.info["metrics"], **expert.info["training"]}
    result |= {"held_out": expert.info["metrics"]["examples"], "new_classes": new}
    message = (
        f"trained {expert.name}{_class_note(new)} on {result['examples']} examples and {result['anchors']} anchors, "
        f"with {result['held_out']} held out; "
        f"it is in {target}"
    )
    _print_result(as_json, result, message)


def diff(
    folder: Folder,
    add: Annotated[
        list[Path] | None, typer.Option(help="expert folder to add; repeatable", callback=early.present)
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(help="expert to remove; repeatable")] = None,
    rule: RuleName = None,
    router: Routing = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Show what a change would do, without making it: flips, gain and loss by domain, certificates.

    All of it is measured on choice examples; cut-off and test figures are those of the run as it stands. Removing and
    adding the same name replaces it.

    Example: `redx experts diff runs/mnist --remove 8-9`
    """
    for name in remove or ():
        early.check_expert(folder, name, seed)
    from redx.runs.diff import diff_experts

    comparison = diff_experts(folder, add or [], remove or [], rule=rule, router=router, seed=seed)
    for name in (name for name, owner in comparison["owners"].items() if owner["harmful"]):
        stays = name in comparison["experts"]["after"]
        hint = "`redx experts add` refuses them" if stays else "the base is better without them"
        _warn(f"the statistics of {name} make the base worse; {hint}")
    if as_json:
        return print_json(comparison)
    for change, labels in comparison["classes"].items():
        if labels:
            say(f"classes {change}: {', '.join(labels)}")
    flips, counts = comparison["flips"], (comparison["gained"], comparison["lost"])
    words = "{} of {} answers to choice examples flip: {} gained, {} lost"
    _show_change(comparison, words.format(flips, comparison["count"], *counts))
    rows = [
        [f"ε = {name}", f"{row['before']:.4f}", f"{row['after']:.4f}", str(row["broken"]), str(row["appeared"])]
        for name, row in comparison["certificates"].items()
    ]
    show_table(["certified at", "before", "after", "broken", "appeared"], rows, "Certificates, on choice examples")
    if all(comparison["choice"].values()):
        rows = [
            [side, *(f"{figures[key]:.4f}" for key in ("base", "clean", "worst", "harm"))]
            for side, figures in comparison["choice"].items()
        ]
        title = f"Risk {comparison['choice']['after']['risk']:.4g}, set on the choice examples"
        show_table(["", "base", comparison["rule"], "any router", "harm"], rows, title)
    rows = [
        [str(flip["row"]), flip.get("text", flip["domain"]), *(str(flip[key]) for key in ("label", "before", "after"))]
        for flip in comparison["examples"][:SHOWN_FLIPS]
    ]
    if rows:
        title = f"{len(rows)} of {comparison['flips']} flips"
        show_table(["choice row", "example", "label", "before", "after"], rows, title)
    was, now = (
        {name for name, trial in comparison["quarantine"][side].items() if trial["quarantined"]}
        for side in ("before", "after")
    )
    show_quarantine({name: comparison["quarantine"]["after"][name] for name in sorted(now)})
    for name in sorted((was - now) & set(comparison["experts"]["after"])):
        say(f"{name} leaves quarantine.")
    show_risk(comparison["now"], f"{folder} as it stands, on the test split")
    say("Choose by the choice examples; the change that you make is then calibrated and measured on the test split.")


def train_router(
    folder: Folder,
    domain: Annotated[
        list[str] | None, typer.Option(help="expert whose data the run does not have; repeatable")
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="that expert's data, one for each --domain", callback=early.table)
    ] = None,
    text: Text = None,
    label: Label = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Retrain the router of a run for the experts that it has now; nothing else is trained.

    Example: `redx router train runs/mnist`
    """
    from redx.runs import editing

    more = dict(zip(domain or [], data or [], strict=False))
    if len(domain or []) != len(data or []):
        raise RedxError("Each --domain needs its --data, in the same order.")
    result = editing.retrain_router(folder, more, text=text, label=label, seed=seed)
    _print_result(as_json, result, f"trained the router of {folder} for {', '.join(result['experts'])}")


def _show_change(change: dict[str, Any], title: str) -> None:
    """Print the accuracy by domain before and after a change of experts, and what new owners do to the base."""

    def both(pair: dict[str, float]) -> str:
        return f"{pair['before']:.4f} → {pair['after']:.4f}"

    every = change["accuracy"] | {name: change[name] for name in ("base", "worst")} | {"examples": change["count"]}
    rows = [
        [name, str(one["examples"]), both(one["base"]), both(one), both(one["worst"])]
        for name, one in (*change["domains"].items(), ("all", every))
    ]
    show_table(["domain", "examples", "base", change["rule"], "any router"], rows, title)
    rows = [
        [
            name,
            *(f"{one[key]:.4f}" for key in ("without", "within")),
            *(str(one[key]) for key in ("helped", "harmed")),
            f"{one['p']:.2g}" + " (worse)" * one["harmful"],
        ]
        for name, one in change["owners"].items()
    ]
    if rows:
        count = next(iter(change["owners"].values()))["examples"]
        columns = ["owner", "base without", "base with", "helped", "harmed", "p"]
        show_table(columns, rows, f"Owners' statistics, on {count} held-out examples")


@contextmanager
def _risk_shown(folder: Path, seed: int | None, as_json: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Print what a change of experts did to the choice examples, and what the test split shows of the run now.

    Yields both, to be filled: the first by the change, the second at the end.
    """
    from redx.runs.calibration import owners_of, risk_figures

    change: dict[str, Any] = {}
    risk: dict[str, Any] = {}
    owners = owners_of(folder, seed)
    yield change, risk
    risk |= risk_figures(folder, seed) or {}
    if owners and not risk["owners"]:
        _warn(
            f"the thresholds of the owners of {', '.join(owners)} hold no longer, so the run is calibrated on its own "
            "calibration examples; ask them to export anew, and give the files with `redx calibrate RUN --from`"
        )
    if not as_json:
        if change:
            _show_change(change, f"What the change did, on {change['count']} choice examples")
        show_risk(risk, f"{folder} as it stands now, on the test split")


def _warn(note: str) -> None:
    say(f"warning: {note}", error=True)


def _warn_unverified(unverified: bool, name: str) -> None:
    if unverified:
        say(f"warning: nothing checked that {name} was trained on the base of this run", error=True)


def _print_result(as_json: bool, result: dict[str, Any], message: str) -> None:
    print_json(result) if as_json else say(message)


def _class_note(labels: list[str]) -> str:
    """Return how many classes an expert brings, for a message; nothing where it brings none."""
    shown = ", ".join(labels[:SHOWN_FLIPS]) + (" …" if len(labels) > SHOWN_FLIPS else "")
    return f" with {len(labels)} new class{'es' if len(labels) > 1 else ''} ({shown})" if labels else ""


def _figure(value: Any) -> str:
    return "—" if value is None else f"{value:.4f}"


def _router_note(model: Model) -> str:
    return model.routing_note or "the router has a gate for it"
