"""`redx solve`: one JSON object per text, in order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import redx
from helpers.commands import Ask, refused


@pytest.mark.slow
def test_objects_are_printed_in_order(chains: redx.Run, ask: Ask) -> None:
    texts = ["12 plus 5 minus 3", "", "3 times 4", "12 plus 5", "no numbers", "7 plus 99", "-5 plus 3", "2.5 plus 1"]
    code, out, _ = ask("solve", chains.folder, *texts, "--json")
    solved = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [chain["text"] for chain in solved] == texts
    for chain in solved:
        assert {"text", "program", "steps", "answer", "reason"} <= set(chain)
        assert (chain["answer"] is None) == bool(chain["reason"])
        for step in chain["steps"]:
            assert set(step) == {"question", "answer", "expert", "weights", "radius"}
    reasons = [chain["reason"] for chain in solved if chain["reason"] and not chain["steps"]]
    assert len(set(reasons)) == len(reasons) >= 5


@pytest.mark.slow
def test_lines_are_read_from_stdin(chains: redx.Run, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "asked.txt").write_text("12 plus 5\n30 minus 3\n")
    with (tmp_path / "asked.txt").open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        _, out, _ = ask("solve", chains.folder, "--json")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["12 plus 5", "30 minus 3"]


def test_a_run_without_a_decomposer_is_refused(clouds: redx.Run, ask: Ask) -> None:
    refused(ask("solve", clouds.folder, "1 plus 2"), "redx run steps")
