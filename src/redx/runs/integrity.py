"""What belongs together in a run: parts and the modules that made them, figures and the state that they describe.

A manifest tells whether a file is as it was written (`redx.io.manifest`). Here is what ties files to one another: parts
name the modules that they were computed with, and summary.json names the state of every seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from redx.errors import RedxError
from redx.io.folders import check_links
from redx.io.manifest import (
    MANIFEST,
    SEED,
    Difference,
    Entries,
    Entry,
    compare,
    hash_file,
    is_expected,
    list_folder,
    read_manifest,
)
from redx.io.reading import exists, is_folder, open_file, read_json
from redx.io.signing import read_signature, sign

# files that say nothing about what a model answers
RECORDS = ("parts/", "removed/", "stages.json", "state.json")
CALIBRATION = ("risk.json", "thresholds.safetensors")  # may change while the parts stay
STATES = "states"  # the key of summary.json
LIMIT = 2**40  # bytes of the largest file that is compared


class _Seeds(BaseModel):
    """The seeds that config.json names."""

    seeds: list[int] = []


def module_hashes(folder: Path, entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return a hash of each module of a seed: the settings of the run, the base, all experts, the router and so on.

    Parameters
    ----------
    folder
        The folder of the seed.
    entries
        What its manifest lists.
    """
    groups: dict[str, list[str]] = {}
    for name, entry in sorted(entries.items()):
        if not name.startswith(RECORDS) and name not in CALIBRATION:
            kind = "experts" if "/" in name else name.partition(".")[0]
            groups.setdefault(kind, []).append(f"{name} {entry.sha256}")
    config = folder.parent / "config.json"
    if exists(config):
        settings = {name: value for name, value in read_json(config, dict).items() if name != "seeds"}
        groups["config"] = [json.dumps(settings, sort_keys=True)]
    return {kind: _digest(lines) for kind, lines in sorted(groups.items())}


def state_hash(folder: Path, entries: Mapping[str, Entry]) -> str:
    """Return a hash of everything that the figures of a seed follow from: its modules and its calibration."""
    modules = [f"{kind} {digest}" for kind, digest in module_hashes(folder, entries).items()]
    return _digest([*modules, *(f"{name} {entries[name].sha256}" for name in CALIBRATION if name in entries)])


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def check_modules(folder: Path, named: Mapping[str, str]) -> None:
    """Refuse parts whose modules have changed since, on disk or by another state of the run.

    Parameters
    ----------
    folder
        The folder of the seed.
    named
        What the parts name as their modules; nothing where they name none.

    Raises
    ------
    RedxError
        If a file of a module is not as the manifest says, or the parts were made with another module.
    """
    entries = read_manifest(folder)
    if entries is None:
        return
    for name in entries:
        if not name.startswith(RECORDS):
            with open_file(folder / name, LIMIT):
                pass  # opening it compares it
    if named and (other := _differing(named, module_hashes(folder, entries))):
        raise RedxError(
            f"The parts of {folder} were made with another {other[0]}; repeat the `redx run`, which computes them anew."
        )


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def check_states(run: Path, summary: Mapping[str, Any]) -> None:
    """Refuse a summary that is missing, or that describes another state of a seed than the run has now."""
    if not summary and is_expected(run / "summary.json"):
        raise RedxError(f"There is no {run / 'summary.json'}; repeat the `redx run`, which computes it anew.")
    for seed in _stale_seeds(run, summary):
        raise RedxError(
            f"{run / 'summary.json'} describes another state of seed {seed} than the run has now; repeat its "
            "`redx run`, which computes summary and report anew."
        )


def _stale_seeds(run: Path, summary: Mapping[str, Any]) -> list[str]:
    states: Any = summary.get(STATES, {})
    if not isinstance(states, dict) or not all(SEED.fullmatch(f"seed-{seed}") for seed in states):
        raise RedxError(f"{run / 'summary.json'} does not name the states of seeds; repeat the `redx run`.")
    return [seed for seed, state in states.items() if state != _state_now(run / f"seed-{seed}")]


def _state_now(folder: Path) -> str | None:
    entries = read_manifest(folder)
    return None if entries is None else state_hash(folder, entries)


# --- the whole folder


