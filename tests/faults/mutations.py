"""Seeded mutations of files: bytes, JSON, headers of tensors, archives of arrays, rows of tables, checkpoints."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import numpy

from redx.io.manifest import MANIFEST, Entry, format_manifest

Mutation = Callable[[bytes, Random], bytes]
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 2**31, 2**63, -(2**63), 10**9, 10**12, 10**40, 10**290, 0.5, -0.0, 1e-300, 1e300,
    1e308, "", "x", "../x", "/etc/passwd", "a\0b", "\ud800", "\u202e", "a" * 300, "é" * 200, "9" * 5000, "nan", "1e999",
    [], {}, [[]], [[1], [1, 2]], {"a": {}}, [None], [1e300, "x"], "residual/plain", "linear", "keys", "lowrank",
]  # fmt: skip
RAW = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "9" * 6000,
    "[" * 3000 + "]" * 3000,
    '{"a":' * 50 + "1" + "}" * 50,
    "01",
]


def mutate_bytes(content: bytes, draw: Random) -> bytes:
    """Flip bits, cut, insert, repeat, blank or exchange pieces of a file."""
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 4, 16])):
        at, length = draw.randrange(len(data) + 1), draw.choice([1, 1, 2, 4, 8, 64, 1024])
        match draw.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = draw.randbytes(length)
            case 3:
                data[at:at] = data[at : at + length] * draw.choice([1, 2, 30])
            case 4:
                del data[at : at + length]
            case 5:
                data[at : at + length] = draw.choice([b"\0", b"\xff", b"{", b'"', b"\n", b"9"]) * length
            case 6 if len(data) >= 8:  # where the sizes are
                position = draw.choice([0, max(0, len(data) - 22), draw.randrange(len(data))])
                size = draw.choice([0, 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, len(data)])
                data[position : position + 8] = struct.pack("<Q", size)
            case _:
                other = draw.randrange(len(data) + 1)
                data[at : at + length] = data[other : other + length]
    return bytes(data)


def mutate_json(content: bytes, draw: Random) -> bytes:
    """Change types, numbers and keys of a JSON file, repeat keys, nest deeply, or break its encoding."""
    value = json.loads(content)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        value = _change(value, draw)
    text = json.dumps(value)
    if draw.random() < 0.15 and "{" in text:  # a key twice, or a number that JSON does not have
        at = draw.choice([position for position, one in enumerate(text) if one == "{"])
        key = draw.choice(['"domain"', '"version"', '"seeds"', '"banks"', '"a"', '"rules"'])
        text = text[: at + 1] + f"{key}: {draw.choice(RAW)}, {key}: 1, " + text[at + 1 :]
    elif draw.random() < 0.1:
        text = text.replace(draw.choice(["0", "1", "[]", "null", '""']), draw.choice(RAW), 1)
    return text.encode("utf-8", "surrogatepass") + draw.choice([b"", b"", b"", b"", b"\xff", b"}", b"\0"])


def _change(value: Any, draw: Random) -> Any:
    """Return a JSON value with one change somewhere inside it."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        match draw.randrange(6):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return value | {draw.choice(["x", "", "../x", "\ud800", "9" * 5000]): draw.choice(ODD)}
            case _:
                return value | {key: _change(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        match draw.randrange(4):
            case 0:
                return value[:at]
            case 1:
                return value + value[at : at + 1] * draw.choice([1, 40])
            case _:
                return [*value[:at], _change(value[at], draw), *value[at + 1 :]]
    return draw.choice(ODD)


def mutate_safetensors(content: bytes, draw: Random) -> bytes:
    """Change the header of a safetensors file, or its values."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    names = [name for name in header if name != "__metadata__"]
    match draw.randrange(7):
        case 0:
            header[draw.choice(names)]["dtype"] = draw.choice(
                [
                    "F64",
                    "F16",
                    "BF16",
                    "I64",
                    "I32",
                    "BOOL",
                    "U8",
                    "U64",
                    "F8_E4M3",
                    "F8_E8M0",
                    "F4",
                    "C64",
                    "X",
                    3,
                    None,
                ]
            )
        case 1:  # the same bytes as another type, or in another shape
            name = draw.choice(names)
            shape = header[name]["shape"]
            kind = {"F32": ["I32", "F32"], "I64": ["F64", "I64"]}.get(header[name]["dtype"], ["U8"])
            header[name] |= {"dtype": draw.choice(kind), "shape": draw.choice([shape[::-1], [1, *shape], [*shape, 1]])}
        case 2:
            header[draw.choice(names)]["shape"] = draw.choice(
                [[], [0], [2**40], [-1], [2**62, 4], ["x"], None, [1] * 99]
            )
        case 3:
            header[draw.choice(["x", "../x", "a\nb", "router.mean", "\u202e", names[0] + ".x"])] = header.pop(
                draw.choice(names)
            )
        case 4 if data:  # NaN, infinity, huge values and labels that do not exist
            at = draw.randrange(len(data)) // 8 * 8
            data[at : at + 8] = draw.choice([b"\xff" * 8, b"\0\0\x80\x7f" * 2, b"\xff\xff\x7f\x7f" * 2, b"\x7f" * 8])
        case 5:
            return _join(mutate_json(json.dumps(header).encode(), draw), bytes(data), draw)
        case _:
            header = _change(header, draw)
    return _join(json.dumps(header).encode(), bytes(data), draw)


def _join(header: bytes, data: bytes, draw: Random) -> bytes:
    length = len(header) if draw.random() < 0.95 else draw.choice([0, 1, 2**32, 2**63, len(header) + len(data)])
    return length.to_bytes(8, "little") + header + data


def mutate_arrays(content: bytes, draw: Random) -> bytes:
    """Write an .npz file with an array of another type, shape or header, or with pickled objects."""
    with numpy.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    name = draw.choice(list(arrays))
    array = arrays[name]
    kinds = ["f2", "f8", "i1", "u8", "c16", "U5", "S5", "M8[s]", "m8[D]", "?", "i8,f4", "U0", ">f4", "f16"]
    match draw.randrange(6):
        case 0:
            with numpy.errstate(all="ignore"):
                arrays[name] = numpy.zeros(array.shape, draw.choice(kinds))
        case 1:
            arrays[name] = draw.choice([array[:0], array[:3], array[None], array.T, array.reshape(-1), array[0]])
        case 2 if array.dtype.kind in "fi":
            arrays[name] = array * draw.choice([0, 1e300, -1, numpy.nan, numpy.inf])
        case 3:
            arrays[name] = numpy.array([{"x": 1}] * len(array), object)
        case 4:
            del arrays[name]
    out = io.BytesIO()
    save = draw.choice([numpy.savez, numpy.savez_compressed])
    save(out, allow_pickle=True, **arrays)
    if draw.random() < 0.5:
        return out.getvalue()
    return _rewrite_header(out.getvalue(), draw)


def _rewrite_header(content: bytes, draw: Random) -> bytes:
    """Change the header of one array in an archive, where types and sizes are written."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        chosen = draw.choice(old.namelist() or [""])
        for name in old.namelist():
            data = old.read(name)
            if name == chosen:
                match draw.randrange(5):
                    case 0:
                        shape = draw.choice(
                            [b"(10**9,)", b"(999999999999,)", b"(-1,)", b"('a',)", b"(1e9,)", b"(2,)*99"]
                        )
                        data = data.replace(b"'shape': (", b"'shape': " + shape + b"  # (", 1)
                    case 1:
                        data = data.replace(b"<", draw.choice([b">", b"|", b"O", b"("]), 1)
                    case 2:
                        data = data[:8] + draw.choice([b"\xff\xff", b"\0\0", b"\1\0"]) + data[10:]
                    case 3:
                        data = data[:10] + pickle.dumps([1]) + data[10:]
                    case _:
                        data = mutate_bytes(data, draw)
            method = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
            new.writestr(name, data, method)
    return out.getvalue()


def mutate_lines(content: bytes, draw: Random) -> bytes:
    """Change, repeat and exchange the lines of a table, or a value in one of them."""
    lines = content.split(b"\n")
    for _ in range(draw.choice([1, 2, 8])):
        at = draw.randrange(len(lines))
        match draw.randrange(5):
            case 0:
                lines[at] = draw.choice(
                    [b"", b"{}", b"[]", b'"', b'{"label": 1, "label": 2}', b",,,,", b"\xff\xfe", b"\0"]
                )
            case 1:
                lines.insert(at, lines[draw.randrange(len(lines))] * draw.choice([1, 2]))
            case 2:
                lines[at] = mutate_bytes(lines[at] or b"x", draw)
            case 3:
                words = [b"yes", b"good", b"case", b"d1", b"label"]
                odd = json.dumps(draw.choice(ODD)).encode()
                lines[at] = lines[at].replace(
                    draw.choice(words), draw.choice([odd, draw.choice(RAW).encode(), b"9" * 5000])
                )
            case _:
                with suppress(ValueError, RecursionError):  # where an earlier change broke the line
                    lines[at] = mutate_json(lines[at], draw).replace(b"\n", b" ")
    return b"\n".join(lines)


def mutate_parquet(content: bytes, draw: Random) -> bytes:
    """Write a Parquet file with a column of odd values, or change the bytes of one."""
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(content))
    count = table.num_rows
    columns: list[Any] = [
        [date(1, 1, 1)] * count,
        pyarrow.array([10**9] * count, pyarrow.date32()),
        pyarrow.array([2**62] * count, pyarrow.timestamp("us")),
        pyarrow.array([-(2**62)] * count, pyarrow.timestamp("ns", "UTC")),
        pyarrow.array([2**62] * count, pyarrow.duration("s")),
        pyarrow.array([10**11] * count, pyarrow.time64("us")),
        [datetime(9999, 12, 31, 23)] * count,
        [timedelta(9)] * count,
        [Decimal("1.50")] * count,
        [b"\xff\0"] * count,
        [[1, 2], []] * (count // 2) + [None] * (count % 2),
        [{"a": 1}] * count,
        [None] * count,
        [float("nan")] * count,
        [True] * count,
        pyarrow.array(["x" * 5000] * count).dictionary_encode(),
        ["9" * 5000] * count,
    ]
    name = draw.choice([*table.column_names, "more"])
    kept = table.drop_columns([name]) if name in table.column_names else table
    column = draw.choice(columns)
    changed = kept.append_column(name, pyarrow.array(column) if isinstance(column, list) else column)
    if draw.random() < 0.05:
        changed = changed.append_column(name, pyarrow.array([1] * count))
    out = io.BytesIO()
    try:
        parquet.write_table(changed, out)
    except pyarrow.ArrowException:
        return mutate_bytes(content, draw)
    return out.getvalue()


def mutate_kit(content: bytes, draw: Random) -> bytes:
    """Write an archive with another content, name or attribute of one of its entries, mostly with a new manifest."""
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        files = {name: old.read(name) for name in old.namelist()}
    out, chosen, resealed = io.BytesIO(), draw.choice(list(files)), draw.random() < 0.9
    listed = {}
    with zipfile.ZipFile(out, "w") as new:
        for name in sorted(files, key=lambda name: name == MANIFEST):  # which comes last
            data, entry = files[name], zipfile.ZipInfo(name)
            if name == MANIFEST and resealed:
                data = format_manifest(listed)
            match draw.randrange(20) if name == chosen else None:
                case None:
                    pass
                case 0:
                    entry.filename = draw.choice(["../kit.json", "/kit.json", "x", "KIT.JSON", "a" * 300, "kit.json"])
                case 1:
                    entry.compress_type = draw.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
                case 2:
                    entry.external_attr = draw.choice([0o120777, 0o010644, 0o040755, 0o100000]) << 16
                case 3:
                    data = draw.choice([b"", data * 2, content])
                case _:
                    data = (mutate_json if name.endswith(".json") else mutate_safetensors)(data, draw)
            listed[name] = Entry(hashlib.sha256(data).hexdigest(), len(data))
            new.writestr(entry, data)
    return out.getvalue()


def mutate_pt(content: bytes, draw: Random) -> bytes:
    """Write a `.pt` file with odd values, tensors of odd kinds, or code."""
    import torch

    weights = torch.ones(2, 3)
    values: list[Any] = [
        {"a": weights.expand(2, 3), "b": weights[:1].expand(10**6, 3)},
        {"a": weights.to_sparse()},
        {"a": torch.quantize_per_tensor(weights, 1.0, 0, torch.qint8)},
        {"a": torch.empty(3, device="meta")},
        {"a": weights.to(torch.complex64)},
        {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": weights}}}}}}}}},
        {1: weights},
        {"../x": weights, "a\nb": weights},
        {"a": weights, "about": 10**400, "more": float("nan"), "text": "\ud800"},
        [weights],
        weights,
        {},
        {"model": {"a": weights}, "state_dict": {"a": weights}},
        {"a": date(2000, 1, 1)},
    ]
    out = io.BytesIO()
    torch.save(draw.choice(values), out, _use_new_zipfile_serialization=draw.random() < 0.9)
    return out.getvalue() if draw.random() < 0.7 else mutate_bytes(out.getvalue(), draw)
