"""Five experts from five processes, in three precisions, from different sizes of data, composed into one model.

    redx run mnist --out runs/mnist
    python examples/heterogeneity.py runs/mnist      # without a run: on a small one, to see how it goes

Every owner gets the base and the shared subset of the run, its own images in a file, and nothing else. The experts
are then put in the place of the run's own. For comparison the same experts are kept in float32 throughout.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch

import redx
from redx.composition import certificate
from redx.data.dataset import Split
from redx.runs import folder
from redx.runs.diff import SplitAnswers
from redx.tasks import get_task
from redx.training import features

OWNERS = (("float32", 1.0), ("bfloat16", 0.5), ("float16", 0.25), ("bfloat16", 1.0), ("float16", 0.1))
NEEDED = ("config.json", "seed-{}/model.json", "seed-{}/base.safetensors", "seed-{}/shared.safetensors")


def main() -> None:
    """Train apart, compose, and print what other precisions and sizes cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="folder of a finished run of mnist")
    parser.add_argument("--out", type=Path, default=Path("heterogeneity.md"), help="table to write")
    given = parser.parse_args()
    run: Path = given.run or small().folder
    config = folder.read_config(run)
    seed = config.seeds[0]
    data = get_task(config.task).load(config, seed)
    model = redx.load(run)
    test = features.embed_split(config, model.base, data.test)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        for name in (each.format(seed) for each in NEEDED):
            (place / "base" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run / name, place / "base" / name)
        for index, (domain, (_, share)) in enumerate(zip(data.domains, OWNERS, strict=True)):
            mine = (data.train.domains == index).nonzero()[:, 0]
            some = data.train.only(mine[: round(share * len(mine))])
            numpy.savez(place / f"{domain}.npz", x=some.inputs.numpy(), y=some.labels.numpy())
        mixed = {domain: dtype for domain, (dtype, _) in zip(data.domains, OWNERS, strict=True)}
        train(place, mixed, "mixed")
        train(place, dict.fromkeys(data.domains, "float32"), "float32")
        lines = [
            "| experts | red, clean | certified ε = 1 | sum | bytes |",
            "|---|---:|---:|---:|---:|",
            line("of the run: float32, all data", model, test, sorted((model.home or place).glob("experts/*/*.safe*"))),
        ]
        for kind, told in (("float32", "trained apart, all float32"), ("mixed", "trained apart, three precisions")):
            for domain in data.domains:
                model.experts.replace(domain, place / kind / domain)
            lines.append(line(told, model, test, sorted((place / kind).rglob("*.safetensors"))))
    sizes = ", ".join(
        f"{domain}: {dtype}, {share:.0%}" for domain, (dtype, share) in zip(data.domains, OWNERS, strict=True)
    )
    told = "\n".join([*lines, "", f"Precision and share of its domain's data: {sizes}."])
    given.out.write_text(told + "\n")
    print(told)


def small() -> redx.Run:
    """A run that is over in half a minute and shows the way, not the figures."""
    few = {"limit": 1000, "epochs": {"base": 1, "experts": 1, "router": 1}, "study": "none"}
    return redx.run("mnist", "quick", out="runs/mnist-quick", **few)


def train(place: Path, dtypes: dict[str, str], kind: str) -> None:
    """One process an expert, all at once, a thread each."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = []
    for domain, dtype in dtypes.items():
        words = ["train", str(place / "base"), "--domain", domain, "--data", str(place / f"{domain}.npz")]
        words += ["--dtype", dtype, "--out", str(place / kind / domain)]
        command = [sys.executable, "-m", "redx", "experts", *words]
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit("An expert could not be trained; run `redx experts train` by hand to see why.")


def line(title: str, model: redx.Model, test: Split, files: list[Path]) -> str:
    """Return a row of the table."""
    figures = []
    for rule in ("red", "sum"):
        with model.using(rule), torch.no_grad():
            answers = SplitAnswers.compute(model, test)
        correct = answers.correct()
        certified = certificate.certified_accuracy(answers.certified.radius, correct, 1.0)
        figures.append((float(correct.double().mean()), certified))
    size = sum(file.stat().st_size for file in files)
    return f"| {title} | {figures[0][0]:.4f} | {figures[0][1]:.4f} | {figures[1][0]:.4f} | {size:,} |"


if __name__ == "__main__":
    main()
