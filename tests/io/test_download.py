"""Downloads: whole, verified and bounded, or an error that says why."""

from __future__ import annotations

import hashlib
import io
import subprocess
from pathlib import Path

import pytest

from helpers.servers import serve_folder
from redx.io import download


def test_a_file_is_installed_whole_or_not_at_all(tmp_path: Path) -> None:
    content, target = b"x" * 3_000_000, tmp_path / "deep" / "file"
    digest = download.Digest("sha256", hashlib.sha256(content).hexdigest())
    download.install(io.BytesIO(content).read, target, len(content), digest)
    assert download.is_verified(target, digest)
    target.write_bytes(b"before")
    for bad, limit, reason in ((content, len(content) - 1, "larger"), (b"y", 9, "SHA256 expected .* found")):
        with pytest.raises(download.SourceError, match=reason):
            download.install(io.BytesIO(bad).read, target, limit, digest)
        assert [path.name for path in target.parent.iterdir()] == ["file"]
        assert target.read_bytes() == b"before"
    assert not download.is_verified(target, digest)
    assert not download.is_verified(tmp_path / "none", digest)


def test_a_download_has_a_limit_and_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "file").write_bytes(b"x" * 1000)
    with serve_folder(tmp_path) as (url, _):
        assert download.download(f"{url}/file", 1000) == b"x" * 1000
        with pytest.raises(download.SourceError, match="larger than the 999"):
            download.download(f"{url}/file", 999)
        with pytest.raises(download.SourceError, match="longer than 0 s"):
            download.download(f"{url}/file", 1000, deadline=0)


def test_a_tool_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(download.SourceError, match="no-such-tool is not installed"):
        download.run_tool(["no-such-tool"], tmp_path)
    with pytest.raises(download.SourceError, match="exit code 3, oh no"):
        download.run_tool(["sh", "-c", "echo oh no >&2; exit 3"], tmp_path)
    with pytest.raises(subprocess.TimeoutExpired, match="timed out"):
        download.run_tool(["sleep", "10"], tmp_path, timeout=0.1)
