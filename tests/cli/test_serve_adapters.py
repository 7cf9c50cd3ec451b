"""The verb serve for adapters: it tells what it serves, and refuses what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvicorn

import redx
from helpers.adapters import save_library
from helpers.commands import Ask, refused


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_library(tmp_path_factory.mktemp("serve"))


def test_a_library_is_served(library: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)  # it would wait for Ctrl+C
    code, out, _ = ask("serve", library, "--port", "0", "--top", "1", "--token", "0123456789abcdef")
    assert code == 0
    assert "is served at http://127.0.0.1:" in out
    assert "0123456789abcdef" not in out, "no page asks for the token"


def test_what_does_not_fit_is_refused(library: Path, clouds: redx.Run, ask: Ask, tmp_path: Path) -> None:
    refused(ask("serve", library, "--port", "0", "--top", "0"), "--top")
    refused(ask("serve", library, "--host", "0.0.0.0"), "--token")
    refused(ask("serve", clouds.folder, "--port", "0", "--top", "1"), "holds no adapters")
    other = tmp_path / "other.jsonl"
    other.write_text('{"kind": "redx answer"}\n')
    refused(ask("serve", library, "--port", "0", "--audit", other), "something else")
