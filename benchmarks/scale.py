"""What 10,000 experts and a billion answers a day need: measured costs, a simulation of caches, and the arithmetic.

    python benchmarks/scale.py --out docs/results/scale.json
    python benchmarks/scale.py --read docs/results/scale.json    # print the tables again

Costs are CPU seconds of one thread, so that other work on the machine changes them little. Experts have the shape of
the task `intents` and random weights; texts are made up. docs/scale.md shows the tables.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from redx.config import BankId
from redx.io.files import write_json
from redx.io.hardware import describe_machine
from redx.models.backbones.base import IdentityEncoder
from redx.models.backbones.hub import model_folder
from redx.models.backbones.language import FrozenLM
from redx.models.banks import Bank, build_bank, initialise_bank, run_bank, split_bank
from redx.models.base import Base
from redx.models.expert import Expert
from redx.models.router import NetworkRouter
from redx.runs.presets import configure
from redx.seeding import generator

ANCHORED = BankId("residual", "anchored")
WORDS = (
    *("could", "you", "please", "tell", "me", "what", "how", "much", "money", "is", "left", "in", "my", "account"),
    *("card", "flight", "to", "from", "paris", "next", "monday"),
)
CAPACITIES = (100, 300, 1000, 3000, 10_000)
EXPONENTS = (0.6, 0.8, 1.0, 1.2)
ASSUMED = {
    "experts": 10_000,
    "answers_per_day": 1_000_000_000,
    "peak_factor": 3.0,  # the busiest second against the mean
    "experts_per_answer": 2,
    "cores_per_machine": 64,
    "use_of_cores": 0.6,  # at the peak, so that queues stay short
    "memory_per_machine_gb": 256,
    "bytes_per_answer": 2_000,  # question, answer, headers and log line
    "updates_per_day": 1_000,  # experts that are replaced
    "calibration_examples": 2_000,
    "large_expert_mb": 20.0,  # a LoRA adapter, for comparison
    "zipf": 1.0,
}


def main() -> None:
    """Measure, simulate, write the results and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the results")
    parser.add_argument("--read", type=Path, help="print the tables of these results instead of measuring")
    arguments = parser.parse_args()
    if arguments.read:
        print(render(json.loads(arguments.read.read_text())))
        return
    torch.set_num_threads(1)
    costs = measure()
    lru = [
        {"zipf": s, "capacity": m, "hits": simulate(s, m), "hits_sharded": simulate(s, m, shards=10)}
        for s in EXPONENTS
        for m in CAPACITIES
    ]
    facts = describe_machine()
    machine = {name: facts[name] for name in ("python", "system", "torch", "cores", "redx")}
    results = {"machine": machine, "measured": costs, "assumed": ASSUMED, "lru": lru}
    results["needs"] = work_out(results)
    if arguments.out:
        write_json(arguments.out, results)
    print(render(results))


# --- costs


def measure() -> dict[str, float]:
    """Return what one answer, one expert and one update cost on this machine."""
    config = configure("intents")
    settings, owning = config.banks[ANCHORED], config.ownership.bank
    width, classes = 384, 150
    base = Base(
        IdentityEncoder(), torch.randn(width, classes), torch.zeros(classes), torch.zeros(width), torch.ones(width)
    )
    seconds: dict[str, float] = {}
    folder = model_folder(config.backbone)
    frozen = FrozenLM(folder, config.encoding.blocks, "mean", "float32", "cpu", config.encoding.tokens)
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(5, 14))) for _ in range(400)]
    list(frozen.encode(texts[:50]))
    seconds["encode"] = _cpu(lambda: list(frozen.encode(texts)), 3) / len(texts)

    h = torch.randn(256, width)
    bank = _draw(build_bank(settings, 64, base))
    single = [_draw(build_bank(settings, 1, base)) for _ in range(64)]
    seconds["compose"] = ASSUMED["experts_per_answer"] * _cpu(lambda: [run_bank(one, h[:4]) for one in single]) / 256
    seconds["residual_of_one_expert"] = _cpu(lambda: run_bank(bank, h)) / (256 * 64)
    scorers = _draw(build_bank(owning, 64, base))
    seconds["score_of_one_expert"] = _cpu(lambda: run_bank(scorers, h)) / (256 * 64)
    router = NetworkRouter(width, ASSUMED["experts"], config.router.shape, config.router.hidden)
    with torch.no_grad():
        seconds["route"] = _cpu(lambda: router(h).topk(ASSUMED["experts_per_answer"])) / 256

    tensors = {f"{ANCHORED}.{name}": value for name, value in split_bank(single[0])[0].items()}
    tensors |= {f"ownership.{name}": value[0] for name, value in scorers.state_dict().items()}
    tensors |= {"ownership.classes": torch.ones(classes)}
    tensors |= {"ownership.calibration": torch.randn(ASSUMED["calibration_examples"])}
    info = {"domain": "bank", "banks": {str(ANCHORED): settings.model_dump(mode="json")}}
    with tempfile.TemporaryDirectory() as scratch:
        Expert(info, tensors).save(Path(scratch, "bank"))

        def load() -> None:
            expert = Expert.load(Path(scratch, "bank"))
            expert.bank(ANCHORED, settings, base)
            expert.ownership(config.ownership, base)

        seconds["load_expert"] = _cpu(load, 20)
    examples = torch.randn(ASSUMED["calibration_examples"], width)
    seconds["calibrate_expert"] = _cpu(lambda: (run_bank(single[0], examples), run_bank(scorers, examples[:32])))
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return {f"{name}_s": value for name, value in seconds.items()} | {"expert_bytes": size, "backbone_bytes": weights}


