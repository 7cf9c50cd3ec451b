"""Manifests: the SHA-256 and the size of every file of a folder, and the comparison before a file is read.

A folder that redx writes (the folder of a seed, the run above it, a saved model) has a `manifest.json`. Every reader
goes through `redx.io.reading.open_file`, which calls `check_file`: a file that a manifest above it lists is compared
with it before its content is used. That notices damage and careless edits. It does not stop a person, who can write the
manifest too; a signature does (`redx.io.signing`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from redx.errors import RedxError

MANIFEST, SIGNATURE = "manifest.json", "signature.json"
FORMAT = 1
LIMIT = 2**26  # bytes of the largest manifest: 500,000 files
DEPTH = 3  # folders above a file that may hold its manifest: NAME, experts, seed-N
SETTLED = 2 * 10**9  # nanoseconds after which the times of a file tell it from a later state
KEPT = 2**16  # hashes that a process keeps
EXEMPT = {MANIFEST, "run.log", "redx.toml"}  # files that no manifest lists; nor does one list signatures
EXEMPT_FOLDERS = {"track"}
UNCHECKED = {"stages.json", "state.json"}  # what was done and how often: no answer and no figure follows from them
SEED = re.compile(r"seed-(0|[1-9]\d{0,17})")  # folders with a manifest of their own
# files that redx would read if it found them
READ = re.compile(r"[a-z][a-z0-9_-]*\.(json|jsonl|safetensors)|(experts|shared-only|adapters|parts)/.+")
DIGEST = re.compile(r"[0-9a-f]{64}")


class Entry(NamedTuple):
    """What a manifest says of one file."""

    sha256: str
    size: int


Entries = dict[str, Entry]


class Difference(NamedTuple):
    """A file that is not as its manifest says.

    Attributes
    ----------
    file
        Its path in the folder.
    problem
        `changed`, `missing`, `added`, or what is wrong with the manifest itself.
    """

    file: str
    problem: str


@dataclass(frozen=True)
class _Found:
    """A manifest above a file, and the path of the file in its folder."""

    folder: str
    entries: Entries
    relative: str


_manifests: dict[tuple[int, ...], Entries | None] = {}  # by the state of the file
_hashes: dict[tuple[int, ...], str] = {}


class ChangedFileError(RedxError):
    """A file is not as the manifest above it says."""


# --- writing


def format_manifest(entries: Mapping[str, Entry]) -> bytes:
    """Return the content of a manifest.json."""
    files = {name: entry._asdict() for name, entry in sorted(entries.items())}
    return (json.dumps({"redx_manifest": FORMAT, "files": files}, indent=1) + "\n").encode()


def list_folder(folder: Path) -> Entries:
    """Return the entries of all files of a folder that belong in its manifest."""
    return {relative: hash_file(folder / relative) for relative in list_files(folder)}


def list_files(folder: Path) -> Iterator[str]:
    """Yield the paths of the files of a folder, without hidden ones and those of folders with their own manifest."""
    waiting = [""]
    while waiting:
        above = waiting.pop()
        try:
            with os.scandir(folder / above) as found:
                listing = sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        for entry in listing:
            relative = f"{above}{entry.name}"
            if entry.name[0] == "." or entry.name == SIGNATURE or relative in EXEMPT:
                continue
            if entry.is_dir(follow_symlinks=False):
                if not SEED.fullmatch(relative) and relative not in EXEMPT_FOLDERS:
                    waiting.append(f"{relative}/")
            else:
                yield relative


def hash_file(path: Path) -> Entry:
    """Return the entry of a file, which is read anew only if it has changed since."""
    try:
        with open(path, "rb") as file:
            return _hash(file)
    except OSError as error:
        raise RedxError(f"{path} cannot be read ({error.strerror}); fix its permissions.") from error


def _hash(file: BinaryIO) -> Entry:
    status = os.fstat(file.fileno())
    key = _state(status)
    if key not in _hashes:
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        file.seek(0)
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < SETTLED:
            return Entry(digest, status.st_size)  # a later write could have the same time
        if len(_hashes) >= KEPT:
            _hashes.clear()
        _hashes[key] = digest
    return Entry(_hashes[key], status.st_size)


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes whenever a file is written: the time of its last change cannot be set by a program."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


# --- reading


def read_manifest(folder: Path) -> Entries | None:
    """Return the entries of a folder's manifest; None where it has none.

    Raises
    ------
    RedxError
        If the file is there, but is no manifest of redx.
    """
    path = os.path.join(folder, MANIFEST)
    entries = _read(path)
    if entries is None and os.path.lexists(path) and not os.path.islink(path):  # the hub's cache is made of links
        raise RedxError(f"{path} is damaged or no manifest of redx; restore it from a copy.")
    return entries


def require_manifest(folder: Path, marker: str) -> None:
    """Refuse a folder without a manifest that redx has written one for, which the file `marker` tells."""
    is_link = os.path.islink(os.path.join(folder, MANIFEST))
    if read_manifest(folder) is None and not is_link and os.path.lexists(os.path.join(folder, marker)):
        raise RedxError(
            f"{folder} has no {MANIFEST}, so its files cannot be verified; restore it from a copy, or make the folder "
            "anew elsewhere."
        )


def _read(path: str) -> Entries | None:
    """Return the entries of a manifest; None where there is none, or it is not one of redx."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > LIMIT:
                return None
            key = _state(status)
            if key in _manifests:
                return _manifests[key]
            entries = _parse(file.read())
    except (OSError, ValueError):
        return None
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED:
        if len(_manifests) >= 256:
            _manifests.clear()
        _manifests[key] = entries
    return entries


