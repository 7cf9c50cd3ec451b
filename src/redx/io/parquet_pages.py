"""The sizes of the pages of a Parquet file, read from the headers of the pages themselves.

The sizes in the metadata at the end of a file can be anything, and pyarrow allocates what the headers of the pages say.
Metadata and headers are Thrift structs in the compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

FOOTER_BYTES = 4 * 2**20  # of the metadata; pyarrow takes hundreds of times as much memory
HEADER_BYTES = 2**16  # of the header of a page, which may hold the smallest and the largest value
MAX_PAGES = 100_000
MAX_DEPTH = 12
GROUPS, COLUMNS, COLUMN, VALUES, COMPRESSED = 4, 1, 3, 5, 7  # fields of the metadata
FIRST_PAGE, DICTIONARY = 9, 11
UNPACKED, PACKED, HEADERS = 2, 3, (5, 8)  # fields of the header of a page, and of the number of values in it

Struct = dict[int, Any]  # values by field


def page_bytes(file: BinaryIO, size: int) -> list[int]:
    """Return how many bytes every page of a Parquet file unpacks to.

    Parameters
    ----------
    file
        The open file.
    size
        Its size.

    Raises
    ------
    ValueError
        If its metadata or the header of a page is damaged or far too large.
    """
    file.seek(max(0, size - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or length > min(FOOTER_BYTES, size - 8):
        raise ValueError("its metadata are damaged or too large")
    file.seek(size - 8 - length)
    metadata = _Reader(file.read(length)).struct()
    sizes: list[int] = []
    for group in metadata.get(GROUPS, []):
        for chunk in group.get(COLUMNS, []):
            for unpacked in _column_pages(file, chunk.get(COLUMN) or {}):
                sizes.append(unpacked)
                if len(sizes) > MAX_PAGES:
                    raise ValueError("it has far too many pages")
    return sizes


def _column_pages(file: BinaryIO, column: Struct) -> Iterator[int]:
    """Yield what the pages of a column unpack to, as far as pyarrow reads them."""
    start = column.get(DICTIONARY) or column[FIRST_PAGE]
    start, left = min(start, column[FIRST_PAGE]), column[VALUES]
    end = start + column[COMPRESSED]
    while left > 0 and start < end:
        file.seek(start)
        reader = _Reader(file.read(HEADER_BYTES))
        header = reader.struct()
        if min(header[UNPACKED], header[PACKED]) < 0:
            raise ValueError("a page has a negative size")
        yield header[UNPACKED]
        left -= sum(max(0, header[kind][1]) for kind in HEADERS if kind in header)
        start += reader.position + header[PACKED]


class _Reader:
    """Reads Thrift structs from bytes."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    def struct(self, depth: int = 0) -> Struct:
        """Return a struct; all of its values are read, but texts are left out."""
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        values: Struct = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._number()
            values[field] = self._value(head & 15, depth)
        return values

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:  # true and false, which take no byte in a struct
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._number()
            case 7:
                return self._skip(8)
            case 8:
                return self._skip(self._varint())
            case 9 | 10:
                return self._list(depth)
            case 12:
                return self.struct(depth + 1)
        raise ValueError("an unknown type")  # maps among them, which Parquet does not have

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count, kind = head >> 4, head & 15
        count = self._varint() if count == 15 else count
        if count > len(self.content) - self.position:  # every item takes a byte at least
            raise ValueError("truncated")
        if kind in (1, 2):
            return [self._byte() == 1 for _ in range(count)]
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        self._skip(1)
        return self.content[self.position - 1]

    def _skip(self, count: int) -> None:
        self.position += count
        if self.position > len(self.content):
            raise ValueError("truncated")

    def _varint(self) -> int:
        number, shift = 0, 0
        while shift < 70:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
        raise ValueError("far too large a number")

    def _number(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)
