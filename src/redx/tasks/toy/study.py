"""The study of the toy: accuracy by segment before and after mixing, Proposition 3, ablations, figures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redx.composition import certificate, metrics
from redx.composition.evaluation import Banks, match_banks, predict
from redx.composition.rules import RuleId, general_rules
from redx.config import SHARED_ONLY, BankConfig, BankId, RunConfig
from redx.data.dataset import Data
from redx.data.inputs import read_pairs
from redx.io.progress import progress
from redx.model.model import Model
from redx.models.banks import Bank, run_bank
from redx.models.base import Base
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.tasks.toy import task
from redx.training import datasets
from redx.training.banks import train_bank

MIXTURES = {  # rule to its title in the table
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
FORMS = ("standalone", "residual")
TITLES = {"linear": "A: linear experts", "mlp": "B: MLP experts", "residual": "C: base + residual experts"}
Case = tuple[str, str, BankConfig, int]  # title, form of the bank, its settings, number of experts


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """Return the results of every seed; ablations, which train experts, are of the first seed alone."""
    first = config.seeds[0]
    segments, accuracies = segment_accuracy(data[config.seeds[0]], parts)
    bounds, proposition = error_bound(models)
    ablations = run_ablations(config, models[first].base, first)
    facts: dict[str, Any] = {"seeds": list(config.seeds), "segments": accuracies, "proposition_3": proposition}
    tables = tuple(table for table in (segments, bounds, *ablations) if table.rows)
    return Study(facts, tables, (diagonal_figure(models[first]), error_figure(models[first])))


def segment_accuracy(data: Data, parts: dict[int, Banks]) -> tuple[Table, dict[str, dict[str, list[float]]]]:
    """Return the accuracy in every segment before and after mixing, as a table and by rule and seed."""
    facts: dict[str, dict[str, list[float]]] = {}
    for seed, banks in parts.items():
        for rule, bank, outputs in match_banks(banks, general_rules()):
            name = str(RuleId(rule.name, bank))
            if name in MIXTURES:
                correct = predict(rule, outputs, rule.weights(outputs)) == outputs.true_labels()
                shares = metrics.by_domain(correct, outputs.domains, data.domains).values()
                facts.setdefault(name, {})[str(seed)] = list(shares)
    rows = tuple(
        (title, seed, *shares, sum(shares) / len(shares))
        for name, title in MIXTURES.items()
        for seed, shares in facts.get(name, {}).items()
    )
    note = (
        "An average of experts is correct where their errors cancel. Linear experts make none, residual experts hardly "
        "any. An MLP expert is drawn towards its own segment's sums everywhere else, so the mean of all is too high "
        "for small numbers and too low for large ones. It crosses the truth in or near the middle, where a few answers "
        "are correct by chance of the seed."
    )
    columns = ("mixture", "seed", *data.domains, "mean")
    return Table("Accuracy by segment, before and after mixing", columns, rows, note, place="performance"), facts


def error_bound(models: dict[int, Model]) -> tuple[Table, dict[str, Any]]:
    """Return a check of Proposition 3 on all pairs of 1..100: no mixture errs by more than the largest residual."""
    x = read_pairs(task.all_pairs(1, task.TOP))
    truth = x.sum(1) / 2
    rows, facts = [], {}
    for seed, model in models.items():
        if task.RESIDUAL not in model.banks:
            continue
        base, residuals = model.base.classify(x), run_bank(model.bank(task.RESIDUAL), x)
        vertices = base[:, None] + residuals  # (N, K, 1)
        low, high = certificate.output_interval(base, vertices)
        epsilon = float(residuals.abs().max())
        error = float(torch.maximum((low - truth).abs(), (high - truth).abs()).max())
        satisfied = error <= epsilon + 1e-6  # float32 rounding of the base itself
        rows.append((seed, epsilon, error, "satisfied" if satisfied else "violated", 200 * epsilon))
        facts[str(seed)] = {"epsilon": epsilon, "largest_error": error, "holds": satisfied}
    note = (
        "Over all 10,000 pairs of 1..100, inside and outside the segments. The largest error is exact over all "
        "mixtures: an affine function is extreme at the vertices of the simplex. An answer is correct while it errs "
        "by less than half a unit of the sum."
    )
    columns = ("seed", "ε = max |r_i|", "largest error of any mixture", "Proposition 3", "ε in units of the sum")
    return Table("Proposition 3 measured", columns, tuple(rows), note, place="stability"), facts


def answers_by_bank(model: Model, x: Tensor) -> list[tuple[str, Tensor]]:
    """Return the name of every bank of single experts with their answers to x: (N, K)."""
    return [
        (bank_id.name, expert_answers(bank_id.form, model.bank(bank_id), model.base, x))
        for bank_id in model.banks
        if bank_id.form in FORMS and bank_id != SHARED_ONLY
    ]


def diagonal_figure(model: Model) -> Figure:
    """Return a figure of the learned functions along a = b."""
    numbers = torch.arange(1, task.TOP + 1)
    positions = tuple(map(float, numbers))
    panels = []
    for name, answers in answers_by_bank(model, read_pairs(torch.stack([numbers, numbers], 1))):
        lines = [
            Line(f"expert {segment}", positions, _rounded(answers[:, k]))
            for k, segment in enumerate(model.experts.names)
        ]
        lines.append(Line("mean of all", positions, _rounded(answers.mean(1))))
        lines.append(Line("truth", positions, _rounded(2.0 * numbers), dashed=True))
        panels.append(Panel(TITLES[name], "a = b", "answer", tuple(lines)))
    return Figure("diagonal", "The learned functions along the diagonal a = b.", tuple(panels), place="performance")


def error_figure(model: Model) -> Figure:
    """Return a figure of the error of the mean of all experts, for every pair."""
    numbers = torch.arange(1, task.TOP + 1, 2)
    grid = torch.cartesian_prod(numbers, numbers)
    panels = []
    for name, answers in answers_by_bank(model, read_pairs(grid)):
        error = (answers.mean(1) - grid.sum(1)).abs().view(len(numbers), -1).T  # rows are b
        rows = tuple(_rounded(row) for row in error)
        panels.append(Panel(TITLES[name], "a", "b", grid=rows, extent=(1, task.TOP, 1, task.TOP)))
    caption = "Absolute error of the mean of all experts, in units of the sum (below 0.5 the answer is correct)."
    return Figure("surface", caption, tuple(panels))


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(round(float(value), 3) for value in values)


# --- ablations


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
    per_expert = datasets.expert_datasets(data.domains, data.train, data.train, data.train)
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
