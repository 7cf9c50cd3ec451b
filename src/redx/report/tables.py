"""The tables of a report, made from summary.json, and the format of their cells."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from redx.composition import noise
from redx.composition.rules import RULES, RuleId
from redx.composition.summary import each_once
from redx.config import RunConfig
from redx.report.content import Table
from redx.report.document import Summary

Cell = str | float | int | None


def name_banks(config: RunConfig, rules: Summary) -> Summary:
    """Return the figures of every rule and bank once, by the name in the first column of the tables.

    Parameters
    ----------
    config
        Settings of the run, which name the main banks.
    rules
        The section `rules` of summary.json, in which a main bank occurs as `RULE/BANK` and as `RULE`.

    Returns
    -------
    dict
        Figures by `RULE/BANK`, or by `RULE` if the rule has no bank. † marks the main bank of a rule with several.
    """
    several = Counter(RuleId.parse(name).rule for name in rules if RuleId.parse(name).bank)
    named = {}
    for name, entry in each_once(rules).items():
        rule, bank = RuleId.parse(name)
        form = RULES[rule].form if rule in RULES else ""
        main = several[rule] > 1 and config.main.get(form) == bank
        named[f"{name} †" if main else name] = entry
    return named


def rules_table(rules: Summary, interval: str, more: str = "") -> Table:
    """Return the table of the main figures of every rule.

    Parameters
    ----------
    rules
        Figures by name, as `name_banks` returns them.
    interval
        How the intervals of the accuracy were computed.
    more
        Further sentences of the note.

    Returns
    -------
    Table
        One row per rule: accuracy with interval, worst domain, F1, ECE, certified accuracy, swap noise, harm, help.
    """
    epsilons = sorted({epsilon for entry in rules.values() for epsilon in entry.get("certified", {})}, key=float)
    columns = ("rule", "accuracy", "worst domain", "macro-F1", "ECE")
    columns += (*(f"certified ε={epsilon}" for epsilon in epsilons), "swap 1", "harm", "help")
    rows: list[tuple[Cell, ...]] = []
    for name, entry in rules.items():
        mean, low, high = (format_value(entry["accuracy"][key]) for key in ("mean", "low", "high"))
        certified = (entry.get("certified", {}).get(epsilon) for epsilon in epsilons)
        swapped = entry.get("noise", {}).get("swap", {}).get("1")
        clean = (entry.get(key) for key in ("worst_domain", "macro_f1", "ece"))
        rows.append(
            (name, f"{mean} [{low}, {high}]", *clean, *certified, swapped, entry.get("harm"), entry.get("help"))
        )
    note = (
        f"Intervals: {interval}. Certified ε: accuracy if an adversary may move a share ε of the routing weight; at "
        "ε=1 it is the accuracy with the worst possible router. Swap 1: accuracy if the router always chooses a wrong "
        "expert. Harm: share of questions that the base answers correctly and the rule does not; help: the reverse."
    )
    marked = (
        " †: the main bank, which the rule reads if no bank is named." if any("†" in name for name in rules) else ""
    )
    return Table("", columns, tuple(rows), f"{note}{marked} {more}".strip())


def perplexity_table(rules: Summary, domains: Sequence[str]) -> Table:
    """Return the table of perplexity by rule, bank and domain, also under the worst router; empty without losses.

    Parameters
    ----------
    rules
        The section `rules` of summary.json.
    domains
        Names of the domains, in order.
    """
    known: dict[str, dict[str, float]] = {}
    for name, entry in each_once(rules).items():
        known[name] = entry.get("per_domain_loss", {})
    kinds = ("always a wrong expert", "wrong_loss"), ("one router a text", "request_loss"), ("any router", "worst_loss")
    for name in ("red/plain", "red/risk"):
        for words, metric in kinds:
            known[f"{name}, {words}"] = rules.get(name, {}).get(f"per_domain_{metric}", {})
    rows = []
    for name, losses in known.items():
        if losses and all(domain in losses for domain in domains):
            values = [math.exp(losses[domain]) for domain in domains]
            rows.append((name, *(f"{value:.3f}" for value in (*values, sum(values) / len(values)))))
    note = (
        "Perplexity is exp(loss) of a token. The mean is over domains. Always a wrong expert: the mean loss of the "
        "experts of other domains. Any router: the largest over all weights at every token, which is at one expert, "
        "since the loss is convex in the weights. One router a text: the largest over all weights that stay the same "
        "in a text, or RED's own loss where that is larger."
    )
    return Table("Perplexity by domain", ("rule", *domains, "mean"), tuple(rows), note)


def requests_table(requests: Summary) -> Table:
    """Return the table of losses where the prompt decides for all of a text; empty where nothing was measured so.

    Parameters
    ----------
    requests
        The section `requests` of summary.json.
    """
    words = {
        "base": "base",
        "own": "own expert",
        "plain": "RED without a cut-off",
        "plain, worst": "RED without a cut-off, any router of a text",
        "request": "RED by request",
        "request, worst": "RED by request, any router of a text",
    }
    losses = requests.get("losses", {})
    rows = tuple(
        (words[name], f"{losses[name]:.4f}", f"{math.exp(losses[name]):.3f}") for name in words if name in losses
    )
    if not rows:
        return Table("By request", (), ())
    note = (
        f"Tokens after a prompt of {requests['prompt']}, which decides once which experts are active and how they are "
        f"mixed; mean over {requests['requests']} texts of the loss a token, in nats. Any router of a text: the worst "
        f"that is constant over it. Risk {requests['risk']:g}: on average it raises the loss by no more above the "
        f"base's, where an excess above {requests['bound']:g} counts as that; here it raises it by "
        f"{requests['excess']:.4f} (95 %: {requests['low']:.4f} to {requests['high']:.4f}). An expert is active in "
        f"{100 * requests['active']:.1f} % of texts and experts."
    )
    return Table("By request", ("", "loss", "perplexity"), rows, note)


def domains_table(rules: Summary, order: Sequence[str]) -> Table:
    """Return the table of accuracy by rule and domain; domains that `order` does not name come last."""
    present = {domain: None for entry in rules.values() for domain in entry.get("per_domain", {})}
    domains = list(dict.fromkeys([*(domain for domain in order if domain in present), *present]))
    rows = ((name, *(entry.get("per_domain", {}).get(domain) for domain in domains)) for name, entry in rules.items())
    return Table("Accuracy by domain", ("rule", *domains), tuple(rows) if domains else ())


def classes_table(rules: Summary) -> Table:
    """Return the table of F1 by rule and class; it has no rows if there are more than 20 classes."""
    classes = list(dict.fromkeys(label for entry in rules.values() for label in entry.get("per_class", {})))
    rows = ((name, *(entry["per_class"][label]["f1"] for label in classes)) for name, entry in rules.items())
    note = "Precision, recall and the confusion matrix of every rule and seed are in results.jsonl."
    return Table("F1 by class", ("rule", *classes), tuple(rows) if 0 < len(classes) <= 20 else (), note)


def noise_area_table(rules: Summary) -> Table:
    """Return the table of the area under the noise curve by rule and kind of noise."""
    kinds = list(dict.fromkeys(kind for entry in rules.values() for kind in entry.get("noise_area", {})))
    rows = ((name, *(entry.get("noise_area", {}).get(kind) for kind in kinds)) for name, entry in rules.items())
    note = "An area of 1 means that all answers are correct at every noise level from 0 to 1."
    return Table("Area under the noise curve", ("rule", *kinds), tuple(rows) if kinds else (), note)


def certified_loss_table(rules: Summary) -> Table:
    """Return the table of certified log-loss by rule and ε."""
    epsilons = sorted({epsilon for entry in rules.values() for epsilon in entry.get("certified_loss", {})}, key=float)
    rows = ((name, *(entry.get("certified_loss", {}).get(one) for one in epsilons)) for name, entry in rules.items())
    note = (
        "The largest mean log-loss of the label in nats if an adversary may move a share ε of the routing weight, at "
        "every example anew; at ε=0 it is the plain log-loss, and at ε=1 that under the worst possible router."
    )
    columns = ("rule", *(f"ε = {epsilon}" for epsilon in epsilons))
    return Table("Certified log-loss", columns, tuple(rows) if epsilons else (), note)


def cost_table(cost: Summary) -> Table:
    """Return the table of seconds by stage, peak memory, and parameters by module."""
    seconds = [(stage, f"{value:,.2f}", "s") for stage, value in cost.get("seconds", {}).items()]
    memory = [("peak memory", f"{cost['peak_memory_mb']:,.0f}", "MB")] if "peak_memory_mb" in cost else []
    sizes = [(part, format_value(value), "parameters") for part, value in cost.get("parameters", {}).items()]
    rows = (*seconds, *memory, *sizes)
    return Table("Stages and parts", ("stage or part", "amount", "unit"), rows, "Seconds are summed over the seeds.")


def glossary() -> tuple[Table, ...]:
    """Return the tables that explain rules and noise, with the first sentences of their docstrings."""

    rules = tuple((name, rule.about) for name, rule in RULES.items())
    kinds = tuple((name, kind.about) for name, kind in noise.NOISES.items())
    return Table("Rules", ("rule", "meaning"), rules), Table("Noise", ("kind", "meaning"), kinds)


def format_value(value: Cell) -> str:
    """Return a cell as text: four decimals for a share, thousands separators for a count, — for a missing value.

    Examples
    --------
    >>> format_value(0.51234), format_value(1234), format_value(None)
    ('0.5123', '1,234', '—')
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "—"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.1e}" if 0 < abs(value) < 5e-5 else f"{value:.4f}"


def numeric_columns(table: Table) -> list[bool]:
    """Return for every column of a table whether all its cells are numbers, which are aligned to the right."""
    number = re.compile(r"—|[-+−]?\d[\d.,]*(e[-+]\d+)?( \[.*)?")
    columns = range(len(table.columns))
    return [all(number.fullmatch(format_value(row[column])) for row in table.rows) for column in columns]
