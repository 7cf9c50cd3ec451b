"""Reports of run folders: of one run, of several, and their studies."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import redx
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


@pytest.mark.usefixtures("unverified")
def test_several_runs_are_compared_on_one_page(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "one", STUDY), write_run(tmp_path / "x" / "one", seeds=(3, 4))
    assert write_reports([one], tmp_path / "ignored.html") == one / "report.html"
    page = write_reports([one, two], tmp_path / "both.html")
    assert page == tmp_path / "both.html"
    html, text = page.read_text(), (tmp_path / "both.md").read_text()
    assert "2 runs compared" in html
    assert str(two) in html
    assert "--seed 3 --seed 4" in html
    assert "are not paired" in html
    check_tables(text)
    links = re.findall(r"\]\((figures/.*?)\)", text)
    assert [Path(link).stem for link in links] == ["performance", "stability"]
    assert all((tmp_path / link).exists() for link in links)
    assert not (tmp_path / "ignored.html").exists()
    with pytest.raises(RedxError, match="no run"):
        write_reports([], tmp_path)
    with pytest.raises(RedxError, match=r"no .*config\.json"):
        write_reports([tmp_path / "nowhere"], tmp_path)


@pytest.mark.usefixtures("unverified")
def test_runs_with_the_same_test_examples_are_paired(clouds: redx.Run, clouds_copy: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other")
    page = write_reports([clouds.folder, clouds_copy, other], tmp_path / "three")
    assert page == tmp_path / "three" / "report.html"
    text = page.with_suffix(".md").read_text()
    assert "RED of `run` is not measurably different (0.0000, p = 1)" in text
    assert "| run | red | sums | 0.0000 \\[0.0000, 0.0000\\] | 0 | 0 | 1.0000 |" in text
    assert "| other | red |" not in text
    data = json.loads((clouds_copy / "data.json").read_text())
    data["sha256"]["0"]["test"] = "of other examples"
    files.write_json(clouds_copy / "data.json", data)
    text = write_reports([clouds.folder, clouds_copy], tmp_path / "two").with_suffix(".md").read_text()
    assert "are not paired" in text


def test_summaries_hold_what_the_report_answers_with(clouds: redx.Run) -> None:
    summary = clouds.summary
    assert summary["paired"]["reference"] == "red"
    gap = summary["rules"]["red"]["accuracy"]["mean"] - summary["rules"]["base"]["accuracy"]["mean"]
    assert summary["paired"]["rules"]["base"]["difference"] == pytest.approx(gap)
    changes = summary["modularity"]
    assert changes["experts"] == summary["domains"] == list(changes["contributions"]) == list(changes["without"])
    assert changes["one_by_one"][0] == summary["rules"]["base"]["accuracy"]["mean"]
    assert changes["one_by_one"][-1] == summary["rules"]["red"]["accuracy"]["mean"]
    assert {about["dtype"] for about in summary["experts"].values()} == {"float32"}
    assert "5 of 5" not in (clouds.folder / "report.md").read_text()  # four domains


@pytest.mark.usefixtures("unverified")
def test_older_run_folders_without_the_new_keys_are_reported(clouds_copy: Path) -> None:
    summary = json.loads((clouds_copy / "summary.json").read_text())
    for key in ("paired", "modularity", "experts"):
        del summary[key]
    files.write_json(clouds_copy / "summary.json", summary)
    text = write_reports([clouds_copy], clouds_copy).with_suffix(".md").read_text()
    assert "no figures of experts that come and go" in text
    assert "(RQ4)" in text
