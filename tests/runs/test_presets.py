"""Presets and changes to settings."""

from __future__ import annotations

from redx.runs.presets import configure


def test_one_option_for_two_kinds_of_files() -> None:
    ours, theirs = configure("jsonl", file="a.csv", label="topic"), configure("addition", file="a.jsonl")
    assert ours.table is not None
    assert (ours.table.file, ours.table.label, ours.questions.file) == ("a.csv", "topic", None)
    assert (theirs.table, theirs.questions.file) == (None, "a.jsonl")