def verify_folder(folder: Path) -> list[Difference]:
    """Return everything in a run, or in a saved model, that is not as redx wrote it.

    Parameters
    ----------
    folder
        A run folder, or a folder that `save_pretrained` wrote.

    Returns
    -------
    list of Difference
        Files with what is wrong with each; an empty list if all is well.

    Raises
    ------
    RedxError
        If there is no folder, or nothing in it tells that redx wrote it.
    """
    if not is_folder(folder):
        raise RedxError(f"There is no folder {folder}; give a run, or a model that save_pretrained wrote.")
    seeds = sorted(path.name for path in folder.iterdir() if SEED.fullmatch(path.name))
    if seeds:  # a run; a saved model may lie in the hub's cache, which is made of links
        check_links(folder)
    differences = compare(folder)
    if differences == [Difference(MANIFEST, "missing")] and not seeds and not exists(folder / "config.json"):
        raise RedxError(f"{folder} has no {MANIFEST}; give a run, or a model that save_pretrained wrote.")
    for seed in seeds:
        differences += [Difference(f"{seed}/{file}", problem) for file, problem in compare(folder / seed)]
    if not differences:
        differences += _verify_states(folder, seeds)
    return differences


def _verify_states(folder: Path, seeds: list[str]) -> list[Difference]:
    """Return what does not belong together although every file is as it was written."""
    from redx.runs.parts import named_modules

    differences = []
    config: Any = read_json(folder / "config.json", _Seeds, misfit="does not name its seeds") if seeds else _Seeds()
    listed = [f"seed-{seed}" for seed in config.seeds]
    differences += [Difference(f"{seed}/", "added") for seed in seeds if seed not in listed]
    for seed in (seed for seed in seeds if seed in listed):
        named, entries = named_modules(folder / seed), read_manifest(folder / seed) or {}
        if named and (other := _differing(named, module_hashes(folder / seed, entries))):
            differences.append(Difference(f"{seed}/parts/", f"made with another {other[0]}"))
    if exists(folder / "summary.json"):
        summary = read_json(folder / "summary.json", dict)
        for seed in _stale_seeds(folder, summary):
            missing = not exists(folder / f"seed-{seed}")
            name, problem = (f"seed-{seed}/", "missing") if missing else ("summary.json", f"of another seed-{seed}")
            differences.append(Difference(name, problem))
    return differences


# --- signatures


def sign_folder(folder: Path, key: Path) -> int:
    """Sign all files of a run, a saved model or an expert; return how many they are.

    Parameters
    ----------
    folder
        The folder. One with a manifest is verified first.
    key
        File of the private key.

    Raises
    ------
    RedxError
        If a file is not as redx wrote it, or the key cannot be used.
    """
    if not is_folder(folder):
        raise RedxError(f"There is no folder {folder}; give a run, a saved model or an expert.")
    check_links(folder)
    if not exists(folder / "expert.json") and (differences := verify_folder(folder)):
        raise RedxError(
            f"{folder / differences[0].file} is not as redx wrote it ({differences[0].problem}), so the folder is not "
            f"signed; `redx verify {folder}` shows every file that differs."
        )
    entries = _all_entries(folder)
    sign(folder, entries, key)
    return len(entries)


def verify_signature(folder: Path, key: Path) -> list[Difference]:
    """Return the files of a folder that are not as a person signed them.

    Parameters
    ----------
    folder
        A run, a saved model or an expert.
    key
        File of the person's public key.

    Raises
    ------
    RedxError
        If the folder is not signed by this key.
    """
    if not is_folder(folder):
        raise RedxError(f"There is no folder {folder}; give a run, a saved model or an expert.")
    check_links(folder)
    signed, found = read_signature(folder, key), _all_entries(folder)
    problems = {
        name: "missing" if name not in found else "changed" if name in signed else "added"
        for name in {*signed, *found}
        if signed.get(name) != found.get(name)
    }
    return [Difference(name, problem) for name, problem in sorted(problems.items())]


def _all_entries(folder: Path) -> Entries:
    """Return the entries of all files of a folder, manifests and the folders of seeds included."""
    entries: Entries = {}
    for place in (folder, *(path for path in folder.iterdir() if SEED.fullmatch(path.name))):
        prefix = "" if place == folder else f"{place.name}/"
        entries |= {f"{prefix}{name}": entry for name, entry in list_folder(place).items()}
        if exists(place / MANIFEST):
            entries[f"{prefix}{MANIFEST}"] = hash_file(place / MANIFEST)
    return entries
