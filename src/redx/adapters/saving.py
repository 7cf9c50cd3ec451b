"""A composed language model as a folder of its own: adapters, routers, and a model card with the certified figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redx.adapters.checking import CONFIG
from redx.adapters.library import HEADS, add_adapter, read_heads, read_library
from redx.errors import RedxError
from redx.io.files import write_bytes
from redx.io.reading import check_path, exists, is_file, is_folder, read_json

if TYPE_CHECKING:
    from redx.adapters.composed import ComposedLM

TAGS = ["peft", "lora", "mixture-of-experts", "certified-robustness"]
SHOWN = ("base", "own adapter", "router", "keys", "uniform", "wrong adapter", "any router")


def save_composed(composed: ComposedLM, folder: Path) -> Path:
    """Write a composed model to a new folder, and return the folder.

    Parameters
    ----------
    composed
        A model whose adapters come from a run folder or from a folder that was saved before.
    folder
        The folder to write; it must not exist, or be empty.
    """
    check_path(folder)
    if exists(folder) and (not is_folder(folder) or any(folder.iterdir())):
        raise RedxError(f"{folder} exists and is not empty; choose another folder.")
    if composed.run is None:
        raise RedxError(
            "This model was not read from a folder; add its adapters with `redx adapters add RUN FOLDER` and read that."
        )
    library = read_library(composed.run)
    if missing := [name for name in composed.names if name not in library.names]:
        raise RedxError(f"The adapter {missing[0]!r} is not in {composed.run}; add it with `redx adapters add`.")
    for name in composed.names:
        kinds = {kind: read_heads(composed.run, [name], kind).get(name) for kind in HEADS}
        heads = {kind: head for kind, head in kinds.items() if head is not None}
        add_adapter(folder, composed.run / "adapters" / name, composed.base, name, heads)
    if not composed.names:
        raise RedxError(f"There are no adapters in {composed.run}; add one with `redx adapters add`.")
    write_bytes(folder / "README.md", model_card(folder, _figures(composed)).encode())
    return folder


def _figures(composed: ComposedLM) -> dict[str, Any]:
    """Return the summary of the run, if it is that of exactly these adapters."""
    assert composed.run is not None
    path = composed.run / "summary.json"
    if not is_file(path):
        return {}
    summary = read_json(path, dict)
    hashes = {entry.name: entry.hash for entry in read_library(composed.run).adapters if entry.name in composed.names}
    return summary if summary.get("adapters") == hashes else {}


def model_card(folder: Path, figures: dict[str, Any]) -> str:
    """Return the README.md of a saved model: a YAML header for the Hugging Face Hub, and Markdown.

    Parameters
    ----------
    folder
        A folder with library.json.
    figures
        The summary of the run, or an empty dict for adapters that were not evaluated.
    """
    from huggingface_hub import ModelCardData

    library = read_library(folder)
    header = ModelCardData(library_name="redx", tags=TAGS).to_yaml()
    lines = [
        "---",
        header,
        "---",
        "",
        f"# {_cell(library.base)} with {len(library.adapters)} composed adapters",
        "",
        "Next-token scores are `base + Σ w_k (adapter_k - base)`. The base is not in this folder: it is",
        f"{_cell(library.base)}, with the fingerprint `{library.fingerprint}`.",
        "",
        "```python",
        "from redx.adapters.composed import ComposedLM",
        "",
        'composed = ComposedLM.from_pretrained("FOLDER")',
        'print(composed.generate("Once upon a time").text)',
        "```",
        "",
        "| adapter | method | rank | parameters | modules | hash |",
        "|---|---|---:|---:|---|---|",
    ]
    for entry in library.adapters:
        cells = [entry.name, entry.method, entry.rank or "—", entry.parameters, ", ".join(entry.modules), entry.hash]
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    lines += ["", f"Every adapter is a folder of peft (`adapters/NAME/{CONFIG}`).", ""]
    lines += _evaluation(figures) if figures else ["These adapters were not evaluated together.", ""]
    return "\n".join(lines)


def _evaluation(figures: dict[str, Any]) -> list[str]:
    ways, risk = figures["ways"], figures["risk"]
    lines = ["| mean over domains | perplexity | next-token accuracy |", "|---|---:|---:|"]
    for way in (way for way in SHOWN if way in ways):
        lines.append(f"| {way} | {ways[way]['perplexity']['mean']:.3f} | {ways[way]['accuracy']['mean']:.4f} |")
    certified = figures["certified"]
    lines += [
        "",
        f"Certified next-token accuracy under any router: {certified['certified']['1']:.4f} without a cut-off, and "
        f"{certified['certified at risk']['1']:.4f} with the cut-off for a risk of {risk['risk']}, calibrated on "
        f"{risk['documents']} documents. Test documents: {sum(figures['documents'].values())}.",
        "",
    ]
    return lines


def _cell(value: Any) -> str:
    """Return a value as the text of a Markdown table, where no character of a name has a meaning of its own."""
    return re.sub(r"[\\|*`\[\]]", r"\\\g<0>", " ".join(str(value).split())).replace("<", "&lt;")
