"""A stand-in for the Hugging Face Hub: a real HTTP server on loopback that speaks what uploads and downloads need."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"


class Hub(ThreadingHTTPServer):
    """Repositories with one revision each.

    Attributes
    ----------
    repositories
        The content of every file by its path, by repository.
    private
        Which repositories were made private.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def run_hub() -> Iterator[Hub]:
    """Serve a hub while the block runs."""
    hub = Hub()
    thread = Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[:2] == ["api", "validate-yaml"]:
            self.answer({"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid credentials"}, 401)
        elif parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else f"me/{asked['name']}"
            new = name not in self.server.repositories
            self.server.repositories.setdefault(name, {})
            private = asked.get("private") or asked.get("visibility") == "private"
            self.server.private.setdefault(name, bool(private))
            self.answer({"url": f"{self.server.address}/{name}"}, 200 if new else 409)
        elif "preupload" in parts:
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif "commit" in parts:
            files = self.server.repositories["/".join(parts[2:4])]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            sha = _sha(files)
            url = f"{self.server.address}/{'/'.join(parts[2:4])}/commit/{sha}"
            self.answer({"success": True, "commitOid": sha, "commitUrl": url})
        else:
            self.answer({"error": "not found"}, 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        files = self.server.repositories.get(name)
        if files is None:
            self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif api and "tree" in parts:
            tree = [_entry(path, content) for path, content in files.items()]
            self.answer(tree)
        elif api:
            siblings = [{"rfilename": path} for path in files]
            self.answer({"id": name, "sha": _sha(files), "siblings": siblings, "tags": [], "private": False})
        elif parts[2:3] == ["resolve"] and "/".join(parts[4:]) in files:
            content = files["/".join(parts[4:])]
            headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": _sha(files)}
            self.send(content, 200, headers)
        else:
            self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})

    def answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send(json.dumps(content).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _sha(files: dict[str, bytes]) -> str:
    return hashlib.sha1(b"".join(name.encode() + content for name, content in sorted(files.items()))).hexdigest()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
