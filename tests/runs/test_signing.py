"""Signatures of runs and experts: made with a private key, verified with the public key of a person."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path

import pytest

import redx
from helpers.commands import Ask, refused, succeeded
from helpers.tampering import scale_tensors
from redx.io.manifest import MANIFEST, SIGNATURE, format_manifest, list_folder
from redx.runs.integrity import verify_folder


@pytest.fixture
def keys(tmp_path: Path, ask: Ask) -> tuple[Path, Path]:
    """A private and a public key."""
    private = tmp_path / "me.key"
    succeeded(ask("sign", "--new-key", private))
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    return private, Path(f"{private}.pub")


@pytest.mark.slow
def test_a_signed_run(clouds_copy: Path, keys: tuple[Path, Path], ask: Ask) -> None:
    private, public = keys
    refused(ask("verify", clouds_copy, "--key", public), "has no signature.json")
    succeeded(ask("sign", clouds_copy, "--key", private))
    assert "signed by" in succeeded(ask("verify", clouds_copy, "--key", public))
    assert verify_folder(clouds_copy) == []
    seed = clouds_copy / "seed-0"
    scale_tensors(seed / "base.safetensors", 2)
    (seed / MANIFEST).write_bytes(format_manifest(list_folder(seed)))  # as a person would who hides a change
    code, out, _ = ask("verify", clouds_copy, "--key", public, "--json")
    assert code == 1
    assert [one["file"] for one in json.loads(out)["files"]] == ["seed-0/base.safetensors", f"seed-0/{MANIFEST}"]
    refused(ask("sign", clouds_copy, "--key", private), "is not as redx wrote it")


@pytest.mark.slow
def test_a_signed_expert(clouds: redx.Run, keys: tuple[Path, Path], tmp_path: Path, ask: Ask) -> None:
    private, public = keys
    expert = Path(shutil.copytree(clouds.folder / "seed-0" / "experts" / "0", tmp_path / "expert"))
    succeeded(ask("sign", expert, "--key", private))
    succeeded(ask("verify", expert, "--key", public))
    scale_tensors(expert / "expert.safetensors", 30)
    assert ask("verify", expert, "--key", public)[0] == 1
    content = json.loads((expert / SIGNATURE).read_text())
    content["files"] = {name: entry._asdict() for name, entry in list_folder(expert).items()}
    (expert / SIGNATURE).write_text(json.dumps(content))
    refused(ask("verify", expert, "--key", public), "is not a signature by", "its content was changed")
    other = tmp_path / "other.key"
    succeeded(ask("sign", "--new-key", other))
    succeeded(ask("sign", expert, "--key", other))
    refused(ask("verify", expert, "--key", public), "it names the key")


def test_keys_that_cannot_be_used(keys: tuple[Path, Path], tmp_path: Path, ask: Ask) -> None:
    private, public = keys
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "expert.json").write_text("{}")
    refused(ask("sign", "--new-key", private), "never overwritten")
    refused(ask("sign", tmp_path / "folder", "--key", public), "is no private key of redx")
    succeeded(ask("sign", tmp_path / "folder", "--key", private))
    refused(ask("verify", tmp_path / "folder", "--key", private), "is no public key of redx")
    refused(ask("sign"), "--new-key")


def test_without_the_package(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    refused(ask("sign", "--new-key", tmp_path / "me.key"), "pip install 'redx[sign]'")
    assert not (tmp_path / "me.key").exists()
