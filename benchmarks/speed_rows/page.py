"""The page docs/results/speed.md and its figure, from the JSON of bench.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from redx.io.files import write_bytes

TARGETS = {  # by row: what is to be reached; (what the ratio is, whether larger is better, the bound)
    "encode": ("speed-up", True, 1.1),
    "compose-5": ("share", False, 0.002),
    "compose-50": ("share", False, None),
    "compose-500": ("share", False, None),
    "compose-4096": ("share", False, 0.01),
    "train": ("speed-up", True, 4.0),
    "sweep": ("share", False, 0.15),
    "calibrate": ("slope", False, 1.05),
    "certify": ("slope", False, 1.05),
    "estimator": ("speed-up", True, None),
    "start": ("times", False, 2.0),
    "answer": ("times", False, None),
}
HEAD = """# Speed

```
python benchmarks/speed.py                            # measure every row, then write this page anew
python benchmarks/speed.py --only certify --quick     # try one row with tiny sizes
```

Every row runs redx and its opponents in turn, several times, in one process or one after the other. The ratio is taken
within each repetition, so that both sides meet the same state of the machine; the table gives its median and, in
brackets, the smallest and the largest. Compare ratios, not seconds. Opponents are optional: `pip install
-e '.[onnx]' sentence-transformers`.
"""


class RowFile(BaseModel):
    """One row of bench.json."""

    model_config = ConfigDict(extra="allow")
    name: str
    ours: float
    opponents: dict[str, float]
    ratio: float
    low: float
    high: float
    about: str = ""
    details: dict[str, Any] = {}
    missing: dict[str, str] = {}


class BenchFile(BaseModel):
    """The content of bench.json."""

    rows: list[RowFile]
    machine: dict[str, str]


def make_page(bench: BenchFile) -> str:
    """Return the page as Markdown."""
    if not bench.rows:
        return f"{HEAD}\nNo measurements are committed yet; the first command above makes them.\n"
    machine = ", ".join(f"{name} {value}" for name, value in bench.machine.items() if value != "not installed")
    lines = [HEAD, f"Machine: {machine}.", "", "![Ratios of all rows](speed.svg)", ""]
    lines += ["| row | ratio | wanted | ours (s) | opponents (s) |", "|---|---:|---:|---:|---|"]
    for row in bench.rows:
        _, larger, bound = TARGETS.get(row.name, ("", True, None))
        wanted = "" if bound is None else f"{'≥' if larger else '≤'} {_ratio(row.name, bound)}"
        opponents = ", ".join(f"{name} {seconds:.4g}" for name, seconds in row.opponents.items())
        spread = f"{_ratio(row.name, row.ratio)} ({_ratio(row.name, row.low)} to {_ratio(row.name, row.high)})"
        lines.append(f"| {row.name} | {spread} | {wanted} | {row.ours:.4g} | {_cell(opponents)} |")
    lines += ["", "## What is measured", "", "| row | |", "|---|---|"]
    lines += [f"| {row.name} | {_cell(row.about)}. {_cell(' '.join(_facts(row)))} |" for row in bench.rows]
    return "\n".join(lines) + "\n"


def _facts(row: RowFile) -> list[str]:
    facts = [f"{name}: {_value(value)}." for name, value in row.details.items()]
    return facts + [f"{name}: {problem}." for name, problem in row.missing.items()]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(inner)}" for name, inner in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ratio(name: str, value: float) -> str:
    kind = TARGETS.get(name, ("", True, None))[0]
    if kind == "share":
        return f"{100 * value:.2g} %"
    return f"{value:.2f}" if kind == "slope" else f"{value:.3g}×"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def draw_ratios(bench: BenchFile, path: Path) -> None:
    """Draw how far every row with a bound is from it: above 1 the bound is kept."""
    import io

    from matplotlib.figure import Figure

    rows = [row for row in bench.rows if TARGETS.get(row.name, ("", True, None))[2] is not None]
    figure = Figure(figsize=(7, 0.5 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    for position, row in enumerate(reversed(rows)):
        _, larger, bound = TARGETS[row.name]
        assert bound is not None
        middle, *ends = (
            value / bound if larger else bound / max(value, 1e-9) for value in (row.ratio, row.low, row.high)
        )
        axes.plot([max(1e-3, min(ends)), max(1e-3, *ends)], [position] * 2, color="0.6", linewidth=4)
        axes.plot(max(1e-3, middle), position, "o", color="tab:blue" if middle >= 1 else "tab:red")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
    axes.set_xlabel("how many times better than the bound (1: just kept)")
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    write_bytes(path, buffer.getvalue())
