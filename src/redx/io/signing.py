"""Signatures of folders: who made the files, by ed25519 keys of the package `cryptography`.

FOLDER/signature.json holds the hashes of all files, their signature, and the public key. A manifest can be written by
everybody who can write the folder; a signature only by whoever has the private key. What counts is the public key that
the reader has from elsewhere, never the one in the file.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redx.errors import RedxError
from redx.io.files import write_bytes, write_json
from redx.io.manifest import SIGNATURE, Entries, Entry
from redx.io.reading import exists, guarded, read_bytes, read_json
from redx.schema import StrictConfig

FORMAT = 1
KEY_BYTES = 2**16  # size of the largest key file
INSTALL = "Signing needs the package cryptography; install it with: pip install 'redx[sign]'"


class FileEntry(StrictConfig):
    """A file in a signature."""

    sha256: str
    size: int


class SignatureFile(StrictConfig):
    """The content of signature.json."""

    redx_signature: int
    files: dict[str, FileEntry]
    key: str
    signature: str


def make_key(path: Path) -> Path:
    """Write a new private key that only its owner may read, and the public key beside it; return that of the latter.

    Parameters
    ----------
    path
        The private key's file, which must not exist; the public key is written to the same name with `.pub`.
    """
    ed25519, serialization = _packages()
    public = Path(f"{path}.pub")
    for file in (path, public):
        if os.path.lexists(file):
            raise RedxError(f"There is {file} already, and a key is never overwritten; choose another name.")
    key = ed25519.Ed25519PrivateKey.generate()
    raw, pem = serialization.Encoding.Raw, serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    content = base64.b64encode(key.public_key().public_bytes(raw, serialization.PublicFormat.Raw))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with open(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RedxError(f"Cannot write {path} ({error.strerror}); choose another folder.") from error
    write_bytes(public, b"ed25519 " + content + b"\n")
    return public


def sign(folder: Path, entries: Entries, key: Path) -> str:
    """Write the signature of a folder's files; return the public key that verifies it.

    Parameters
    ----------
    folder
        The folder.
    entries
        All its files.
    key
        File of the private key, as `make_key` wrote it.
    """
    ed25519, serialization = _packages()
    content = read_bytes(key, KEY_BYTES, "make a key with `redx sign --new-key FILE`", "give a private key of redx")
    with guarded(key, "is no private key of redx", "make one with `redx sign --new-key FILE`"):
        private = serialization.load_pem_private_key(content, password=None)
        if not isinstance(private, ed25519.Ed25519PrivateKey):
            raise ValueError("another kind of key")
    raw = serialization.Encoding.Raw
    public = base64.b64encode(private.public_key().public_bytes(raw, serialization.PublicFormat.Raw)).decode()
    value = {
        "redx_signature": FORMAT,
        "files": {name: entry._asdict() for name, entry in sorted(entries.items())},
        "key": public,
        "signature": base64.b64encode(private.sign(canonical_bytes(entries))).decode(),
    }
    write_json(folder / SIGNATURE, value)
    return public


def read_signature(folder: Path, key: Path) -> Entries:
    """Return the files that a signature names, after verifying it.

    Parameters
    ----------
    folder
        The folder.
    key
        File of the public key of the person who should have signed it.

    Raises
    ------
    RedxError
        If there is no signature, or it is not one by this key.
    """
    ed25519, _ = _packages()
    if not exists(folder / SIGNATURE):
        raise RedxError(f"{folder} has no {SIGNATURE}; let its maker sign it with `redx sign {folder} --key FILE`.")
    advice = "take the folder anew from its maker"
    signed: SignatureFile = read_json(folder / SIGNATURE, SignatureFile, misfit="is no signature", advice=advice)
    entries = {name: Entry(entry.sha256, entry.size) for name, entry in signed.files.items()}
    public = _read_public(key)
    from cryptography.exceptions import InvalidSignature

    try:
        with guarded(folder / SIGNATURE, "is no signature", advice):
            ed25519.Ed25519PublicKey.from_public_bytes(public).verify(
                base64.b64decode(signed.signature, validate=True), canonical_bytes(entries)
            )
    except RedxError as error:
        if not isinstance(error.__cause__, InvalidSignature):
            raise
        theirs = base64.b64encode(public).decode()
        who = "its content was changed" if signed.key == theirs else f"it names the key {signed.key[:60]!a}"
        raise RedxError(f"{folder / SIGNATURE} is not a signature by {key} ({who}); do not use the folder.") from error
    return entries


def canonical_bytes(entries: Mapping[str, Entry]) -> bytes:
    """Return what is signed: the files by name, with hash and size, as JSON without spaces in sorted order."""
    files = {name: [entry.sha256, entry.size] for name, entry in entries.items()}
    return b"redx signature 1\n" + json.dumps(files, sort_keys=True, separators=(",", ":")).encode()


def _read_public(path: Path) -> bytes:
    content = read_bytes(path, KEY_BYTES, "give the public key, FILE.pub", "give the public key, FILE.pub")
    with guarded(path, "is no public key of redx", "give the file FILE.pub that `redx sign --new-key FILE` wrote"):
        kind, text = content.decode().split()
        key = base64.b64decode(text, validate=True)
        if kind != "ed25519" or len(key) != 32:
            raise ValueError("another kind of key")
        return key


def _packages() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise RedxError(f"{INSTALL}.") from error
    return ed25519, serialization
