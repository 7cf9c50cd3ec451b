"""Inspect files without running anything in them: safetensors, `.pt`, arrays, JSON and folders."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redx.errors import RedxError
from redx.io.array_files import array_header
from redx.io.reading import parse_json, read_json
from redx.io.tensor_files import CHECKPOINT_KEY, TensorEntry, file_form, open_tensors

THRESHOLDS = {"simplex", "box", "groups", "mistakes", "domains", "class_domains", "domain_head"}  # of calibration
JSONS = {  # kinds of JSON files by keys that they all have
    "settings of a run": {"task", "banks", "seeds"},
    "summary of a run": {"schema", "rules"},
    "calibration of a model": {"risk", "score", "cutoffs"},
    "thresholds of the owner of a domain": {"base", "model", "experts", "domains"},
    "description of a model": {"domains", "belongs"},
    "description of an expert": {"domain", "banks"},
    "library of adapters": {"base", "fingerprint", "adapters"},
    "description of a feature cache": {"fingerprint", "pooling"},
    "settings of a language model": {"model_type"},
}


@dataclass(frozen=True)
class Contents:
    """What a file or folder is, and what it holds.

    Attributes
    ----------
    path, kind, bytes
        The file, what kind of file it is, and its size.
    entries
        Headers of its tensors.
    about
        Its metadata, or the content of a JSON file.
    files
        The files of a folder.
    """

    path: Path
    kind: str
    bytes: int
    entries: list[TensorEntry] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    files: list[Contents] = field(default_factory=list)

    @property
    def numbers(self) -> int:
        """How many values all tensors hold."""
        return sum(entry.numbers for entry in self.entries) + sum(file.numbers for file in self.files)

    @property
    def tensors(self) -> int:
        """How many tensors there are."""
        return len(self.entries) + sum(file.tensors for file in self.files)


def inspect_path(path: Path) -> Contents:
    """Return what a file or folder holds, from headers alone where the format has them.

    Parameters
    ----------
    path
        Any file, or a folder.
    """
    form = file_form(path)
    if form == "folder":
        return _inspect_folder(path)
    size = path.stat().st_size
    if form in ("safetensors", "zip"):
        with open_tensors(path) as source:
            entries, about = list(source.entries.values()), dict(source.about)
            about |= {"left out": source.left_out} if source.left_out else {}
            if form == "zip":
                return Contents(path, "state dict (.pt)", size, entries, about)
            for key, value in about.items():
                about[key] = _parsed(value)
            return Contents(path, _file_kind(set(source.entries), about), size, entries, about)
    if form == "array":
        return Contents(path, "array of features", size, [_array_entry(path)])
    if path.suffix == ".jsonl" or form == "unknown":
        return Contents(path, "lines of JSON" if path.suffix == ".jsonl" else "unknown to redx", size)
    advice = "take it anew from where it came"
    content = read_json(path, missing=advice, advice=advice, depth=100)
    kinds = (kind for kind, keys in JSONS.items() if isinstance(content, dict) and keys <= set(content))
    about = content if isinstance(content, dict) else {"list": len(content)}
    return Contents(path, next(kinds, "JSON"), size, about=about)


def _file_kind(names: set[str], about: dict[str, Any]) -> str:
    """Return which file of redx this is, by the names of its tensors."""
    info = about.get(CHECKPOINT_KEY)
    if isinstance(info, dict):
        return f"checkpoint, {info.get('kind', 'unknown')}"
    starts = {re.split(r"[./]", name)[0] for name in names}
    plain = {name for name in names if not name.startswith("losses.")}
    if plain - {"confidences", "groups", "named"} == {"base", "residuals", "gates", "labels", "domains"}:
        return "parts"
    if {"simplex", "box"} <= names and names <= THRESHOLDS | {name for name in names if ":" in name}:
        return "thresholds of calibration examples"
    if {"classifier.weight", "standardise.mean"} <= names:
        return "base"
    if {"train.inputs", "validation.inputs", "test.inputs"} <= names:
        return "features of a run"
    if {"mean", "deviation"} <= names and starts <= {"mean", "deviation", "layers"}:
        return "router"
    if starts == {"pooled"}:
        return "pooled heads"
    if starts and starts <= {"residual", "standalone", "ownership"}:
        return "expert"
    if "vocabulary" in names or any(".lora_" in name or name.startswith("lora") for name in names):
        return "decomposer"
    if {"router.mean", "router.deviation"} <= names:
        return "residual experts and router after stage 4"
    if any(re.search(r"(^|\.)(layers?|h)\.\d+\.", name) for name in names):
        return "language model"
    return "tensors"


def _parsed(value: str) -> Any:
    try:
        return parse_json(value)
    except (ValueError, RecursionError):
        return value


def _array_entry(path: Path) -> TensorEntry:
    header = array_header(path)
    return TensorEntry(path.stem, header.shape, str(header.dtype), header.bytes)


def _inspect_folder(folder: Path) -> Contents:
    """Return a folder with its files; a file that is refused is listed with the reason."""
    files = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_symlink() or not path.is_file() or hidden:
            continue
        try:
            files.append(inspect_path(path))
        except RedxError as error:
            files.append(Contents(path, f"refused: {error}", path.stat().st_size))
    names = {str(file.path.relative_to(folder)) for file in files}
    kinds = {file.kind for file in files if file.path.parent == folder}
    if "settings of a run" in kinds:
        kind = "run"
    elif "expert.json" in names:
        kind = "expert"
    elif {"model.json", "base.safetensors"} <= names:
        kind = "one seed of a run"
    elif any(name.endswith(".index.npy") for name in names):
        kind = "feature cache"
    else:
        kind = "language model" if "settings of a language model" in kinds else "folder"
    return Contents(folder, kind, sum(file.bytes for file in files), files=files)
