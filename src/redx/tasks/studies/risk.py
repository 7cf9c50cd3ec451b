"""The study of risk: accuracy against the risk, and how well the promise is kept over many calibration sets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from redx.composition.evaluation import Banks, predict
from redx.composition.parts import Parts
from redx.composition.risk import (
    RiskControl,
    harm_figures,
    harm_outcomes,
    harm_thresholds,
    own_mistakes,
    risk_cutoff,
    smallest_risk,
)
from redx.composition.rules import get_rule
from redx.config import RunConfig
from redx.model.model import Model
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.seeding import generator

RISKS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
DIVISIONS = 200  # random divisions of calibration and test examples
RED = get_rule("red")
Curve = dict[str, dict[str, float]]  # figures by risk


def study(config: RunConfig, models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """Return clean and certified accuracy at every risk, and the harm over random divisions: means over the seeds."""
    bank_id = config.controlled_bank
    if bank_id is None:
        return Study({})
    records = {seed: banks[bank_id] for seed, banks in parts.items()}
    curve = risk_curve(models, records)
    base = _mean([_accuracy("base", record) for record in records.values()])
    facts: dict[str, Any] = {"price_of_risk": curve}
    columns = ("risk", *next(iter(curve.values())))
    rows = tuple((risk, *figures.values()) for risk, figures in curve.items())
    note = (
        "`red` and `sum` with the cut-off that keeps each risk. Harm is the share of test examples that the base "
        "answers correctly and `red`, with some router, does not; the last column, which the risk bounds, is its mean "
        f"over {DIVISIONS} random divisions of calibration and test examples."
    )
    titles = {"clean": "clean", "worst router": "worst router", "worst domain": "… worst domain"}
    risks = tuple(map(float, curve))
    titles = {name: title for name, title in titles.items() if all(name in row for row in curve.values())}
    lines = [Line(title, risks, tuple(row[name] for row in curve.values())) for name, title in titles.items()]
    lines.append(Line("base", risks, (base,) * len(risks), dashed=True))
    axis = "risk: largest share of harm"
    figure = Figure(
        "price-of-risk",
        "Accuracy of RED against the risk, clean and under the worst router, here also in its worst domain.",
        (Panel(_finding(curve), axis, "accuracy", tuple(lines), log_x=True),),
        place="stability",
    )
    return Study(facts, (Table("The price of risk", columns, rows, note, place="stability"),), (figure,))


def _finding(curve: Curve) -> str:
    """Return what the smallest risk costs and gives, against the largest."""
    risks = sorted(curve, key=float)
    costs = {name: curve[risks[0]][name] - curve[risks[-1]][name] for name in ("clean", "worst router")}
    told = ", ".join(f"{name} {value:+.3f}".replace("-", "−") for name, value in costs.items())
    return f"Risk {risks[0]} instead of {risks[-1]}: {told}"


def risk_curve(models: dict[int, Model], records: dict[int, Parts]) -> Curve:
    """Return figures at every risk that the calibration examples of all seeds support."""
    calibrations = {seed: model.current_control() for seed, model in models.items()}
    least = max(smallest_risk(calibration.examples) for calibration in calibrations.values())
    curve: Curve = {}
    for risk in RISKS:
        if risk < least - 1e-12:
            continue
        by_seed: dict[str, list[float]] = {}
        for seed, record in records.items():
            control = calibrations[seed].at(risk)
            cut = replace(record, cutoffs=control.cutoffs_for(record.base, record.named))
            priced = harm_figures(RED, cut)
            figures = {
                "clean": priced["clean"],
                "sum": _accuracy("sum", cut),
                "worst router": priced["worst"],
                "harm": priced["harm"],
                "mean harm": _mean_harm(control, record),
            }
            if control.by == "domain":
                figures |= _worst_domain(control, cut)
            for name, value in figures.items():
                by_seed.setdefault(name, []).append(value)
        curve[f"{risk:g}"] = {name: _mean(values) for name, values in by_seed.items()}
    return curve


def mean_harm(calibration: Tensor, test: Tensor, risk: float, divisions: int = DIVISIONS) -> float:
    """Return the mean harm over random divisions of calibration and test examples.

    Parameters
    ----------
    calibration, test
        Thresholds of the calibration examples, (n,), and of the test examples, (N,).
    risk
        The risk that the cut-off of every division keeps.
    divisions
        Number of divisions.
    """
    every, count = torch.cat([calibration, test]), len(calibration)
    draw = generator(0, "divisions")
    shares = []
    for _ in range(divisions):
        shuffled = every[torch.randperm(len(every), generator=draw)]
        cutoff = risk_cutoff(shuffled[:count], risk)
        shares.append(float((shuffled[count:] > cutoff).double().mean()))
    return _mean(shares)


def _mean_harm(control: RiskControl, record: Parts) -> float:
    """Return the mean harm over random divisions; by domain that of the domain that is harmed most."""
    known, new = control.counted("simplex"), harm_thresholds(RED, record)
    if control.budget == "routing":
        new = new.masked_fill(own_mistakes(record), -torch.inf)
    if control.by == "all" or control.domains is None:
        return mean_harm(known, new, control.risk)
    of_new = control.domains_of(record)
    groups = [torch.tensor(group) for group in control.merged]
    pairs = [(known[torch.isin(control.domains, group)], new[torch.isin(of_new, group)]) for group in groups]
    return max((mean_harm(held, test, control.risk) for held, test in pairs if len(held) and len(test)), default=0.0)


def _worst_domain(control: RiskControl, cut: Parts) -> dict[str, float]:
    """Return the accuracy under the worst router in the domain that it harms most, and the harm there."""
    outcomes, domains = harm_outcomes(RED, cut).double(), control.domains_of(cut)
    found = torch.stack([outcomes[domains == domain].mean(0) for domain in domains.unique().tolist()])
    worst = found[found[:, 3].argmax()]
    return {"worst domain": float(worst[2]), "its harm": float(worst[3])}


def _accuracy(name: str, parts: Parts) -> float:
    rule = get_rule(name)
    return float((predict(rule, parts, rule.weights(parts)) == parts.true_labels()).double().mean())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def merge(*studies: Study) -> Study:
    """Return several studies as one."""
    facts: dict[str, Any] = {}
    for one in studies:
        facts |= one.facts
    tables = tuple(table for one in studies for table in one.tables)
    return Study(facts, tables, tuple(figure for one in studies for figure in one.figures))
