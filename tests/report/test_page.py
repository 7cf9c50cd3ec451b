"""The report: complete, self-contained, escaped, and the same bytes every time."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.reports import DOMAINS, STUDY, check_tables, make_config, make_summary
from redx.composition.noise import NOISES
from redx.composition.rules import RULES
from redx.errors import RedxError
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.runs.reports import write_report

EVIL = "<script>alert('x')</script>|*_`$\\frac"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    folder = tmp_path_factory.mktemp("run")
    page = write_report(folder, make_config(), make_summary(make_config()), STUDY)
    assert page == folder / "report.html"
    return page.read_text(), (folder / "report.md").read_text(), folder


def test_the_page_loads_nothing_from_outside(pages: tuple[str, str, Path]) -> None:
    html = re.sub(r'xmlns(:\w+)?="[^"]*"', "", pages[0])
    assert not re.search(r"https?://|<script|<link|@import|url\((?!#)", html)
    assert "currentColor" in html
    assert "#010203" not in html


def test_ids_on_the_page_are_unique(pages: tuple[str, str, Path]) -> None:
    found = re.findall(r' id="([^"]*)"', pages[0])
    assert len(found) == len(set(found))


def test_every_rule_noise_and_domain_is_reported(pages: tuple[str, str, Path]) -> None:
    html, text, folder = pages
    rules = make_summary(make_config())["rules"]
    for page in (html, text):
        assert all(name in page for name in (*rules, *RULES, *NOISES, *DOMAINS, "1,234", "A note.", "Mixing"))
        assert "redx run toy --preset quick --seed 0" in page
        assert "red/anchored †" in page
        assert "red/plain †" not in page
    assert '"banks"' in html.replace("&#34;", '"')
    assert all((folder / link).exists() for link in re.findall(r"\]\((figures/.*?)\)", text))
    assert len(list((folder / "figures").iterdir())) == 4


def test_the_main_bank_has_no_second_row(pages: tuple[str, str, Path]) -> None:
    head = pages[1].split("## Accuracy by domain")[0]
    assert not re.search(r"^\| red \|", head, re.MULTILINE)
    assert len(re.findall(r"^\| red/", head, re.MULTILINE)) == 2


def test_markdown_tables_are_regular(pages: tuple[str, str, Path]) -> None:
    check_tables(pages[1])


def test_the_same_run_gives_the_same_bytes(pages: tuple[str, str, Path], tmp_path: Path) -> None:
    write_report(tmp_path, make_config(), make_summary(make_config()), STUDY)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert path.read_bytes() == (pages[2] / path.relative_to(tmp_path)).read_bytes()


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    config = make_config(task=EVIL, backbone=EVIL)
    made = make_summary(config)
    made["rules"] = {EVIL: made["rules"]["red"], **made["rules"]}
    made["rules"]["red"]["per_domain"][EVIL] = 0.5
    figure = Figure(f"../../{EVIL}", EVIL, (Panel(EVIL, EVIL, EVIL, (Line(EVIL, (0, 1), (0, 1)),)),))
    study = Study({}, (Table(EVIL, (EVIL, EVIL), ((EVIL, EVIL),), EVIL),), (figure, replace(figure, caption="twin")))
    page = write_report(tmp_path / "run", config, made, study)
    assert "<script" not in page.read_text()
    assert "&lt;script&gt;" in page.read_text()
    text = page.with_suffix(".md").read_text()
    assert "<script" not in re.sub(r"^    .*$", "", text, flags=re.MULTILINE)  # the command is a block of code
    check_tables(text)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert len(list((page.parent / "figures").iterdir())) == 4


@pytest.mark.parametrize("forms", [("standalone", "pooled"), ("residual",), ("standalone",)])
@pytest.mark.parametrize("classes", [1, 4])
def test_any_set_of_rules_can_be_reported(tmp_path: Path, forms: tuple[str, ...], classes: int) -> None:
    page = write_report(tmp_path, make_config(), make_summary(make_config(), forms, classes), None)
    assert ("no figures for RED" in page.read_text()) == ("residual" not in forms)
    assert "<h2>Study</h2>" not in page.read_text()


def test_a_summary_with_hardly_anything_can_be_reported(tmp_path: Path) -> None:
    bare = {"accuracy": {"mean": 0.5, "low": 0.4, "high": 0.6}}
    made = {"data": make_summary(make_config())["data"], "rules": {"red": bare, "other": bare}}
    assert "no composed model to compare" in write_report(tmp_path, make_config(), made, None).read_text()


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RedxError, match=r"needs matplotlib; .* 'redx\[report\]'"):
        write_report(tmp_path, make_config(), make_summary(make_config()), None)
