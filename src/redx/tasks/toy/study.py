"""What the toy experiments show: accuracy by segment before and after mixing, Proposition 3, ablations, pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redx.composition import certificate, metrics
from redx.composition.evaluation import Banks, match_banks, predict
from redx.composition.rules import RULES, RuleId
from redx.config import BankConfig, BankId, RunConfig
from redx.data.dataset import Data
from redx.io.progress import progress
from redx.models.banks import Bank, run_bank
from redx.models.base import Base
from redx.models.composed import Model
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.tasks.toy import task
from redx.training import datasets
from redx.training.banks import train_bank
from redx.training.datasets import SharedData

MIXTURES = {  # rule to what the experiment calls it
    "oracle/linear": "A, own expert (before mixing)",
    "uniform/linear": "A, outputs averaged",
    "average/linear": "A, parameters averaged",
    "oracle/mlp": "B, own expert (before mixing)",
    "uniform/mlp": "B, outputs averaged",
    "average/mlp": "B, parameters averaged",
    "base": "C, base only",
    "red-oracle/residual": "C, base + own expert (before mixing)",
    "fixed/residual": "C, base + all experts",
}


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """All findings: those that need no training from every seed, the ablations from the first."""
    first = config.seeds[0]
    segments, by_rule = by_segment(data[config.seeds[0]], parts)
    theory, proposition = bound(models)
    ablations = ablate(config, models[first].base, first)
    facts: dict[str, Any] = {"seeds": list(config.seeds), "segments": by_rule, "proposition_3": proposition}
    tables = tuple(table for table in (segments, theory, *ablations) if table.rows)
    return Study(facts, tables, (diagonal(models[first]), surface(models[first])))


def by_segment(data: Data, parts: dict[int, Banks]) -> tuple[Table, dict[str, dict[str, list[float]]]]:
    """Accuracy in every segment for every seed, before and after mixing."""
    facts: dict[str, dict[str, list[float]]] = {}
    for seed, banks in parts.items():
        for rule, bank, found in match_banks(banks, tuple(RULES)):
            name = str(RuleId(rule.name, bank))
            if name in MIXTURES:
                right = predict(rule, found, rule.weights(found)) == found.labels
                shares = metrics.by_domain(right, found.domains, data.domains).values()
                facts.setdefault(name, {})[str(seed)] = list(shares)
    rows = tuple(
        (title, seed, *shares, sum(shares) / len(shares))
        for name, title in MIXTURES.items()
        for seed, shares in facts.get(name, {}).items()
    )
    note = (
        "An average of experts is right where their errors cancel. Linear experts make none, residual experts hardly "
        "any. An MLP expert is drawn towards its own segment's sums everywhere else, so their mean is too high for "
        "small numbers and too low for large ones; where it crosses the truth on its way, in or near the middle, a "
        "few answers are right by luck of the seed, all that is left of five good experts."
    )
    columns = ("mixture", "seed", *data.domains, "mean")
    return Table("Accuracy by segment, before and after mixing", columns, rows, note), facts


def bound(models: dict[int, Model]) -> tuple[Table, dict[str, Any]]:
    """Proposition 3 on the whole grid: no mixture errs by more than the largest residual."""
    x = task.read(task.pairs(1, task.TOP))
    truth = x.sum(1) / 2
    rows, facts = [], {}
    for seed, model in models.items():
        if task.RESIDUAL not in model.banks:
            continue
        base, said = model.base.classify(x), run_bank(model.bank(task.RESIDUAL), x)
        corners = base[:, None] + said  # (N, K, 1)
        low, high = certificate.output_interval(base, corners)
        epsilon = float(said.abs().max())
        error = float(torch.maximum((low - truth).abs(), (high - truth).abs()).max())
        holds = error <= epsilon + 1e-6  # float32 rounding of the base itself
        rows.append((seed, epsilon, error, "holds" if holds else "violated", 200 * epsilon))
        facts[str(seed)] = {"epsilon": epsilon, "largest_error": error, "holds": holds}
    note = (
        "Over all 10,000 pairs of 1..100, inside and outside the segments. The largest error is exact over all "
        "mixtures: an affine function is extreme at the corners of the simplex. An answer is right while it errs "
        "by less than half a unit of the sum."
    )
    columns = ("seed", "ε = max |r_i|", "largest error of any mixture", "Proposition 3", "ε in units of the sum")
    return Table("Proposition 3 measured", columns, tuple(rows), note), facts


def ablate(config: RunConfig, base: Base, seed: int) -> list[Table]:
    """The ablations: what makes experts mixable."""
    epochs, counts = (2000, (2, 4, 5, 10, 20, 25, 50)) if config.study == "full" else (200, (2, 10, 50))
    todo: dict[str, list[tuple[str, str, BankConfig, int]]] = {}  # title to cases: name, form, bank, number of experts
    residual_id, mlp_id = task.RESIDUAL, task.MLP
    if residual_id in config.banks:
        residual = change(config.banks[residual_id], epochs=epochs)
        weaker = ((64, 1.0), (64, 0.1), (64, 0.01), (16, 0.1), (4, 0.1), (1, 0.1))
        todo["Ablation: the base removed"] = [
            ("base + residual experts", "residual", residual, 5),
            ("residual experts without a base", "standalone", residual, 5),
        ]
        todo["Ablation: capacity of the residual experts"] = [
            (f"hidden {h}, scale {scale:g}", "residual", residual.model_copy(update={"hidden": h, "scale": scale}), 5)
            for h, scale in weaker
        ]
        todo["Ablation: number of residual experts"] = [
            (f"{count} experts", "residual", residual, count) for count in counts
        ]
    if mlp_id in config.banks:
        mlp = change(config.banks[mlp_id], epochs=epochs)
        todo["Ablation: number of MLP experts"] = [(f"{count} experts", "standalone", mlp, count) for count in counts]
        todo["Ablation: activation of the MLP experts"] = [
            (kind, "standalone", mlp.model_copy(update={"activation": kind}), 5) for kind in ("relu", "tanh", "gelu")
        ]
    columns = ("case", "own expert", "mean of all", "any router", "mean, worst segment", "largest error of an expert")
    note = (
        f"First seed, {epochs} steps each. Accuracies are means over the segments, 'any router' is certified at ε = 1, "
        "and errors are of y, which goes from 0 to 1."
    )
    tables = []
    with progress("ablations", sum(map(len, todo.values()))) as advance:
        for title, cases in todo.items():
            rows = []
            for name, form, bank, count in cases:
                rows.append((name, *mixability(form, bank, count, base, seed)))
                advance(1)
            tables.append(Table(title, columns, tuple(rows), note))
    return tables


def change(bank: BankConfig, **training: float) -> BankConfig:
    """The same bank, trained otherwise."""
    return bank.model_copy(update={"training": bank.training.model_copy(update=training)})


def mixability(form: str, settings: BankConfig, count: int, base: Base, seed: int) -> tuple[float, ...]:
    """Train experts and mix them: accuracy at home, of the mean, under any router; how far an expert errs."""
    data = task.load(task.TASKS["toy"].presets["default"], seed, count)
    taught = datasets.expert_datasets(data.domains, data.train, SharedData(data.train, data.train), data.train)
    size = len(taught[0].own)
    batch = min(size, settings.training.virtual_batch)
    epochs = max(1, settings.training.epochs * batch // size)  # as many steps whatever the number of experts
    settings = change(settings, batch=batch, virtual_batch=batch, epochs=epochs)
    bank = train_bank(BankId(form, f"ablation-{count}"), settings, taught, base, seed, data.unit)
    said = alone(form, bank, base, data.test.inputs)  # (N, K)
    labels, domains = data.test.labels, data.test.domains
    right = said.round() == labels[:, None]
    home = right.gather(1, domains[:, None])[:, 0].double()
    mean = (said.mean(1).round() == labels).double()
    worst = min(float(mean[domains == index].mean()) for index in range(count))
    error = float((said - labels[:, None]).abs().max()) * task.UNIT
    return float(home.mean()), float(mean.mean()), float(right.all(1).double().mean()), worst, error


def alone(form: str, bank: Bank, base: Base, x: Tensor) -> Tensor:
    """What each expert answers alone, in units of the sum: (N, K)."""
    said = run_bank(bank, x)[..., 0]
    return (said + base.classify(x) if form == "residual" else said) / task.UNIT


FORMS = ("standalone", "residual")
TITLES = {"linear": "A: linear experts", "mlp": "B: MLP experts", "residual": "C: base + residual experts"}


def told(model: Model, x: Tensor) -> list[tuple[str, Tensor]]:
    """The answers of each bank's experts, by bank."""
    return [
        (bank_id.name, alone(bank_id.form, model.bank(bank_id), model.base, x))
        for bank_id in model.banks
        if bank_id.form in FORMS
    ]


