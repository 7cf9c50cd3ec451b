"""What the report tells about a run, as plain values: the headline, tables and figures, computed from the summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redx.composition import noise
from redx.composition.rules import RULES, RuleId
from redx.config import RunConfig
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.report.figures import COLOURS

Cell = str | float | int | None


Summary = dict[str, Any]  # summary.json, or a part of it


REFERENCES = ("base", "global", "oracle")  # what the other rules are measured against: drawn dashed


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it."""

    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class RunReport:
    """All that is told about one run, as plain values that HTML and Markdown draw alike."""

    label: str
    facts: dict[str, str]
    headline: list[str]
    main: dict[str, float | None]
    sections: list[Section]
    command: str
    changed: list[str]
    settings: str


def describe_run(
    label: str, config: RunConfig, summary: Summary, study: Study | None, command: str, changed: list[str]
) -> RunReport:
    """The chapter of one run."""
    rules = name_banks(config, summary["rules"])
    sections = [
        Section("Rules", (rules_table(rules, summary.get("interval", "95 %")),)),
        Section("Accuracy by domain", (domains_table(rules, summary.get("domains", [])),)),
        Section("F1 by class", (classes_table(rules),)),
        Section("Accuracy against noise", (noise_area_table(rules),), noise_figures(summary["rules"])),
        Section("Certified accuracy", (), certified_figures(summary["rules"])),
        Section("Study", study.tables if study else (), study.figures if study else ()),
        Section("Cost", (cost_table(summary.get("cost", {})),)),
    ]
    data, router = summary["data"], summary.get("router", {}).get("accuracy")
    facts = {
        "task": config.task,
        "preset": config.preset,
        "seeds": ", ".join(map(str, config.seeds)),
        "split": data["split"],
        "test questions seen in training": f"{100 * data['seen_in_train']:.4g} %",
        "train / validation / test": " / ".join(format_value(data[name]) for name in ("train", "validation", "test")),
        "backbone": config.backbone,
        "router accuracy": format_value(router),
    }
    return RunReport(
        label=label,
        facts=facts,
        headline=verdict(summary["rules"]),
        main=main_figures(summary["rules"]),
        sections=[found for found in sections if found.figures or any(table.rows for table in found.tables)],
        command=command,
        changed=changed,
        settings=config.model_dump_json(indent=1),
    )


def main_figures(rules: Summary) -> dict[str, float | None]:
    """The main figures of a run; None where a run lacks the rule."""

    def accuracy(name: str) -> float | None:
        return rules[name]["accuracy"]["mean"] if name in rules else None

    red = rules.get("red", {})
    return {
        "base": accuracy("base"),
        "red": accuracy("red"),
        "red, worst router (certified ε=1)": red.get("certified", {}).get("1"),
        "red, always a wrong expert (swap 1)": red.get("noise", {}).get("swap", {}).get("1"),
        "sum": accuracy("sum"),
        "global": accuracy("global"),
        "moe": accuracy("moe"),
    }


def verdict(rules: Summary) -> list[str]:
    """The headline: what came out and whether a bad router costs more than the experts bring, good or bad alike."""
    name = next((name for name in ("red", "moe") if name in rules), None)
    if name is None or "base" not in rules:
        return ["This run has neither `red` nor `moe` beside a base, so there is no composition to judge."]
    found, base = rules[name], rules["base"]
    called = "RED" if name == "red" else "The mixture of experts (`moe`)"
    said = [] if name == "red" else ["This run has no main bank of residual experts, so there is no RED to judge."]
    others = {"base": "the base", "global": "the head trained on all data pooled"}
    gaps = " and ".join(_compare(found, rules[other], words) for other, words in others.items() if other in rules)
    said.append(f"{called} answers {format_value(found['accuracy']['mean'])} of the test questions right: {gaps}.")
    swapped = found.get("noise", {}).get("swap", {}).get("1")
    worst, floor = found.get("certified", {}).get("1"), base["accuracy"]["mean"]
    wrong = [] if swapped is None else [f"A router that always asks a wrong expert leaves {format_value(swapped)}."]
    if worst is None:
        return said + wrong
    verdict = (
        f"That is {format_value(floor - worst)} below the base: "
        "a bad enough router costs more than these experts bring."
        if worst < floor
        else "That does not fall below the base: no router whatsoever can cost more than these experts bring."
    )
    said.append(
        " ".join([*wrong, f"The worst router there could be leaves {format_value(worst)} (certified at ε = 1)."])
    )
    return [*said, verdict]


def _compare(found: Summary, other: Summary, called: str) -> str:
    """A plain comparison of two accuracies."""
    mine, its = found["accuracy"], other["accuracy"]
    gap = mine["mean"] - its["mean"]
    if gap == 0:
        return f"level with {called} ({format_value(its['mean'])})"
    apart = mine["low"] > its["high"] or mine["high"] < its["low"]
    way = "above" if gap > 0 else "below"
    overlap = "" if apart else "; the intervals overlap"
    return f"{format_value(abs(gap))} {way} {called} ({format_value(its['mean'])}{overlap})"


