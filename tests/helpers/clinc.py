"""Files in the form of CLINC150: tiny ones for tests, and the real ones where they lie on this machine."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from redx.io.download import Digest
from redx.tasks.intents import loading
from redx.tasks.intents.loading import DOMAINS, QUERIES, IntentsSource

ROOT = Path(__file__).parents[2]
GIVEN = os.environ.get(loading.VARIABLE)  # before tests change it
INTENTS = {"work 2": ["holiday", "payday"], "travel": ["visa", "plug"], "work 10": ["alarm", "timer"]}
COUNTS = {"train": 12, "val": 6, "test": 4}  # queries of an intent


def tiny_queries() -> dict[str, list[list[str]]]:
    """Return queries of six intents in three domains, and queries out of scope; no text is in two splits."""
    intents = [intent for names in INTENTS.values() for intent in names]
    queries = {
        split: [[f"{split} question {number} about {intent}", intent] for intent in intents for number in range(count)]
        for split, count in COUNTS.items()
    }
    return queries | {f"oos_{split}": [[f"{split} riddle {n}", "oos"] for n in range(3)] for split in COUNTS}


def write_clinc(
    folder: Path, queries: dict[str, Any] | None = None, domains: dict[str, Any] | None = None
) -> IntentsSource:
    """Write the two files into a folder, and return a source that expects them and cannot download anything."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {QUERIES: queries or tiny_queries(), DOMAINS: domains or INTENTS}
    digests = {}
    for name, value in contents.items():
        content = json.dumps(value).encode()
        (folder / name).write_bytes(content)
        digests[name] = Digest("sha256", hashlib.sha256(content).hexdigest())
    return IntentsSource(files=digests, url="http://127.0.0.1:9/data")  # the discard port: refused at once


def expect(monkeypatch: pytest.MonkeyPatch, source: IntentsSource) -> None:
    """Let the task expect the files of a source instead of the real ones, until the test ends."""
    monkeypatch.setattr(loading, "FILES", dict(source.files))


def real_folder() -> Path:
    """Return the folder of the real data, or skip the test where this machine does not have them."""
    for folder in ([Path(GIVEN)] if GIVEN else []) + [ROOT.parent / "shared" / "data"]:
        for candidate in (folder, folder / loading.FOLDER):
            if (candidate / QUERIES).is_file():
                return candidate
    pytest.skip(f"CLINC150 is not on this machine: {loading.VARIABLE} is not set, and ../shared/data has no clinc150")
