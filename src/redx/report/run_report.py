"""The report of one run: what each section says, and the appendix with all that has no place above."""

from __future__ import annotations

from redx.report import efficiency, modularity, performance, perplexity, promise, stability
from redx.report.document import Report, RunFigures, Section, Source
from redx.report.headline import findings, four_figures
from redx.report.short import told_sharing, with_sharing
from redx.report.tables import classes_table, domains_table, format_value, name_banks, noise_area_table, rules_table

SECTIONS = (performance, perplexity, stability, promise, modularity, efficiency)


def describe_run(run: RunFigures, source: Source) -> Report:
    """Return the report of one run; sections without content are left out.

    Parameters
    ----------
    run
        The figures of the run.
    source
        The run's facts and the command that repeats it.
    """
    sections = tuple(section.describe(run) for section in SECTIONS)
    told = findings(run.summary)
    return Report(
        title=f"{run.config.task}, {run.config.preset}",
        verdict=told[0],
        findings=tuple(told[1:]),
        tiles=four_figures(run),
        sections=tuple(section for section in sections if not section.is_empty),
        appendix=tuple(section for section in _appendix(run) if not section.is_empty),
        sources=(source,),
    )


def _appendix(run: RunFigures) -> tuple[Section, ...]:
    rules = name_banks(run.config, run.rules)
    order = run.summary.get("domains", [])
    tables = (
        rules_table(rules, run.summary.get("interval", "95 %"), told_sharing(run.config)),
        domains_table(rules, order),
        classes_table(rules),
        noise_area_table(rules),
    )
    every = tuple(with_sharing(table, rules) for table in tables)
    return (
        Section("Ablations and further experiments", figures=run.study_figures(""), more_tables=run.study_tables("")),
        Section("Every rule with every bank", more_tables=every),
    )


def describe_source(run: RunFigures, command: str, changed: list[str]) -> Source:
    """Return the facts of a run and the command that repeats it.

    Parameters
    ----------
    run
        The figures of the run.
    command, changed
        The command that repeats the run, and the settings that it does not set.
    """
    config, data = run.config, run.summary["data"]
    facts = {
        "task": config.task,
        "preset": config.preset,
        "seeds": ", ".join(map(str, config.seeds)),
        "split": data["split"],
        "test questions seen in training": f"{100 * data['seen_in_train']:.4g} %",
        "train / validation / test": " / ".join(format_value(data[name]) for name in ("train", "validation", "test")),
        "backbone": config.backbone,
        "router accuracy": format_value(run.summary.get("router", {}).get("accuracy")),
    }
    if left_out := run.summary.get("study", {}).get("left_out"):
        facts["further experiments"] = str(left_out)
    return Source(run.label, facts, command, changed, config.model_dump_json(indent=1))