def _parse(content: bytes) -> Entries | None:
    from redx.io.reading import parse_json

    try:
        value: Any = parse_json(content.decode())
        if value["redx_manifest"] != FORMAT or set(value) != {"redx_manifest", "files"}:
            return None
        entries = {name: Entry(**entry) for name, entry in value["files"].items()}
        for name, entry in entries.items():
            if not DIGEST.fullmatch(entry.sha256) or type(entry.size) is not int or entry.size < 0:
                return None
            if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
                return None  # it would lead out of the folder
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return entries if format_manifest(entries) == content else None  # no key twice, and nothing else in it


def is_complete(entries: Mapping[str, Entry]) -> bool:
    """Return whether a manifest is that of a finished seed or run, or of a saved model: no file comes by itself."""
    return any(name in entries for name in ("summary.json", "README.md")) or any(
        name.startswith("parts/") for name in entries
    )


def is_expected(path: Path) -> bool:
    """Return whether there is a file, or a manifest lists it: whoever reads it then notices that it is missing."""
    return os.path.exists(path) or any(one.relative in one.entries for one in _manifests_above(path))


def _manifests_above(path: Path | str) -> Iterator[_Found]:
    """Yield the manifests that a file may be listed in."""
    folder, relative = os.path.split(os.path.abspath(path))
    for _ in range(DEPTH):
        if "/" in relative and SEED.fullmatch(relative.partition("/")[0]):
            return  # the folder of a seed has its own
        entries = _read(os.path.join(folder, MANIFEST))
        if entries is not None:
            yield _Found(folder, entries, relative)
        folder, name = os.path.split(folder)
        relative = f"{name}/{relative}"


def check_file(path: Path | str, file: BinaryIO) -> None:
    """Compare an open file with the manifests above it.

    Parameters
    ----------
    path
        The file.
    file
        The same file, open in binary mode; afterwards it is at its beginning.

    Raises
    ------
    ChangedFileError
        If a manifest lists the file with another hash, or does not list it although redx had finished the folder.
    """
    for found in _manifests_above(path):
        relative = found.relative
        if os.path.basename(relative) == SIGNATURE:
            continue
        if relative.startswith(".") or "/." in relative or relative in EXEMPT | UNCHECKED:
            continue
        entry = found.entries.get(relative)
        if entry is None:
            if not is_complete(found.entries) or not READ.fullmatch(relative):
                continue
            if any(relative in pending for pending in _pending(found.folder)):
                continue
            raise ChangedFileError(
                f"{path} was added after redx had written its folder; move it away; {_where(found.folder)}."
            )
        same = os.fstat(file.fileno()).st_size == entry.size and _hash(file) == entry
        if not same and _hash(file) not in [pending.get(relative) for pending in _pending(found.folder)]:
            raise ChangedFileError(
                f"{path} is not as redx wrote it: its SHA-256 is not that of {MANIFEST}; restore it from a copy, or "
                f"make the folder anew elsewhere; {_where(found.folder)}."
            )


def _where(folder: str) -> str:
    above, name = os.path.split(folder)
    return f"`redx verify {above if SEED.fullmatch(name) else folder}` shows every file that differs"


def _pending(folder: str) -> Iterator[Entries]:
    """Yield the manifests of changes that are committed and not yet completed; their files count as written."""
    places = [(folder, "new")]
    if not SEED.fullmatch(os.path.basename(folder)):
        try:
            with os.scandir(folder) as found:
                places += [(entry.path, "run") for entry in found if SEED.fullmatch(entry.name)]
        except OSError:
            pass
    for place, kind in places:
        if os.path.lexists(os.path.join(place, ".journal.json")):
            entries = _read(os.path.join(place, ".redx-edit", kind, MANIFEST))
            if entries is not None:
                yield entries


# --- comparing


def compare(folder: Path) -> list[Difference]:
    """Return the files of a folder that are not as its manifest says; all of them are read."""
    try:
        entries = read_manifest(folder)
    except RedxError:
        return [Difference(MANIFEST, "damaged")]
    if entries is None:
        return [Difference(MANIFEST, "missing")]
    return compare_entries(folder, entries)


def compare_entries(folder: Path, entries: Mapping[str, Entry]) -> list[Difference]:
    """Return the files of a folder that differ from these entries."""
    differences, present = [], set(list_files(folder))
    for name, entry in entries.items():
        if name not in present:
            differences.append(Difference(name, "missing"))
        elif not os.path.isfile(folder / name) or hash_file(folder / name) != entry:
            differences.append(Difference(name, "changed"))
    differences += [Difference(name, "added") for name in present - set(entries)]
    return sorted(differences)
