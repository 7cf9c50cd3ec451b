"""The study of the toy: accuracy by segment before and after mixing, Proposition 3, ablations, figures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redx.composition import certificate, metrics
from redx.composition.evaluation import Banks, match_banks, predict
from redx.composition.rules import RULES, RuleId
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.data.inputs import read_pairs
from redx.model.model import Model
from redx.models.banks import run_bank
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.tasks.toy import task
from redx.tasks.toy.ablations import expert_answers, run_ablations

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
        for rule, bank, outputs in match_banks(banks, tuple(RULES)):
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
        if bank_id.form in FORMS
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
