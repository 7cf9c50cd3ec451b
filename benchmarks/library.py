"""What a library of experts costs: changes in a loaded model, and a thousand experts beside five.

    python benchmarks/library.py runs/mnist

Times are given beside each other, from one run of this script; the thousand experts have random weights.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import redx
from redx.composition.rules import RuleId
from redx.model.model import Model
from redx.models import banks
from redx.models.banks import build_bank
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary
from redx.models.router import NetworkRouter, TrainedRouter
from redx.seeding import generator

BATCH, TOP = 64, 2


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    model = redx.load(parser.parse_args().run)
    shape = (BATCH, *model.info.shape)
    inputs = (255 * torch.rand(shape, generator=generator(0, "inputs"))).to(torch.uint8)
    model.predict(inputs)
    changes(model)
    print(f"\nA batch of {BATCH}, the first {TOP} experts of each example:")
    print(
        f"{'experts':>8}  {'load':>9}  {'first batch':>12}  {'a batch':>9}  {'ask all':>9}  {'read':>5}  {'memory':>10}"
    )
    for count in (5, 100, 1000):
        many(model, inputs, count)


def changes(model: Model) -> None:
    """Milliseconds of a change, and whether anything else moved."""
    name = model.experts.names[0]
    began = time.perf_counter()
    model.experts.fingerprint  # noqa: B018 - worked out once
    print(f"fingerprint of the base, once a model: {1e3 * (time.perf_counter() - began):.2f} ms")
    folder = (model.home or Path()) / "experts" / name
    kept = model.experts[name]
    others = {id(model.experts[other]) for other in model.experts.names if other != name}
    steps: dict[str, Callable[[], object]] = {
        "remove": lambda: model.experts.remove(name),
        "add (in memory)": lambda: model.experts.add(kept),
        "replace (in memory)": lambda: model.experts.replace(name, kept),
        "replace (from its folder)": lambda: model.experts.replace(name, folder),
    }
    times: dict[str, list[float]] = {step: [] for step in steps}
    for _ in range(50):
        for step, do in steps.items():
            began = time.perf_counter()
            do()
            times[step].append(1e3 * (time.perf_counter() - began))
    for step, found in times.items():
        print(f"{step:26} median {statistics.median(found):7.3f} ms, slowest {max(found):7.3f} ms")
    assert others == {id(model.experts[other]) for other in model.experts.names if other != name}, (
        "another expert moved"
    )


def many(model: Model, inputs: torch.Tensor, count: int) -> None:
    """A library of random experts on disk, loaded lazily and asked sparsely."""
    bank_id = model.config.trained_as(model.config.main_bank("residual"))
    settings = model.config.banks[bank_id]
    with tempfile.TemporaryDirectory() as scratch:
        names = [f"expert {number}" for number in range(count)]
        for name in names:
            bank = build_bank(settings, 1, model.base)
            banks.initialise_bank(bank, [generator(0, name)])
            tensors = {f"{bank_id}.{part}": value for part, value in banks.split_bank(bank)[0].items()}
            info = {"domain": name, "banks": {str(bank_id): settings.model_dump(mode="json")}}
            Expert(info, tensors).save(Path(scratch, name))
        before = _memory()
        began = time.perf_counter()
        found = {name: Expert.open(Path(scratch, name)) for name in names}
        library = ExpertLibrary(found, model.base, {bank_id: settings}, model.experts.ownership)
        router = NetworkRouter(model.base.width, count)
        router.fit(model.base.embed(model.read(inputs)))
        torch.nn.init.normal_(router.layers[-1].weight, generator=generator(0, "router"))  # pyright: ignore[reportArgumentType]
        info = dataclasses.replace(model.info, routed=library.names)
        trained, rule = TrainedRouter(router, library.names), str(RuleId("red", bank_id.name))
        sparse = Model.assemble(info, model.config, model.read, model.base, library, trained, rule=rule)
        loaded = time.perf_counter() - began
        began = time.perf_counter()
        sparse.predict(inputs, top=TOP)
        first = time.perf_counter() - began
        read, memory = sum(expert.loaded for expert in library), _memory() - before
        batch = _median(lambda: sparse.predict(inputs, top=TOP))
        everybody = _median(lambda: sparse.predict(inputs), 3)
        row = [f"{1e3 * each:7.2f} ms" for each in (loaded, first, batch, everybody)]
        print(f"{count:>8}  {row[0]:>9}  {row[1]:>12}  {row[2]:>9}  {row[3]:>9}  {read:>5}  {memory:>7.1f} MB")


def _median(do: Callable[[], object], times: int = 20) -> float:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def _memory() -> float:
    """Resident memory now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
