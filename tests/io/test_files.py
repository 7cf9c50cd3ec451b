"""Files: natural order, safe names, and atomic writes."""

from __future__ import annotations

import pytest

from redx.errors import RedxError
from redx.io.files import check_name, natural_order

NAMES = ("range_2_20", "range_21_40", "range_41_60", "range_61_80", "range_81_100")


def test_numbers_in_names_are_ordered_as_numbers() -> None:
    assert tuple(sorted(set(NAMES), key=natural_order)) == NAMES
    assert sorted(["b", "a10", "a9", "a"], key=natural_order) == ["a", "a9", "a10", "b"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\\b", ".hidden", "a\n", "x" * 101, "con "])
def test_a_name_cannot_lead_out_of_its_folder(name: str) -> None:
    with pytest.raises(RedxError, match="cannot be called"):
        check_name(name)
