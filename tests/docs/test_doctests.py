"""The examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((SOURCE / "redx").rglob("*.py"))
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_give_what_they_say(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_some_docstrings_have_examples() -> None:
    assert len(MODULES) >= 10
