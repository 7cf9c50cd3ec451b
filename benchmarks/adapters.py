"""What composing adapters costs: exactness against plain peft, and tokens a second against separate generations.

    python benchmarks/adapters.py runs/adapters

All times are from one run of this script, in turn, and given as ratios: on a busy machine only ratios mean something.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from redx.adapters.base import load_base
from redx.adapters.composed import ComposedLM
from redx.adapters.library import library_folder, read_library

PROMPT = "The following text is licensed under the terms of"


def main() -> None:
    """Print exactness and speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--adapters", type=int, default=4, help="number K of adapters that are composed")
    parser.add_argument("--tokens", type=int, default=24, help="new tokens of a generation")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.run = library_folder(options.run)
    library = read_library(options.run)
    names = library.names[: options.adapters]
    base = load_base(library.base)
    composed = ComposedLM(base, run=options.run)
    for name in names:
        composed.add(name, options.run / "adapters" / name)
    _exactness(composed, options.run, names)
    _speed(composed, options.run, names, options.tokens, options.repeats)


def _plain(composed: ComposedLM, folder: Path | None) -> Any:
    model = AutoModelForCausalLM.from_pretrained(composed.base.folder, dtype=torch.float32)
    return (model if folder is None else PeftModel.from_pretrained(model, folder)).eval()


def _exactness(composed: ComposedLM, run: Path, names: list[str]) -> None:
    """Print the largest difference of logits between one-hot composition and plain peft."""
    tokens = composed.base.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    largest = {}
    for name in [None, *names]:
        weights = [float(other == name) for other in names]
        scores = composed.scores(PROMPT, weights=weights)
        with torch.inference_mode():
            logits = _plain(composed, run / "adapters" / name if name else None)(input_ids=tokens).logits[0, -1]
        largest[name or "base"] = float((scores - logits).abs().max())
    print("one-hot composition against plain peft, largest difference of a logit")
    for name, value in largest.items():
        print(f"  {name:12s} {value:.2e}")


def _speed(composed: ComposedLM, run: Path, names: list[str], tokens: int, repeats: int) -> None:
    """Print tokens a second: separate generations, all adapters in one batch, and the top adapter alone."""
    prompt = composed.base.tokenizer(PROMPT, return_tensors="pt")
    plain = _plain(composed, run / "adapters" / names[0])
    equal = [1 / len(names)] * len(names)

    def plain_one() -> int:
        output = plain.generate(**prompt, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        return output.shape[1] - prompt["input_ids"].shape[1]

    ways: dict[str, Callable[[], int]] = {  # each returns how many tokens it made
        "plain peft, one adapter": plain_one,
        "composed, all adapters": lambda: len(composed.generate(PROMPT, tokens, weights=equal).tokens),
        "composed, top 1": lambda: len(composed.generate(PROMPT, tokens, weights={names[0]: 1.0}, top=1).tokens),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            made = way()
            seconds[name].append((time.perf_counter() - start) / made)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    one = median["plain peft, one adapter"]
    print(f"K = {len(names)}, at most {tokens} tokens, median of {repeats}")
    for name, value in median.items():
        print(f"  {name:26s} {1 / value:7.2f} tokens a second")
    separate = (len(names) + 1) * one
    together = median["composed, all adapters"]
    print(f"  all adapters against {len(names) + 1} separate generations: {separate / together:.2f}x")
    print(f"  top 1 against plain peft with one adapter: {one / median['composed, top 1']:.2f}x")


if __name__ == "__main__":
    main()
