"""Which α? Clean and certified accuracy against α on the part of validation that no cut-off was taken from.

    python benchmarks/tune_alpha.py RUN

The test split is never looked at. The rule for a default: the largest certified accuracy, then the largest clean one,
then the largest α, which lets experts speak most.
"""

import argparse
import dataclasses
from pathlib import Path

import torch

from redx.composition import certificate, rules
from redx.composition.evaluation import certify
from redx.config import BankId
from redx.runs.folder import load, read_config
from redx.tasks import get_task
from redx.training import datasets, features

ALPHAS = (0.1, 0.05, 0.03, 0.01, 0.005, 0.003, 0.001)


def main() -> None:
    """Print a line an α, the mean over the run's seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    folder: Path = parser.parse_args().run
    config = read_config(folder)
    rows: dict[str, list[tuple[float, ...]]] = {}
    for seed in config.seeds:
        model, data = load(folder, seed), get_task(config.task).load(config, seed)
        choose, _ = datasets.split_validation(data, config.ownership.calibration, seed)
        held = features.embed_split(config, model.base, data.validation).only(choose)
        free = model.parts_of(held.inputs, BankId("residual", "anchored"), held.labels, held.domains)
        for alpha in (None, *ALPHAS):
            active = (
                model.experts.active(held.inputs, alpha) if alpha else torch.ones_like(free.gates, dtype=torch.bool)
            )
            bound = dataclasses.replace(free, residuals=free.residuals * active[..., None])
            certified = certify(rules.get_rule("red"), bound)
            right = certified.predicted == bound.labels
            own = active.gather(1, bound.domains[:, None]).double().mean()
            figures = (
                float(right.double().mean()),
                certificate.certified_accuracy(certified.radius, right, 1.0),
                float(own),
            )
            rows.setdefault("no cut-off" if alpha is None else f"α = {alpha:g}", []).append(figures)
    print(f"{'':12}  clean   certified ε=1  own expert active   ({len(config.seeds)} seeds)")
    for name, found in rows.items():
        clean, certified, own = (sum(column) / len(found) for column in zip(*found, strict=True))
        print(f"{name:12}  {clean:.4f}  {certified:.4f}         {own:.4f}")


if __name__ == "__main__":
    main()