def _draw(bank: Bank) -> Bank:
    initialise_bank(bank, [generator(0, "scale", k) for k in range(next(bank.parameters()).shape[0])])
    return bank


def _cpu(do: Callable[[], object], times: int = 7) -> float:
    """Return the median CPU seconds of a function, after one call that does not count."""
    do()
    taken = []
    for _ in range(times):
        start = time.process_time()
        do()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


# --- caches


def simulate(exponent: float, capacity: int, shards: int = 1, requests: int = 60_000) -> float:
    """Return the share of experts found in the LRU of one machine when popularity falls as rank^-exponent.

    The first half of the requests fills the cache and is not counted. With shards, a request goes to the group of
    machines that its first expert belongs to, and its second expert may be any.
    """
    draw = torch.Generator().manual_seed(7)
    popularity = torch.arange(1, ASSUMED["experts"] + 1, dtype=torch.float64) ** -exponent
    owned = torch.randperm(ASSUMED["experts"], generator=draw) % shards == 0  # the experts of this machine's group
    firsts = torch.multinomial(popularity * owned, requests, True, generator=draw).tolist()
    others = torch.multinomial(popularity, requests, True, generator=draw).tolist()
    cache: OrderedDict[int, None] = OrderedDict()
    hits = asked = 0
    for number, pair in enumerate(zip(firsts, others, strict=True)):
        for expert in pair:
            known = expert in cache
            if known:
                cache.move_to_end(expert)
            else:
                cache[expert] = None
                if len(cache) > capacity:
                    cache.popitem(last=False)
            if number >= requests // 2:
                hits, asked = hits + known, asked + 1
    return round(hits / asked, 4)


# --- the arithmetic


def work_out(results: dict[str, Any]) -> dict[str, float]:
    """Return what the assumed load needs, from the measured costs."""
    costs, assumed = results["measured"], results["assumed"]
    mean = assumed["answers_per_day"] / 86_400
    peak = assumed["peak_factor"] * mean
    answer = costs["encode_s"] + costs["route_s"] + costs["compose_s"]
    all_scores = assumed["experts"] * costs["score_of_one_expert_s"]
    all_residuals = assumed["experts"] * costs["residual_of_one_expert_s"]

    def machines(seconds: float) -> int:
        return math.ceil(peak * seconds / (assumed["cores_per_machine"] * assumed["use_of_cores"]))

    (entry,) = [one for one in results["lru"] if one["zipf"] == assumed["zipf"] and one["capacity"] == 1000]
    misses = peak * assumed["experts_per_answer"] * (1 - entry["hits"])
    count = machines(answer)
    return {
        "answers_per_second": mean,
        "answers_per_second_peak": peak,
        "cpu_s_per_answer": answer,
        "share_encode": costs["encode_s"] / answer,
        "share_route": costs["route_s"] / answer,
        "share_compose": costs["compose_s"] / answer,
        "machines": count,
        "machines_with_all_scores": machines(answer + all_scores),
        "machines_with_certificates": machines(answer + all_scores + all_residuals),
        "memory_of_all_experts_gb": assumed["experts"] * costs["expert_bytes"] / 1e9,
        "memory_of_all_large_experts_gb": assumed["experts"] * assumed["large_expert_mb"] / 1e3,
        "lru_1000_large_gb": assumed["large_expert_mb"],
        "misses_per_second_large": misses,
        "network_misses_large_gb_s": misses * assumed["large_expert_mb"] / 1e3,
        "network_misses_large_per_machine_gbit_s": misses * assumed["large_expert_mb"] / 1e3 * 8 / count,
        "network_answers_gb_s": peak * assumed["bytes_per_answer"] / 1e9,
        "network_updates_gb_day": assumed["updates_per_day"] * costs["expert_bytes"] * count / 1e9,
        "update_cpu_s_day_per_machine": assumed["updates_per_day"]
        * (costs["load_expert_s"] + costs["calibrate_expert_s"]),
    }


