"""The content of the report of one run as plain values: headline, facts, sections with tables and figures."""

from __future__ import annotations

from dataclasses import dataclass

from redx.config import RunConfig
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.report.figures import COLOURS
from redx.report.headline import main_figures, verdict
from redx.report.tables import (
    Summary,
    classes_table,
    cost_table,
    domains_table,
    format_value,
    name_banks,
    noise_area_table,
    rules_table,
)

REFERENCES = ("base", "global", "oracle")  # rules that the others are compared with; their curves are dashed


@dataclass(frozen=True)
class Section:
    """A section of the report.

    Attributes
    ----------
    title
        The heading.
    tables, figures
        Its content; figures come first.
    """

    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class RunReport:
    """The content of the report of one run, which is the same in HTML and Markdown.

    Attributes
    ----------
    label
        Name of the run on a page with several runs.
    facts
        Task, preset, seeds, split and other facts, by name.
    headline
        Sentences that compare RED with the base.
    main
        The main figures by name; None if the run does not have the rule.
    sections
        Sections that are not empty.
    command
        The command that repeats the run.
    changed
        Settings that differ from the preset and that the command does not set.
    settings
        config.json as text.
    """

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
    """Return the content of the report of one run.

    Parameters
    ----------
    label
        Name of the run on a page with several runs.
    config
        Settings of the run.
    summary
        Content of summary.json.
    study
        Results of the additional experiments; None if there are none.
    command, changed
        The command that repeats the run, and the settings that it does not set.

    Returns
    -------
    RunReport
        The content; sections without tables and figures are left out.
    """
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
        sections=[section for section in sections if section.figures or any(table.rows for table in section.tables)],
        command=command,
        changed=changed,
        settings=config.model_dump_json(indent=1),
    )


def noise_figures(rules: Summary) -> tuple[Figure, ...]:
    """Return the figure of accuracy by noise level, with one panel per kind; none if no noise was evaluated."""
    kinds = dict.fromkeys(kind for name in COLOURS for kind in rules.get(name, {}).get("noise", {}))
    curves = {kind: {name: entry.get("noise", {}).get(kind, {}) for name, entry in rules.items()} for kind in kinds}
    panels = tuple(Panel(kind, "level", "accuracy", _rule_lines(curves[kind])) for kind in kinds)
    caption = "Accuracy under routing noise, by kind and level of noise."
    return (Figure("noise", caption, panels),) if panels else ()


def certified_figures(rules: Summary) -> tuple[Figure, ...]:
    """Return the figure of certified accuracy by ε; none if nothing was certified."""
    lines = _rule_lines({name: entry.get("certified", {}) for name, entry in rules.items()})
    caption = "Accuracy if an adversary may move a share ε of the routing weight."
    return (Figure("certified", caption, (Panel("", "ε", "certified accuracy", lines),)),) if lines else ()


def _rule_lines(curves: dict[str, dict[str, float]]) -> tuple[Line, ...]:
    """Return the curves of the rules that have a colour; a curve maps numbers, written as text, to values."""
    lines = []
    for name in (name for name in COLOURS if curves.get(name)):
        x, y = zip(*sorted((float(at), value) for at, value in curves[name].items()), strict=True)
        lines.append(Line(name, x, y, dashed=name in REFERENCES))
    return tuple(lines)
