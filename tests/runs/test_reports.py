"""Reports of run folders: of one run, of several, and their studies."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from helpers.reports import STUDY, check_tables, make_config, make_summary
from redx.errors import RedxError
from redx.io import files
from redx.report.content import Study
from redx.runs.reports import read_study, write_reports


def write_run(folder: Path, study: Study | None = None, **changes: Any) -> Path:
    config = make_config(noise=("swap",), **changes)
    files.write_json(folder / "config.json", config.model_dump(mode="json"))
    files.write_json(folder / "summary.json", make_summary(config))
    if study:
        files.write_json(folder / "study.json", asdict(study))
    return folder


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_study(write_run(tmp_path / "a", STUDY)) == STUDY
    assert read_study(write_run(tmp_path / "b")) is None
    files.write_json(tmp_path / "b" / "study.json", {"tables": 3})
    with pytest.raises(RedxError, match="does not hold a study"):
        read_study(tmp_path / "b")


def test_several_runs_are_compared_on_one_page(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "one", STUDY), write_run(tmp_path / "x" / "one", seeds=(3, 4))
    assert write_reports([one], tmp_path / "ignored.html") == one / "report.html"
    page = write_reports([one, two], tmp_path / "both.html")
    assert page == tmp_path / "both.html"
    html, text = page.read_text(), (tmp_path / "both.md").read_text()
    assert "2 runs compared" in html
    assert str(two) in html
    assert "--seed 3 --seed 4" in html
    check_tables(text)
    links = re.findall(r"\]\((figures/.*?)\)", text)
    assert len(links) == len(set(links)) == 6
    assert all((tmp_path / link).exists() for link in links)
    assert not (tmp_path / "ignored.html").exists()
    with pytest.raises(RedxError, match="no run"):
        write_reports([], tmp_path)
    with pytest.raises(RedxError, match=r"no .*config\.json"):
        write_reports([tmp_path / "nowhere"], tmp_path)
