"""The map in CONTRIBUTING.md leads to files and folders that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_answer_of_where_do_i_exists() -> None:
    files = re.findall(r"^\| [^|]+ \| `(\w+/[^`]+)`[^|]*\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert len(files) > 40
    assert not [file for file in files if not (ROOT / file).exists()]
