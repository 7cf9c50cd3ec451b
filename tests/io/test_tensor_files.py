"""Tensor files of others: hostile and damaged ones get one sentence, and nothing in them is run."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save, save_file

from helpers.checkpoints import LAYERS
from helpers.commands import Ask, refused
from redx.io import tensor_files
from redx.runs import inspection


class Trap:
    """What a hostile pickle does when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def zipped(path: Path, members: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def bad_files(folder: Path, trap: Path) -> dict[Path, str]:
    """Hostile or damaged files, each with a word of its refusal."""
    good = save({"head.weight": torch.ones(100, 100)})
    files: dict[str, tuple[bytes, str]] = {
        "short.safetensors": (good[: len(good) // 2], "truncated"),
        "head.safetensors": (good[:20], "truncated"),
        "empty.safetensors": (b"", "truncated"),
        "long.safetensors": (b"\xff" * 7 + b"\x7f{" + good[9:], "truncated"),
        "bare.pt": (pickle.dumps(Trap(trap)), "pickle"),
        "text.pt": (pickle.dumps(Trap(trap), protocol=0), "pickle"),
        "renamed.safetensors": (pickle.dumps(Trap(trap)), "safetensors"),
    }
    found = {}
    for name, (content, word) in files.items():
        (folder / name).write_bytes(content)
        found[folder / name] = word
    torch.save({"head.weight": torch.ones(2, 2), "trap": Trap(trap)}, folder / "trap.pt")
    torch.save({"head.weight": torch.ones(2, 2)}, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"head.weight": torch.ones(1).expand(10**9)}, folder / "spread.pt")
    big = torch.ones(1000)
    torch.save({f"head.{index}": big for index in range(100)}, folder / "many.pt")
    torch.save({"../x": torch.ones(2, 2)}, folder / "named.pt")
    torch.save({"head.\x1b[2J": torch.ones(2, 2)}, folder / "signs.pt")
    torch.save({"head": torch.ones(2, 2).to_sparse()}, folder / "sparse.pt")
    torch.save({"head": {1: torch.ones(1)}}, folder / "keys.pt")
    torch.save([torch.ones(1)], folder / "list.pt")
    torch.save({"epoch": 3}, folder / "nothing.pt")
    save_file({"../../x": torch.ones(1)}, folder / "named.safetensors")
    whole = io.BytesIO()
    torch.save({"head.weight": torch.ones(1000, 10)}, whole)
    (folder / "cut.pt").write_bytes(whole.getvalue()[:20000])
    with zipfile.ZipFile(whole) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    zipped(folder / "bomb.pt", {**members, "archive/data/1": bytes(50 * 2**20)}, zipfile.ZIP_DEFLATED)
    zipped(folder / "path.pt", {**members, "../../x": b"x"})
    zipped(folder / "root.pt", {**members, "/etc/x": b"x"})
    zipped(folder / "other.pt", {"readme.txt": b"x"})
    zipped(folder / "large.pt", {"archive/data.pkl": bytes(tensor_files.PROGRAM_BYTES + 1)})
    words = {"trap": "posix.mkdir", "legacy": "pickle", "spread": "unpacks to more", "many": "unpacks to more"}
    words |= {"named": "path", "signs": "non-printable character", "sparse": "no plain tensor", "keys": "does not know"}
    words |= {"list": "does not know", "nothing": "no tensors", "cut": "truncated", "bomb": "zip bomb"}
    words |= {"path": "path", "root": "path", "other": "torch.save", "large": "more than a list"}
    found |= {folder / f"{name}.pt": word for name, word in words.items()}
    return found | {folder / "named.safetensors": "path"}


def test_bad_files_are_refused_in_one_sentence_and_nothing_is_run(tmp_path: Path, ask: Ask) -> None:
    trap, folder = tmp_path / "trapped", tmp_path / "bad"
    folder.mkdir()
    for path, word in bad_files(folder, trap).items():
        refused(ask("inspect", path), path.name, word)
        refused(ask("shrink", path, LAYERS, 0), path.name, word)
        refused(ask("evaluate", path), path.name, word)
        assert not trap.exists(), path
    assert not list(folder.glob("*.slim*"))
    # in a folder they stand with what they are refused for
    found = inspection.inspect_path(folder)
    assert all(file.kind.startswith("refused: ") for file in found.files)


def test_an_archive_that_overlaps_itself_is_refused(tmp_path: Path, ask: Ask) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 5000)
        first = archive.infolist()[0]
        for index in range(100):  # many names for the same bytes
            again = zipfile.ZipInfo(f"archive/data/{index}")
            again.header_offset, again.file_size, again.compress_size = first.header_offset, 5000, 5000
            again.CRC = first.CRC
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
        archive._didModify = True  # pyright: ignore[reportAttributeAccessIssue]
    (tmp_path / "overlap.pt").write_bytes(whole.getvalue())
    refused(ask("inspect", tmp_path / "overlap.pt"), "zip bomb")
