"""Compare the runtimes of the encoder: the share of equal answers of a finished run, and seconds in turn.

    python benchmarks/runtimes.py runs/intents --texts 3000 --repeat 3

The run reads texts and was trained with the runtime torch. The texts are validation queries of CLINC150, of which the
first `--texts` distinct ones count. For every other runtime it prints the share of texts to which the model gives the
same answer when it reads that runtime's features, and the seconds of torch over that runtime's (median, smallest and
largest of alternating repetitions, by processor time).
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from pathlib import Path

import torch

import redx
from redx.errors import RedxError
from redx.io.reading import read_json
from redx.model.answers import answer_features
from redx.models.backbones.language import FrozenLM, Pooling
from redx.models.backbones.runtimes import PACKAGES, Runtime
from redx.models.encoder import TextEncoder
from redx.tasks.intents.loading import QUERIES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True, help=f"folder with {QUERIES}")
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    model = redx.load(options.run)
    encoder = model.base.encoder
    if not isinstance(encoder, TextEncoder):
        raise RedxError(f"{options.run} reads no texts; give the folder of a run of intents.")
    frozen = encoder.frozen
    queries = read_json(options.data_dir / QUERIES, dict)["val"]
    texts = list(dict.fromkeys(text for text, _ in queries))[: options.texts]
    has_onnx = all(importlib.util.find_spec(name) for name in PACKAGES)
    runtimes: list[Runtime] = ["torch", *(["onnx"] if has_onnx else []), "int8"]
    pooling: Pooling = model.config.encoding.pooling
    sides = {name: FrozenLM(frozen.folder, frozen.blocks, pooling, runtime=name) for name in runtimes}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    answers: dict[str, list[object]] = {}
    for number in range(options.repeat + 1):
        for name, side in sides.items():
            start = time.process_time()
            rows = {text: row for batch in side.encode(texts) for text, row in batch}
            if number:  # the first repetition warms up
                seconds[name].append(time.process_time() - start)
                continue
            h = model.base.embed(torch.cat([rows[text] for text in texts]))
            answers[name] = [one.answer for one in answer_features(model, h).explain(model)]
    print(f"{len(texts)} validation queries, {torch.get_num_threads()} thread(s)")
    for name in runtimes[1:]:
        equal = sum(a == b for a, b in zip(answers[name], answers["torch"], strict=True)) / len(texts)
        ratios = [one / other for one, other in zip(seconds["torch"], seconds[name], strict=True)]
        line = f"{statistics.median(ratios):.2f}x of torch ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:6} {line}, equal answers {equal:.4f}")


if __name__ == "__main__":
    main()
