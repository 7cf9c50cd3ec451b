"""Pages of the documentation: their blocks, and a reader who follows them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from redx.cli import main

ROOT = Path(__file__).parents[2]


def all_blocks(page: Path) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page with their language; every block, so that no end counts as a beginning."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S)


def fenced_blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return [content for name, content in all_blocks(page) if name == language]


def follow(page: Path, folder: Path) -> list[str]:
    """Run every block of a page in order, in a folder that is the current one; return their languages.

    A command that ends otherwise than with exit code 0 says so in a comment: `# exit code 1`.
    """
    for language, content in all_blocks(page):
        if language == "py":
            subprocess.run([sys.executable, "-c", content], check=True, cwd=folder)
            continue
        for line in content.splitlines():
            with pytest.raises(SystemExit) as stop:
                main(shlex.split(line, comments=True)[1:])
            expected = int(line.rpartition("# exit code ")[2]) if "# exit code " in line else 0
            assert (stop.value.code or 0) == expected, line
    return [language for language, _ in all_blocks(page)]
