"""The parts of a report in order: verdict, four figures, sections that answer a question, appendix, sources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redx.config import RunConfig
from redx.report.content import Figure, Place, Study, Table

Summary = dict[str, Any]  # summary.json, or a part of it


@dataclass(frozen=True)
class Tile:
    """One of the figures that carry the verdict.

    Attributes
    ----------
    name
        What is measured.
    values
        Label and figure; the label is empty where there is only one run.
    note
        What to compare it with.
    state
        `good` or `bad` for a promise that was kept or broken; otherwise empty.
    """

    name: str
    values: tuple[tuple[str, str], ...]
    note: str = ""
    state: str = ""


@dataclass(frozen=True)
class Section:
    """A section of the report.

    Attributes
    ----------
    title
        The heading.
    question, answer
        A question, and one sentence that answers it from the figures; empty in the appendix.
    figures, tables
        What is shown at once.
    more_figures, more_tables
        What is folded away.
    """

    title: str
    question: str = ""
    answer: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    more_figures: tuple[Figure, ...] = ()
    more_tables: tuple[Table, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        tables = any(table.rows for table in (*self.tables, *self.more_tables))
        return not (self.answer or self.figures or self.more_figures or tables)


@dataclass(frozen=True)
class Source:
    """A run that a report is about.

    Attributes
    ----------
    label
        Name of the run.
    facts
        Task, preset, seeds, split and other facts, by name.
    command
        The command that repeats the run.
    changed
        Settings that differ from the preset and that the command does not set.
    settings
        config.json as text.
    """

    label: str
    facts: dict[str, str]
    command: str
    changed: list[str]
    settings: str


@dataclass(frozen=True)
class Report:
    """The content of a report, which is the same in HTML and Markdown.

    Attributes
    ----------
    title
        Title of the page.
    verdict
        One sentence.
    findings
        Further sentences of the verdict.
    tiles
        The figures that carry it.
    sections, appendix
        Sections in order; those of the appendix follow the others.
    sources
        The runs that it is about.
    """

    title: str
    verdict: str
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    appendix: tuple[Section, ...]
    sources: tuple[Source, ...]
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunFigures:
    """What a report reads of one run: settings, summary.json and study.json.

    Attributes
    ----------
    label
        Name of the run where several are compared.
    config
        Settings of the run.
    summary
        Content of summary.json.
    study
        Results of the additional experiments; None if there are none.
    """

    label: str
    config: RunConfig
    summary: Summary
    study: Study | None = None
    rules: Summary = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", self.summary["rules"])

    @property
    def main(self) -> str | None:
        """The rule that the report is about: `red`, or `moe` where there are no residual experts."""
        return next((name for name in ("red", "moe") if name in self.rules), None)

    def accuracy(self, name: str) -> float | None:
        """Return the accuracy of a rule; None if the run does not have it."""
        return self.rules[name]["accuracy"]["mean"] if name in self.rules else None

    def certified(self, name: str) -> float | None:
        """Return the accuracy of a rule under the worst router."""
        return self.rules.get(name, {}).get("certified", {}).get("1")

    def misrouted(self, name: str) -> float | None:
        """Return the accuracy of a rule where the router always chooses a wrong expert."""
        return self.rules.get(name, {}).get("noise", {}).get("swap", {}).get("1")

    def paired(self, name: str) -> Summary | None:
        """Return the paired difference of the main rule to another rule, where it was measured."""
        paired = self.summary.get("paired", {})
        return paired.get("rules", {}).get(name) if paired.get("reference") == self.main else None

    def study_tables(self, place: Place) -> tuple[Table, ...]:
        """Return the tables of the study that belong to a section."""
        return tuple(table for table in self.study.tables if table.place == place) if self.study else ()

    def study_figures(self, place: Place) -> tuple[Figure, ...]:
        """Return the figures of the study that belong to a section."""
        return tuple(figure for figure in self.study.figures if figure.place == place) if self.study else ()