def name_banks(config: RunConfig, rules: Summary) -> Summary:
    """Every rule once: no plain name where its figures stand with their bank; † marks the main of several banks."""
    banks: dict[str, list[str]] = {}
    for name in rules:
        rule, bank = RuleId.parse(name)
        banks.setdefault(rule, []).extend([bank] if bank else [])
    named = {}
    for name, entry in rules.items():
        rule, bank = RuleId.parse(name)
        form = RULES[rule].form if rule in RULES else ""
        main = len(banks[rule]) > 1 and config.main.get(form) == bank
        if bank or not banks[rule]:
            named[f"{name} †" if main else name] = entry
    return named


def rules_table(rules: Summary, interval: str) -> Table:
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
        f"Intervals: {interval}. Certified ε: share right whatever an adversary does with a share ε of the routing "
        "mass; ε=1 is the worst router there could be. Swap 1: the router always asks a wrong expert. Harm: the base "
        "was right and the rule is wrong; help: the reverse."
    )
    marked = " † the main bank, which the rule's plain name means." if any("†" in name for name in rules) else ""
    return Table("", columns, tuple(rows), note + marked)


def domains_table(rules: Summary, order: Sequence[str]) -> Table:
    found = {domain: None for entry in rules.values() for domain in entry.get("per_domain", {})}
    domains = list(dict.fromkeys([*(domain for domain in order if domain in found), *found]))
    rows = ((name, *(entry.get("per_domain", {}).get(domain) for domain in domains)) for name, entry in rules.items())
    return Table("", ("rule", *domains), tuple(rows))


def classes_table(rules: Summary) -> Table:
    """F1 of every class; only where they are few enough to read."""
    classes = list(dict.fromkeys(label for entry in rules.values() for label in entry.get("per_class", {})))
    rows = ((name, *(entry["per_class"][label]["f1"] for label in classes)) for name, entry in rules.items())
    note = "Precision, recall and the confusion matrix of every rule and seed are in results.jsonl."
    return Table("", ("rule", *classes), tuple(rows) if 0 < len(classes) <= 20 else (), note)


def noise_area_table(rules: Summary) -> Table:
    kinds = list(dict.fromkeys(kind for entry in rules.values() for kind in entry.get("noise_area", {})))
    rows = ((name, *(entry.get("noise_area", {}).get(kind) for kind in kinds)) for name, entry in rules.items())
    note = "1 would be right at every level from 0 to 1."
    return Table("Area under the noise curve", ("rule", *kinds), tuple(rows) if kinds else (), note)


def cost_table(cost: Summary) -> Table:
    seconds = [(stage, f"{value:,.2f}", "s") for stage, value in cost.get("seconds", {}).items()]
    memory = [("peak memory", f"{cost['peak_memory_mb']:,.0f}", "MB")] if "peak_memory_mb" in cost else []
    sizes = [(part, format_value(value), "parameters") for part, value in cost.get("parameters", {}).items()]
    return Table("", ("stage or part", "amount", "unit"), (*seconds, *memory, *sizes), "Seconds are summed over seeds.")


def noise_figures(rules: Summary) -> tuple[Figure, ...]:
    """Accuracy against the level of noise, a panel a kind; nothing where nothing was swept."""
    kinds = dict.fromkeys(kind for name in COLOURS for kind in rules.get(name, {}).get("noise", {}))
    curves = {kind: {name: entry.get("noise", {}).get(kind, {}) for name, entry in rules.items()} for kind in kinds}
    panels = tuple(Panel(kind, "level", "accuracy", _rule_lines(curves[kind])) for kind in kinds)
    caption = "Accuracy when the router is wrong, by kind and level of noise."
    return (Figure("noise", caption, panels),) if panels else ()


def certified_figures(rules: Summary) -> tuple[Figure, ...]:
    """Certified accuracy against ε; nothing where nothing was certified."""
    lines = _rule_lines({name: entry.get("certified", {}) for name, entry in rules.items()})
    caption = "Share that stays right whatever an adversary does with a share ε of the routing mass."
    return (Figure("certified", caption, (Panel("", "ε", "certified accuracy", lines),)),) if lines else ()


def _rule_lines(curves: dict[str, dict[str, float]]) -> tuple[Line, ...]:
    """Curves of the rules worth drawing; keys of a curve are numbers as text."""
    lines = []
    for name in (name for name in COLOURS if curves.get(name)):
        x, y = zip(*sorted((float(at), value) for at, value in curves[name].items()), strict=True)
        lines.append(Line(name, x, y, dashed=name in REFERENCES))
    return tuple(lines)


def glossary() -> tuple[Table, ...]:
    """What the names mean, in the words of the classes themselves."""

    def say(found: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        return tuple((name, (type(thing).__doc__ or "").partition("\n")[0]) for name, thing in found.items())

    rules, kinds = say(RULES), say(noise.NOISES)
    return Table("Rules", ("rule", "meaning"), rules), Table("Noise", ("kind", "meaning"), kinds)


def format_value(value: Cell) -> str:
    """A number as it stands in a table."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "—"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.1e}" if 0 < abs(value) < 5e-5 else f"{value:.4f}"
