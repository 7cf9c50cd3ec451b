"""Parquet files whose metadata do not tell how much they unpack to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from faults.bombs import parquet as writer
from redx.errors import RedxError
from redx.io import parquet_pages
from redx.io.parquet_files import read_parquet
from redx.io.parquet_pages import page_bytes


def make_table(rows: int) -> pyarrow.Table:
    numbers = list(range(rows))
    columns = {"text": [f"text {number}" for number in numbers], "list": [[number] for number in numbers]}
    return pyarrow.table({**columns, "number": numbers, "yes": [True] * rows, "record": [{"a": 1}] * rows})


def sizes(path: Path) -> list[int]:
    with path.open("rb") as file:
        return page_bytes(file, path.stat().st_size)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd", "row_group_size": 70},
        {"data_page_version": "2.0", "compression": "none"},
        {"use_dictionary": False, "data_page_size": 100},
        {"write_page_index": True, "write_statistics": False},
    ],
)
def test_all_pages_are_counted(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(make_table(500), path, **options)
    found = parquet.ParquetFile(path).metadata
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    total = sum(group.column(n).total_uncompressed_size for group in groups for n in range(group.num_columns))
    assert 0 <= total - sum(sizes(path)) < 200 * len(sizes(path))  # which has the headers of the pages in it as well
    assert len(list(read_parquet(path))) == 500


def test_a_page_that_is_larger_than_its_metadata_say_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    options: dict[str, Any] = {"use_dictionary": False, "write_statistics": False}
    writer(lambda pa: pa.table({"text": ["x" * 10**6]}), True, **options)(path)
    assert parquet.ParquetFile(path).metadata.row_group(0).total_byte_size == 100
    assert len(list(read_parquet(path, 1_100_000))) == 1
    monkeypatch.delattr(parquet.ParquetFile, "iter_batches")
    with pytest.raises(RedxError, match=r"unpacks to more than 900,000 bytes; give fewer or shorter rows"):
        list(read_parquet(path, 900_000))


def test_few_rows_are_unpacked_at_once_where_pages_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    wide = pyarrow.array([bytes(1000)], pyarrow.binary(1000))
    parquet.write_table(pyarrow.table({"a": pyarrow.DictionaryArray.from_arrays([0] * 300, wide)}), path)
    read, asked = parquet.ParquetFile.iter_batches, []

    def spy(file: Any, batch_size: int, **options: Any) -> Any:
        asked.append(batch_size)
        return read(file, batch_size=batch_size, **options)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", spy)
    with pytest.raises(RedxError, match="unpacks to more than 10,000 bytes"):
        list(read_parquet(path, 10_000))
    assert len(list(read_parquet(path, 10**6))) == 300
    assert asked == [10_000 // max(sizes(path)), 256]


def test_metadata_and_pages_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(make_table(500), path, row_group_size=50)
    for name, limit, words in (("FOOTER_BYTES", 99, "damaged or too large"), ("MAX_PAGES", 9, "too many pages")):
        with monkeypatch.context() as patch:
            patch.setattr(parquet_pages, name, limit)
            with pytest.raises(RedxError, match=rf"x\.parquet cannot be read as Parquet \(.*{words}"):
                list(read_parquet(path))


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=60))
def test_any_bytes_are_a_struct_or_refused(content: bytes) -> None:
    reader = parquet_pages._Reader(content)
    with suppress(ValueError):
        assert isinstance(reader.struct(), dict)
        assert reader.position <= len(content)
