"""The tables of settings in the reference are made from the fields of their classes."""

import importlib.util
import re
from pathlib import Path

import pytest

from redx.config import RunConfig

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("settings_tables", ROOT / "docs" / "settings_tables.py")
assert spec is not None
assert spec.loader is not None
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)


def test_every_setting_of_a_run_stands_in_the_reference_with_a_meaning() -> None:
    page = tables.on_page_markdown((ROOT / "docs" / "reference" / "config.md").read_text())
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", page, re.M)
    assert {name for name, _, _ in rows} >= set(RunConfig.model_fields) | {"depth", "epochs", "pooling", "clusters"}
    assert not [name for name, _, meaning in rows if not meaning.strip()]
    assert "redx.config.RunConfig\n    options:\n      heading_level: 2\n      members: false\n\n| setting |" in page


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("TrainingConfig", "| `lr` | 0.001 | peak learning rate of AdamW |"),
        ("TrainingConfig", "| `schedule` | `cosine` | learning rate after the warm-up (`cosine`, `constant`) |"),
        ("BaseConfig", "| `training` |  | section `TrainingConfig`: settings of the training of one stage |"),
    ],
)
def test_a_row_has_default_meaning_and_choices(name: str, row: str) -> None:
    assert row in tables.settings_table(f"redx.config.{name}")


def test_other_names_have_no_table() -> None:
    assert tables.settings_table("redx.errors.RedxError") == tables.settings_table("redx.Model.predict") == ""
