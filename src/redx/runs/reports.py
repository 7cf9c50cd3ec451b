"""Reports of run folders: read what a run measured and hand it to the report page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redx.composition.summary import read_summary
from redx.config import RunConfig
from redx.errors import RedxError
from redx.io.reading import exists, guarded, read_json
from redx.report.content import Study
from redx.report.page import publish
from redx.report.sections import RunReport, describe_run
from redx.runs.folder import read_config
from redx.runs.presets import reproduce


def write_report(folder: Path, config: RunConfig, summary: dict[str, Any], study: Study | None) -> Path:
    """Write report.html, report.md and figures/*.svg into a run folder; return the path of the page."""
    return publish([_describe(config.task, config, summary, study)], folder / "report.html", _title(config))


def write_reports(folders: Sequence[Path], out: Path) -> Path:
    """Write one page that compares several finished runs; a single run gets its own report again.

    Parameters
    ----------
    folders
        Run folders with a summary.json each.
    out
        The page, an .html file, or the folder to write report.html to; not used for a single run.

    Returns
    -------
    Path
        The page that was written.
    """
    if not folders:
        raise RedxError("There is no run to report on; give the folder of at least one finished run.")
    runs = [(read_config(folder), read_summary(folder / "summary.json"), read_study(folder)) for folder in folders]
    with guarded(
        folders[0] / "summary.json", "lacks figures of a report, or has some of the wrong kind", "repeat the run"
    ):
        return _write_pages(folders, runs, out)


def _write_pages(
    folders: Sequence[Path], runs: list[tuple[RunConfig, dict[str, Any], Study | None]], out: Path
) -> Path:
    if len(folders) == 1:
        return write_report(folders[0], *runs[0])
    names = [folder.resolve().name for folder in folders]
    labels = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    reports = [_describe(label, *run) for label, run in zip(labels, runs, strict=True)]
    page = out if out.suffix == ".html" else out / "report.html"
    return publish(reports, page, f"{len(reports)} runs compared")


def read_study(folder: Path) -> Study | None:
    """Return the study of a run folder, or None where it has none."""
    path = folder / "study.json"
    return read_json(path, Study, misfit="does not hold a study") if exists(path) else None


def _describe(label: str, config: RunConfig, summary: dict[str, Any], study: Study | None) -> RunReport:
    return describe_run(label, config, summary, study, *reproduce(config))


def _title(config: RunConfig) -> str:
    return f"{config.task}, {config.preset}"
