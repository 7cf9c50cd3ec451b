"""The rows `start` and `answer`: one question from the shell, and one question in a loaded model."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redx
from redx.errors import RedxError
from redx.models.encoder import TextEncoder
from speed_rows.texts import made_up_texts
from speed_rows.timing import BenchRow, BenchSettings, alternate, share, spread

IMPORT = "import torch"
DOMAINS = 3


@contextmanager
def text_run(settings: BenchSettings) -> Iterator[Path]:
    """Give the folder of a finished run that reads texts: the user's, or a small one that is made for a while."""
    if settings.run is not None:
        yield settings.run
        return
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "texts.jsonl")
        records = [
            {"text": text, "label": ["no", "yes"][number % 2], "domain": f"d{number % DOMAINS}"}
            for number, text in enumerate(made_up_texts(600))
        ]
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        folder, few = Path(scratch, "run"), {"base": 2, "experts": 1, "router": 1}
        redx.run(
            "jsonl",
            "quick",
            out=folder,
            file=str(file),
            backbone=settings.backbone,
            study="none",
            epochs=few,
            domain="domain",
        )
        yield folder


def bench_start(settings: BenchSettings) -> Iterator[BenchRow]:
    """Yield the row: `redx predict` with cached features and `redx --help`, against `import torch`."""
    with text_run(settings) as folder:
        question = made_up_texts(1)[0]
        commands = {
            "ours": ["-m", "redx", "predict", str(folder), question],
            "redx --help": ["-m", "redx", "--help"],
            IMPORT: ["-c", IMPORT],
        }
        redx.load(folder).predict([question])  # whatever is made on first use
        seconds = alternate(
            {name: lambda words=words: _run(words) for name, words in commands.items()}, settings.repeat
        )
    about = (
        "`redx predict` from the shell, features cached; ratio: its seconds over those of `python -c 'import torch'`"
    )
    row = share("start", seconds, IMPORT, about)
    helping = [ours / whole for ours, whole in zip(seconds["redx --help"], seconds[IMPORT], strict=True)]
    row.details["redx --help over import torch"] = spread(helping)
    yield row


def _run(words: list[str]) -> None:
    subprocess.run([sys.executable, *words], check=True, capture_output=True)


def bench_answer(settings: BenchSettings) -> Iterator[BenchRow]:
    """Yield the row: one new question in a loaded model, against the backbone alone."""
    questions = made_up_texts(12 if settings.quick else 400, seed=1)
    with text_run(settings) as folder:
        model = redx.load(folder)
        encoder = model.base.encoder
        if not isinstance(encoder, TextEncoder):
            raise RedxError(f"{folder} reads no texts; give the folder of a run that does with --run.")
        questions = encoder.frozen.cache.missing(questions)
        for text in questions[:4]:
            model.predict([text])
        ours, backbone = [], []
        for number, text in enumerate(questions):
            for side in ("ours", "backbone") if number % 2 else ("backbone", "ours"):
                start = time.perf_counter()
                model.predict([text]) if side == "ours" else list(encoder.frozen.encode([text]))
                (ours if side == "ours" else backbone).append(time.perf_counter() - start)
    about = (
        "one question in a loaded model, features not cached; ratio: our seconds over those of the backbone alone, p50"
    )
    row = share("answer", {"ours": ours, "backbone": backbone}, "backbone", about)
    extra = [(mine - theirs) * 1000 for mine, theirs in zip(ours, backbone, strict=True)]
    percent = {"ours": ours, "backbone": backbone}
    row.details.update({f"{side}, p99 ms": 1000 * _percentile(times, 0.99) for side, times in percent.items()})
    row.details["ms beside the backbone, p50"] = statistics.median(extra)
    yield row


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
