"""The report: complete, in order, self-contained, escaped, and the same bytes every time."""

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
PLACED = Study(
    STUDY.facts,
    (*STUDY.tables, Table("Placed", ("case",), (("of stability",),), place="stability")),
    STUDY.figures,
)
SECTIONS = [
    "What is gained, and from whose data (RQ1)",
    "What a wrong router costs (RQ2)",
    "Can experts come and go (RQ3)",
    "What it costs to train and to ask (RQ4)",
    "Appendix",
    "Reproduce",
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    folder = tmp_path_factory.mktemp("run")
    page = write_report(folder, make_config(), make_summary(make_config(), facts=True), PLACED)
    assert page == folder / "report.html"
    return page.read_text(), (folder / "report.md").read_text(), folder


def test_the_page_loads_nothing_from_outside(pages: tuple[str, str, Path]) -> None:
    html = re.sub(r'xmlns(:\w+)?="[^"]*"', "", pages[0])
    assert not re.search(r"https?://|<script|<link|@import|url\((?!#)", html)
    assert "currentColor" in html
    assert "#010203" not in html


def test_ids_on_the_page_are_unique(pages: tuple[str, str, Path]) -> None:
    ids = re.findall(r' id="([^"]*)"', pages[0])
    assert len(ids) == len(set(ids))


def test_the_sections_stand_in_the_order_of_the_questions(pages: tuple[str, str, Path]) -> None:
    html, text, _ = pages
    assert re.findall(r"<h2>(.*?)</h2>", html) == SECTIONS
    assert re.findall(r"^## (.*)$", text, re.M) == [*SECTIONS, "Glossary"]
    answers = re.findall(r'<p class="answer">(.*?)</p>', html)
    assert len(answers) == 4
    assert "RED answers" in answers[0]
    assert "worst domain" in answers[1]
    assert "trained apart" in answers[2]
    assert "500 MB" in answers[3]
    assert html.index('<ul class="tiles">') < html.index(SECTIONS[0])
    assert html.count("<li><span>") + html.count('<li class="') == 4


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
    names = {path.stem for path in (folder / "figures").iterdir()}
    assert names == {"performance", "stability", "noise", "modularity", "efficiency", "curves", "surface"}


def test_tables_of_the_study_stand_in_their_section(pages: tuple[str, str, Path]) -> None:
    text = pages[1]
    assert text.index("(RQ2)") < text.index("**Placed**") < text.index("(RQ3)")
    assert text.index("## Appendix") < text.index("**Mixing**") < text.index("### Every rule")


def test_the_main_bank_has_no_second_row(pages: tuple[str, str, Path]) -> None:
    appendix = pages[1].split("### Every rule")[1].split("**Accuracy by domain**")[0]
    assert not re.search(r"^\| red \|", appendix, re.MULTILINE)
    assert len(re.findall(r"^\| red/", appendix, re.MULTILINE)) == 2


def test_markdown_tables_are_regular(pages: tuple[str, str, Path]) -> None:
    check_tables(pages[1])


def test_the_same_run_gives_the_same_bytes(pages: tuple[str, str, Path], tmp_path: Path) -> None:
    write_report(tmp_path, make_config(), make_summary(make_config(), facts=True), PLACED)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert path.read_bytes() == (pages[2] / path.relative_to(tmp_path)).read_bytes()


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    config = make_config(task=EVIL, backbone=EVIL)
    made = make_summary(config, facts=True)
    made["rules"] = {EVIL: made["rules"]["red"], **made["rules"]}
    made["rules"]["red"]["per_domain"][EVIL] = 0.0
    made["modularity"]["experts"][0] = EVIL
    made["modularity"]["contributions"][EVIL] = made["modularity"]["contributions"]["low"]
    made["modularity"]["without"][EVIL] = {"accuracy": 0.0, "lost": 1, "gained": 1, "flips": 2}
    figure = Figure(f"../../{EVIL}", EVIL, (Panel(EVIL, EVIL, EVIL, (Line(EVIL, (0, 1), (0, 1)),)),))
    study = Study({}, (Table(EVIL, (EVIL, EVIL), ((EVIL, EVIL),), EVIL),), (figure, replace(figure, caption="twin")))
    page = write_report(tmp_path / "run", config, made, study)
    assert "<script" not in page.read_text()
    assert "&lt;script&gt;" in page.read_text()
    text = page.with_suffix(".md").read_text()
    assert "<script" not in re.sub(r"^    .*$", "", text, flags=re.MULTILINE)  # the command is a block of code
    check_tables(text)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    figures = list((page.parent / "figures").iterdir())
    assert len(figures) == 7
    assert not any("<script" in path.read_text() for path in figures)


@pytest.mark.parametrize("forms", [("standalone", "pooled"), ("residual",), ("standalone",)])
@pytest.mark.parametrize("classes", [1, 4])
def test_any_set_of_rules_can_be_reported(tmp_path: Path, forms: tuple[str, ...], classes: int) -> None:
    made = make_summary(make_config(), forms, classes, facts=classes == 4)  # without facts, as older versions wrote it
    html = write_report(tmp_path, make_config(), made, None).read_text()
    subject = "RED answers" if "residual" in forms else "The mixture of experts answers"
    assert f"<h1>{subject}" in html
    assert "Ablations and further experiments" not in html
    assert ("get most from their own expert" in html) == (classes == 4)
    assert "moves the answers" not in html


def test_a_summary_with_hardly_anything_can_be_reported(tmp_path: Path) -> None:
    bare = {"accuracy": {"mean": 0.5, "low": 0.4, "high": 0.6}}
    made = {"data": make_summary(make_config())["data"], "rules": {"red": bare, "other": bare}}
    assert "nothing to compare" in write_report(tmp_path, make_config(), made, None).read_text()


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RedxError, match=r"needs matplotlib; .* 'redx\[report\]'"):
        write_report(tmp_path, make_config(), make_summary(make_config()), None)
