"""The map in CONTRIBUTING.md leads to files that exist, and the tree keeps its shape."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
ROWS = re.findall(r"^\| ([^|]+) \| `(src/[^`]+)`[^|]*\|$", TEXT, re.M)


@pytest.mark.parametrize(("question", "file"), ROWS, ids=[question for question, _ in ROWS])
def test_every_answer_of_where_do_i_is_a_file(question: str, file: str) -> None:
    assert (ROOT / file).is_file()


def test_the_questions_of_newcomers_are_answered() -> None:
    text = " ".join(question for question, _ in ROWS)
    for word in ("task", "rule", "noise", "router", "backbone", "risk bound", "verb", "section", "run folder"):
        assert word in text
    for word in ("train one expert", "read a checkpoint", "change the certificate", "RED formula", "experts diff"):
        assert word in text
