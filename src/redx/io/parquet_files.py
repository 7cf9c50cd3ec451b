"""Rows of Parquet files, whose sizes are checked in their metadata before any memory is allocated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redx.errors import RedxError
from redx.io.parquet_pages import page_bytes
from redx.io.reading import TEXT_BYTES, guarded, open_file

MAX_VALUES = 8 * 2**20  # values of all columns; every one becomes a Python object
MAX_COLUMNS = 1000
BATCH = 256  # rows that are unpacked at once, unless pages are large


def read_parquet(path: Path, max_bytes: int = TEXT_BYTES) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file.

    Parameters
    ----------
    path
        The file.
    max_bytes
        Upper bound on the size of the file, and on that of all its texts together.

    Yields
    ------
    dict
        The values of one row by column; lists and records, which no task reads, are not unpacked but empty.

    Raises
    ------
    RedxError
        If the file is damaged or unpacks to too much, or pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise RedxError("Parquet files need pyarrow; install with `pip install 'redx[tables]'`.") from error
    with open_file(path, max_bytes, advice="split it into smaller files") as (file, size):
        try:
            pages = page_bytes(file, size)
            if sum(pages) > max_bytes:
                raise RedxError(f"{path} unpacks to more than {max_bytes:,} bytes; give fewer or shorter rows.")
            # A text can share its beginning with the one before it, so that every row is as large as a whole page.
            rows_at_once = min(BATCH, max(1, max_bytes // max(pages, default=1)))
            with parquet.ParquetFile(file) as opened:
                _check_sizes(path, opened.metadata, max_bytes)
                fields, names = list(opened.schema_arrow), opened.schema_arrow.names
            if len(set(names)) < len(names):
                raise RedxError(f"{path} has a column twice; give every column a name of its own.")
            # Columns of text stay dictionaries, so that one long text that all rows share is not copied.
            texts = [field.name for field in fields if _is_text(field.type)]
            plain = [field.name for field in fields if not pyarrow.types.is_nested(field.type)]
            empty: dict[str, Any] = {name: [] for name in names if name not in plain}
            with parquet.ParquetFile(file, read_dictionary=texts) as opened:
                unpacked = 0
                for batch in opened.iter_batches(batch_size=rows_at_once, columns=plain):
                    unpacked += sum(_unpacked_bytes(column) for column in batch.columns)
                    if unpacked > max_bytes:
                        raise RedxError(f"{path} unpacks to more than {max_bytes:,} bytes; give fewer or shorter rows.")
                    with guarded(path, "cannot be read as Parquet (a value out of range)", "write it anew"):
                        rows = batch.to_pylist()
                    yield from (empty | row for row in rows) if empty else rows
        except RedxError:
            raise
        except Exception as error:
            why = " ".join(str(error).split())[:120] or type(error).__name__
            raise RedxError(f"{path} cannot be read as Parquet ({why}); write it anew.") from error


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _check_sizes(path: Path, metadata: Any, max_bytes: int) -> None:
    """Refuse a file whose metadata promise more rows, columns or bytes than fit into memory.

    The metadata of single columns are left alone: where they are damaged, pyarrow ends the whole process.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    values = max(metadata.num_rows, sum(group.num_rows for group in groups)) * metadata.num_columns
    size = sum(group.total_byte_size for group in groups)
    if metadata.num_columns > MAX_COLUMNS or values > MAX_VALUES:
        raise RedxError(
            f"{path} has {metadata.num_rows:,} rows of {metadata.num_columns:,} columns, {values:,} values in all, "
            f"more than {MAX_VALUES:,}; give fewer rows, or only the columns that are needed."
        )
    if size > max_bytes:
        raise RedxError(f"{path} unpacks to {size:,} bytes, more than {max_bytes:,}; give fewer or shorter rows.")


def _unpacked_bytes(column: Any) -> int:
    """Return the size of a column after every text in it has been copied."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type):
        return column.nbytes
    lengths = compute.take(compute.binary_length(column.dictionary), column.indices)  # type: ignore[attr-defined]
    return compute.sum(lengths).as_py() or 0  # type: ignore[attr-defined]
