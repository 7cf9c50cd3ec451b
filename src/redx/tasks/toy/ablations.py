"""Ablations of the toy: which properties of experts let them be mixed."""

from __future__ import annotations

from torch import Tensor

from redx.config import BankConfig, BankId, RunConfig
from redx.io.progress import progress
from redx.models.banks import Bank, run_bank
from redx.models.base import Base
from redx.report.content import Table
from redx.tasks.toy import task
from redx.training import datasets
from redx.training.banks import train_bank
from redx.training.datasets import SharedData

Case = tuple[str, str, BankConfig, int]  # title, form of the bank, its settings, number of experts


def run_ablations(config: RunConfig, base: Base, seed: int) -> list[Table]:
    """Return one table per ablation; every case trains its experts from scratch."""
    epochs, counts = (2000, (2, 4, 5, 10, 20, 25, 50)) if config.study == "full" else (200, (2, 10, 50))
    ablations = _cases(config, epochs, counts)
    columns = ("case", "own expert", "mean of all", "any router", "mean, worst segment", "largest error of an expert")
    note = (
        f"First seed, {epochs} steps per case. Accuracies are means over the segments, 'any router' is certified at "
        "ε = 1, and errors are of y, which goes from 0 to 1."
    )
    tables = []
    with progress("ablations", sum(map(len, ablations.values()))) as advance:
        for title, cases in ablations.items():
            rows = []
            for name, form, bank, count in cases:
                rows.append((name, *mixing_figures(form, bank, count, base, seed)))
                advance(1)
            tables.append(Table(title, columns, tuple(rows), note))
    return tables


def _cases(config: RunConfig, epochs: int, counts: tuple[int, ...]) -> dict[str, list[Case]]:
    """Return the cases of every ablation that the banks of the run allow, by title."""
    cases: dict[str, list[Case]] = {}
    if task.RESIDUAL in config.banks:
        residual = with_training(config.banks[task.RESIDUAL], epochs=epochs)
        capacities = ((64, 1.0), (64, 0.1), (64, 0.01), (16, 0.1), (4, 0.1), (1, 0.1))
        cases["Ablation: the base removed"] = [
            ("base + residual experts", "residual", residual, 5),
            ("residual experts without a base", "standalone", residual, 5),
        ]
        cases["Ablation: capacity of the residual experts"] = [
            (f"hidden {h}, scale {scale:g}", "residual", residual.model_copy(update={"hidden": h, "scale": scale}), 5)
            for h, scale in capacities
        ]
        cases["Ablation: number of residual experts"] = [
            (f"{count} experts", "residual", residual, count) for count in counts
        ]
    if task.MLP in config.banks:
        mlp = with_training(config.banks[task.MLP], epochs=epochs)
        cases["Ablation: number of MLP experts"] = [(f"{count} experts", "standalone", mlp, count) for count in counts]
        cases["Ablation: activation of the MLP experts"] = [
            (kind, "standalone", mlp.model_copy(update={"activation": kind}), 5) for kind in ("relu", "tanh", "gelu")
        ]
    return cases


def with_training(bank: BankConfig, **training: float) -> BankConfig:
    """Return the settings of a bank with these settings of its training changed."""
    return bank.model_copy(update={"training": bank.training.model_copy(update=training)})


def mixing_figures(form: str, settings: BankConfig, count: int, base: Base, seed: int) -> tuple[float, ...]:
    """Train experts and return how well they mix.

    Returns
    -------
    tuple of float
        Accuracy of the own expert, of the mean of all, under any router, of the mean in the worst segment; and the
        largest error of an expert.
    """
    data = task.load(task.TASKS["toy"].presets["default"], seed, count)
    per_expert = datasets.expert_datasets(data.domains, data.train, SharedData(data.train, data.train), data.train)
    size = len(per_expert[0].own)
    batch = min(size, settings.training.virtual_batch)
    epochs = max(1, settings.training.epochs * batch // size)  # as many steps for any number of experts
    settings = with_training(settings, batch=batch, virtual_batch=batch, epochs=epochs)
    bank = train_bank(BankId(form, f"ablation-{count}"), settings, per_expert, base, seed, data.unit)
    answers = expert_answers(form, bank, base, data.test.inputs)  # (N, K)
    labels, domains = data.test.labels, data.test.domains
    correct = answers.round() == labels[:, None]
    own = correct.gather(1, domains[:, None])[:, 0].double()
    mean = (answers.mean(1).round() == labels).double()
    worst = min(float(mean[domains == index].mean()) for index in range(count))
    error = float((answers - labels[:, None]).abs().max()) * task.UNIT
    return float(own.mean()), float(mean.mean()), float(correct.all(1).double().mean()), worst, error


def expert_answers(form: str, bank: Bank, base: Base, x: Tensor) -> Tensor:
    """Return the answer of every expert without the others, in units of the sum: (N, K)."""
    outputs = run_bank(bank, x)[..., 0]
    return (outputs + base.classify(x) if form == "residual" else outputs) / task.UNIT
