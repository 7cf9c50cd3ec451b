"""`redx solve`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import redx
from redx import cli


def solve(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main([str(word) for word in ("solve", *words)])
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_solve_prints_objects_in_order(chains: redx.Run, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["12 plus 5 minus 3", "", "3 times 4", "12 plus 5", "no numbers", "7 plus 99", "-5 plus 3", "2.5 plus 1"]
    code, out, _ = solve(capsys, chains.folder, *texts, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [each["text"] for each in found] == texts
    for each in found:
        assert {"text", "program", "steps", "answer", "reason"} <= set(each)
        assert (each["answer"] is None) == bool(each["reason"])
        for step in each["steps"]:
            assert set(step) == {"question", "answer", "expert", "weights", "radius"}
    reasons = [each["reason"] for each in found if each["reason"] and not each["steps"]]
    assert len(set(reasons)) == len(reasons) >= 5


def test_solve_reads_lines_from_stdin(
    chains: redx.Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "asked.txt").write_text("12 plus 5\n30 minus 3\n")
    with (tmp_path / "asked.txt").open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        _, out, _ = solve(capsys, chains.folder, "--json")
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["12 plus 5", "30 minus 3"]


def test_solve_needs_a_run_with_a_decomposer(toy: redx.Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = solve(capsys, toy.folder, "1 plus 2")
    assert code == 2
    assert "redx run steps" in err
