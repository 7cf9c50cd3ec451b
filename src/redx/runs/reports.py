"""Reports of run folders: read what a run measured and hand it to the report page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from redx.composition.comparison import correct_answers, difference_over_seeds, groups_of, paired_difference
from redx.composition.evaluation import Banks
from redx.composition.listing import rules_of_run
from redx.composition.summary import read_summary
from redx.config import RunConfig
from redx.errors import RedxError
from redx.io.manifest import is_expected
from redx.io.reading import exists, guarded, read_json
from redx.report.content import Study
from redx.report.document import RunFigures, Source
from redx.report.page import publish
from redx.report.run_comparison import Pairs, compare_runs
from redx.report.run_report import describe_run, describe_source
from redx.report.short import main_rules
from redx.runs.folder import DataFile, lock_run, read_config
from redx.runs.integrity import check_states
from redx.runs.parts import read_parts
from redx.runs.presets import reproduce
from redx.runs.transaction import edit


def write_report(folder: Path, config: RunConfig, summary: dict[str, Any], study: Study | None) -> Path:
    """Write report.html, report.md and figures/*.svg into a run folder; return the path of the page."""
    run = RunFigures(config.task, config, summary, study)
    return publish(describe_run(run, _source(run)), folder / "report.html")


def new_report(new: Callable[[str], Path]) -> Path:
    """Return the folder to write a new report of a run to, of which a transaction knows by `new`."""
    for name in ("report.md", "figures"):
        new(name)
    return new("report.html").parent


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
    runs = [(read_config(folder), *_read_figures(folder)) for folder in folders]
    with guarded(
        folders[0] / "summary.json", "lacks figures of a report, or has some of the wrong kind", "repeat the run"
    ):
        return _write_pages(folders, runs, out)


def _write_pages(
    folders: Sequence[Path], runs: list[tuple[RunConfig, dict[str, Any], Study | None]], out: Path
) -> Path:
    if len(folders) == 1:
        config, summary, study = runs[0]
        with lock_run(folders[0], config), edit(folders[0]) as transaction:
            write_report(new_report(transaction.new), config, summary, study)
        return folders[0] / "report.html"
    names = [folder.resolve().name for folder in folders]
    labels = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    figures = [RunFigures(label, *run) for label, run in zip(labels, runs, strict=True)]
    page = out if out.suffix == ".html" else out / "report.html"
    pairs = pair_runs(folders, figures)
    return publish(compare_runs(figures, [_source(run) for run in figures], pairs), page)


def pair_runs(folders: Sequence[Path], runs: Sequence[RunFigures]) -> Pairs:
    """Return the paired differences of every rule to the first run, for runs with the same test examples.

    Parameters
    ----------
    folders
        Run folders.
    runs
        Their figures, in the same order.

    Returns
    -------
    dict
        By label and rule, accuracies of the run less those of the first; seeds whose test splits differ are left out.
    """
    digests = [_test_digests(folder) for folder in folders]
    pairs: Pairs = {}
    for folder, run, known in list(zip(folders, runs, digests, strict=True))[1:]:
        seeds = [seed for seed in known if known[seed] == digests[0].get(seed)]
        if not seeds:
            continue
        banks = [[read_parts(path, int(seed)).banks for path in (folder, folders[0])] for seed in seeds]
        groups = [groups_of(own) for own, _ in banks]
        by_seed = [[_answers(own, run.config), _answers(first, runs[0].config)] for own, first in banks]
        shared = len({known[seed] for seed in seeds}) == 1
        rules = [name for name in by_seed[0][0] if all(name in one for pair in by_seed for one in pair)]
        pairs[run.label] = {
            name: paired_difference(
                difference_over_seeds([(own[name], first[name]) for own, first in by_seed], shared, groups)
            )
            for name in main_rules(run.rules)
            if name in rules
        }
    return pairs


def _answers(banks: Banks, config: RunConfig) -> dict[str, Tensor]:
    return correct_answers(banks, config.main, rules_of_run(config, banks))


def _test_digests(folder: Path) -> dict[str, str]:
    """Return the hashes of the test splits by seed; none where the folder lacks them or its parts."""
    path = folder / "data.json"
    if not is_expected(path):
        return {}
    hashes = read_json(path, DataFile, misfit="does not say how the data were split").sha256
    return {seed: names["test"] for seed, names in hashes.items() if exists(folder / f"seed-{seed}" / "parts")}


def _read_figures(folder: Path) -> tuple[dict[str, Any], Study | None]:
    """Return the summary of a run, and its study unless it was made with other experts."""
    summary, study = read_summary(folder / "summary.json"), read_study(folder)
    check_states(folder, summary)
    left_out = isinstance(facts := summary.get("study"), dict) and "left_out" in facts
    return summary, None if left_out else study


def read_study(folder: Path) -> Study | None:
    """Return the study of a run folder, or None where it has none."""
    path = folder / "study.json"
    return read_json(path, Study, misfit="does not hold a study") if is_expected(path) else None


def _source(run: RunFigures) -> Source:
    return describe_source(run, *reproduce(run.config))
