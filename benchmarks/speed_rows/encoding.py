"""The row `encode`: texts a second, against other ways to run the same weights."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from redx.models.backbones import hub
from redx.models.backbones.language import FrozenLM
from redx.models.backbones.runtimes import Runtime
from speed_rows.texts import short_texts
from speed_rows.timing import BenchRow, BenchSettings, absent, alternate, compare, spread

BATCH = 32  # texts of a batch of the opponents, the default of sentence-transformers
SORTED = "transformers, sorted by length"
OPPONENTS = {"sentence-transformers": "sentence_transformers", "ONNX Runtime": "onnxruntime"}
RUNTIMES: dict[str, Runtime] = {"ours, runtime onnx": "onnx", "ours, runtime int8": "int8"}


def bench_encode(settings: BenchSettings) -> Iterator[BenchRow]:
    """Yield the row: the same texts to mean states of the last block, by redx and by its opponents."""
    texts, source = short_texts(24 if settings.quick else 2000)
    folder = hub.model_folder(settings.backbone)
    depth = FrozenLM(folder, (-1,), "mean").blocks[0]
    frozen = FrozenLM(folder, (depth,), "mean")
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: list(frozen.encode(texts)),
        "transformers, in order": lambda: plain(frozen, texts),
        SORTED: lambda: plain(frozen, sorted(texts, key=len)),
    }
    missing = absent(OPPONENTS)
    with tempfile.TemporaryDirectory() as scratch:
        if "sentence-transformers" not in missing:
            model = sentence_transformer(folder)
            sides["sentence-transformers"] = lambda: model.encode(texts, batch_size=BATCH, show_progress_bar=False)
        if "ONNX Runtime" not in missing:
            session = export_onnx(frozen, Path(scratch))
            sides["ONNX Runtime"] = lambda: run_onnx(session, frozen, sorted(texts, key=len))
        for name, runtime in RUNTIMES.items():
            if runtime != "onnx" or "ONNX Runtime" not in missing:
                other = FrozenLM(folder, (depth,), "mean", runtime=runtime)
                sides[name] = lambda other=other: list(other.encode(texts))
        seconds = alternate(sides, settings.repeat)
    row = compare(
        "encode",
        seconds,
        SORTED,
        f"{len(texts)} short texts ({source}) through {folder.name}; ratio: seconds of transformers with texts "
        "sorted by length over ours",
        missing=missing,
    )
    rates = {side: len(texts) / value for side, value in {"ours": row.ours, **row.opponents}.items()}
    row.details.update({"texts a second": rates, "largest difference": difference(frozen, texts[:BATCH])})
    times = {name: zip(seconds[SORTED], seconds[name], strict=True) for name in RUNTIMES if name in seconds}
    for name, pairs in times.items():
        row.details[f"ratio of {name}"] = spread([one / other for one, other in pairs])
    yield row


def plain(frozen: FrozenLM, texts: Sequence[str]) -> list[torch.Tensor]:
    """Return the mean states of texts as transformers' own examples compute them, in padded batches."""
    means = []
    with torch.inference_mode():
        for start in range(0, len(texts), BATCH):
            batch = pad(frozen, texts[start : start + BATCH])
            states, mask = frozen.model(**batch).last_hidden_state, batch["attention_mask"][..., None]
            means.append((states * mask).sum(1) / mask.sum(1))
    return means


def pad(frozen: FrozenLM, texts: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return a padded batch of tokens with its mask."""
    batch = frozen.tokenizer(list(texts), padding="longest", truncation=False, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def difference(frozen: FrozenLM, texts: Sequence[str]) -> float:
    """Return the largest difference between our features and those of `plain`."""
    ours = {text: rows[0] for batch in frozen.encode(texts) for text, rows in batch}
    return float((torch.stack([ours[text] for text in texts]) - torch.cat(plain(frozen, texts))).abs().max())


def sentence_transformer(folder: Path) -> Any:
    """Return the same weights as sentence-transformers runs them, with the mean over tokens."""
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # pyright: ignore[reportMissingImports]

    words = Transformer(str(folder))
    return SentenceTransformer(modules=[words, Pooling(words.get_embedding_dimension())], device="cpu")


def export_onnx(frozen: FrozenLM, folder: Path) -> Any:
    """Return a session of ONNX Runtime for the model, with as many threads as torch."""
    import onnxruntime

    class States(torch.nn.Module):
        """Token ids and mask to the states of the last block."""

        def __init__(self) -> None:
            super().__init__()
            self.model = frozen.model  # loaded before the export: otherwise its weights have no values

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    batch = pad(frozen, ["a short text", "one more text that is longer"])
    axes = {"input_ids": {0: "texts", 1: "tokens"}, "attention_mask": {0: "texts", 1: "tokens"}}
    file = folder / "model.onnx"
    torch.onnx.export(
        States().eval(), tuple(batch.values()), str(file), input_names=list(batch), dynamic_axes=axes, dynamo=False
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def run_onnx(session: Any, frozen: FrozenLM, texts: Sequence[str]) -> list[Any]:
    """Return the mean states of texts as ONNX Runtime computes them, in padded batches."""
    means = []
    for start in range(0, len(texts), BATCH):
        batch = {name: value.numpy() for name, value in pad(frozen, texts[start : start + BATCH]).items()}
        states, mask = session.run(None, batch)[0], batch["attention_mask"][..., None]
        means.append((states * mask).sum(1) / mask.sum(1))
    return means