def diagonal(model: Model) -> Figure:
    """The learned functions along a = b."""
    numbers = torch.arange(1, task.TOP + 1)
    where = tuple(map(float, numbers))
    panels = []
    for name, said in told(model, task.read(torch.stack([numbers, numbers], 1))):
        lines = [Line(f"expert {segment}", where, _round(said[:, k])) for k, segment in enumerate(model.experts.names)]
        lines.append(Line("mean of all", where, _round(said.mean(1))))
        lines.append(Line("truth", where, _round(2.0 * numbers), dashed=True))
        panels.append(Panel(TITLES[name], "a = b", "answer", tuple(lines)))
    return Figure("diagonal", "The learned functions along the diagonal a = b.", tuple(panels))


def surface(model: Model) -> Figure:
    """How far the mean of all experts errs, for every pair."""
    numbers = torch.arange(1, task.TOP + 1, 2)
    grid = torch.cartesian_prod(numbers, numbers)
    panels = []
    for name, said in told(model, task.read(grid)):
        error = (said.mean(1) - grid.sum(1)).abs().view(len(numbers), -1).T  # rows are b
        rows = tuple(_round(row) for row in error)
        panels.append(Panel(TITLES[name], "a", "b", grid=rows, extent=(1, task.TOP, 1, task.TOP)))
    caption = "Absolute error of the mean of all experts, in units of the sum (below 0.5 the answer is right)."
    return Figure("surface", caption, tuple(panels))


def _round(values: Tensor) -> tuple[float, ...]:
    return tuple(round(float(value), 3) for value in values)