def render(results: dict[str, Any]) -> str:
    """Return the tables of docs/scale.md."""
    costs, needs = results["measured"], results["needs"]
    lines = ["| cost, one thread | CPU time |", "|---|---|"]
    names = {
        "encode_s": "encode one text (MiniLM, 5 to 14 words)",
        "route_s": "route among 10,000 experts, choose two",
        "compose_s": "run two experts of one answer",
        "score_of_one_expert_s": "ownership score of one expert, stacked",
        "residual_of_one_expert_s": "residual of one expert, stacked",
        "load_expert_s": "load an expert's files, with all checks",
        "calibrate_expert_s": "one expert on 2,000 calibration examples",
    }
    lines += [f"| {text} | {_time(costs[name])} |" for name, text in names.items()]
    lines += [f"| memory of one expert | {costs['expert_bytes'] / 1e6:.2f} MB |"]
    lines += [f"| weights of the backbone | {costs['backbone_bytes'] / 1e6:.0f} MB |", ""]
    lines += ["| a billion answers a day | |", "|---|---|"]
    rows = [
        ("answers a second, mean and peak", f"{needs['answers_per_second']:,.0f} and "
         f"{needs['answers_per_second_peak']:,.0f}"),
        ("CPU time of an answer", _time(needs["cpu_s_per_answer"])),
        ("of it encoding, routing, experts", ", ".join(f"{needs[f'share_{part}']:.1%}" for part in
                                                       ("encode", "route", "compose"))),
        ("machines of 64 cores", f"{needs['machines']:,}"),
        ("… if every answer needs the ownership of all 10,000 experts", f"{needs['machines_with_all_scores']:,}"),
        ("… and for their residuals, for an exact radius", f"{needs['machines_with_certificates']:,}"),
        ("memory of all experts, on each machine", f"{needs['memory_of_all_experts_gb']:.1f} GB"),
        ("network of questions and answers, all machines", f"{needs['network_answers_gb_s']:.2f} GB/s"),
        ("network of 1,000 updates, all machines", f"{needs['network_updates_gb_day']:.0f} GB a day"),
        ("CPU time of 1,000 updates on each machine", f"{needs['update_cpu_s_day_per_machine']:.0f} s a day"),
        ("memory of all experts of 20 MB", f"{needs['memory_of_all_large_experts_gb']:.0f} GB"),
        ("… misses of an LRU of 1,000 of them, all machines", f"{needs['misses_per_second_large']:,.0f} a second"),
        ("… network of these misses, a machine", f"{needs['network_misses_large_per_machine_gbit_s']:.0f} Gbit/s"),
    ]  # fmt: skip
    lines += [f"| {name} | {value} |" for name, value in rows]
    lines += ["", "| hits of the LRU | " + " | ".join(f"{size:,} experts" for size in CAPACITIES) + " |"]
    lines += ["|---" * (len(CAPACITIES) + 1) + "|"]
    for exponent in EXPONENTS:
        for key, text in (("hits", "any machine"), ("hits_sharded", "ten groups of machines")):
            row = [f"{one[key]:.1%}" for one in results["lru"] if one["zipf"] == exponent]
            lines.append(f"| Zipf {exponent}, {text} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


if __name__ == "__main__":
    main()
