"""Measure `redx serve` for adapters: streams together against one after the other, and what routing adds to a pass.

    python benchmarks/lm_serve.py
    python benchmarks/lm_serve.py --backbone FOLDER --tokens 64

It makes five random LoRA adapters of the base, serves them, and asks for STREAMS texts of different length, first one
after the other and then all at once. It prints tokens a second, their ratio, and how many texts are the same. Then it
prints how long the choice among K ownership scores takes, over the pass of the base that reads the prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from redx.adapters.choosing import PromptRouter

STREAMS, ADAPTERS, ROUNDS = 16, 5, 30
TEXT = "The house stands where two rivers meet and nobody in the valley knows who built it or when"


class Case(NamedTuple):
    """What all streams ask for."""

    title: str
    models: Sequence[str]
    own: dict[str, Any]


def make_library(backbone: str, folder: Path) -> Path:
    """Write random adapters of a base and return the library."""
    from peft import LoraConfig, get_peft_model

    from redx.adapters.base import load_base
    from redx.adapters.library import add_adapter

    run, model = folder / "library", load_base(backbone).model
    draw = torch.Generator().manual_seed(0)
    for index in range(ADAPTERS):
        config = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        adapted: Any = get_peft_model(model, config)
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.02 * torch.randn(parameter.shape, generator=draw))
        adapted.save_pretrained(str(folder / f"a{index}"))
        model = adapted.unload()
    base = load_base(backbone)
    for index in range(ADAPTERS):
        add_adapter(run, folder / f"a{index}", base)
    return run


@contextmanager
def served(library: Path) -> Iterator[str]:
    """Serve a library in a process of its own and yield the address."""
    command = [sys.executable, "-m", "redx", "serve", str(library), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def compare(url: str, case: Case, tokens: int) -> None:
    """Print the speed of streams one after the other and together."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}v1", api_key="none", timeout=3600) as client:

        def stream(index: int) -> tuple[str, int]:
            chunks = client.completions.create(
                model=case.models[index % len(case.models)],
                prompt=" ".join(TEXT.split()[: 3 + index]),
                max_tokens=tokens,
                stream=True,
                extra_body={"redx": case.own} if case.own else None,
            )
            texts = [chunk.choices[0].text for chunk in chunks]
            return "".join(texts), len(texts)

        stream(0)  # the first one is slower
        start = time.perf_counter()
        alone = [stream(index) for index in range(STREAMS)]
        apart = time.perf_counter() - start
        start = time.perf_counter()
        with ThreadPoolExecutor(STREAMS) as threads:
            together = list(threads.map(stream, range(STREAMS)))
        joint = time.perf_counter() - start
    rates = [sum(count for _, count in texts) / seconds for texts, seconds in ((alone, apart), (together, joint))]
    same = sum(one == other for one, other in zip(alone, together, strict=True))
    print(f"{case.title:<34} {rates[0]:7.1f} {rates[1]:9.1f} {rates[1] / rates[0]:6.2f} {same:5d} of {STREAMS}")


def median(work: Callable[[], object]) -> float:
    """Return the median seconds of several calls."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure_routing(backbone: str) -> None:
    """Print what the choice of an adapter adds to the pass of the base."""
    from redx.adapters.base import load_base
    from redx.adapters.choosing import PromptRouter
    from redx.config import RouterConfig
    from redx.models.router import build_router

    torch.set_num_threads(1)
    base = load_base(backbone)
    tokens = torch.tensor(base.tokenizer(" ".join([TEXT] * 4))["input_ids"])
    for count in (5, 1_000):
        names = [f"a{index}" for index in range(count)]
        scores = {name: build_router(base.width, 2, RouterConfig(shape="linear")) for name in names}
        print_routing(PromptRouter(base, names, scores), tokens)


def print_routing(router: PromptRouter, tokens: torch.Tensor) -> None:
    """Print the time of the pass, of the scores, and of the whole choice."""
    state = router.read(tokens)
    read = median(lambda: router.read(tokens))
    product, choose = median(lambda: router.stacked(state[None])), median(lambda: router.choose(state))
    print(
        f"K = {len(router.names):5,}: the pass over {len(tokens)} tokens {1e3 * read:.1f} ms, "
        f"the scores {1e3 * product:.3f} ms ({product / read:.5f} of it), "
        f"the whole choice {1e3 * choose:.3f} ms ({choose / read:.5f} of it)"
    )


def main() -> None:
    """Make a library, serve it, and print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="smollm2-135m", help="language model: an embedded one, or a folder")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of a stream")
    options = parser.parse_args()
    adapters = [f"a{index}" for index in range(ADAPTERS)]
    cases = [
        Case("base", ["base"], {}),
        Case("one adapter each, five in all", adapters, {}),
        Case("redx, the heaviest adapter", ["redx"], {"top": 1}),
        Case("redx, all rows, with radii", ["redx"], {}),
    ]
    with tempfile.TemporaryDirectory(prefix="redx-") as scratch:
        library = make_library(options.backbone, Path(scratch))
        print(f"{'tokens a second':<34} {'alone':>7} {'together':>9} {'ratio':>6} {'same text':>11}")
        with served(library) as url:
            for case in cases:
                compare(url, case, options.tokens)
    measure_routing(options.backbone)


if __name__ == "__main__":
    main()
