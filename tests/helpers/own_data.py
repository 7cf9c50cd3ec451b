"""Small tables of texts and arrays of features, such as users bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy

Record = dict[str, Any]


def text_records(count: int = 120, domains: int = 3) -> list[Record]:
    """Return short texts with two labels that all domains share."""
    return [
        {
            "text": f"case {number} is {'good' if number % 2 else 'bad'}",
            "label": ["no", "yes"][number % 2],
            "domain": f"d{number % domains}",
        }
        for number in range(count)
    ]


def write_table(path: Path, records: list[Record]) -> Path:
    """Write a table in the format of its suffix, and return its path."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif path.suffix == ".csv":
        lines = [",".join(records[0]), *(",".join(map(str, record.values())) for record in records)]
        path.write_text("\n".join(lines) + "\n")
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return path


def draw_clouds(count: int = 200, seed: int = 0) -> dict[str, Any]:
    """Return points of four clouds: the label tells whether a point is high, the domain which cloud it belongs to."""
    draw = numpy.random.default_rng(seed)
    domain = numpy.arange(count) % 4
    x = draw.normal(size=(count, 6)) + 8 * numpy.eye(6)[domain]
    return {"x": x, "y": numpy.where(x[:, 5] > 0, "high", "low"), "domain": domain}


def write_arrays(path: Path, **arrays: Any) -> Path:
    """Write an .npz file, and return its path."""
    numpy.savez(path, **arrays)
    return path
