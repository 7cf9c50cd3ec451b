"""The report: complete, self-contained, escaped, the same bytes every time, and honest either way."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import problems
import pytest

from redx.composition.evaluation import Banks, evaluate, summarise
from redx.composition.noise import NOISES
from redx.composition.rules import RULES
from redx.config import BankConfig, RunConfig
from redx.errors import RedxError
from redx.io import files
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.report.figures import draw_figure
from redx.report.sections import verdict
from redx.runs.reports import read_study, write_report, write_reports

DOMAINS = ("low", "middle", "high")
EVIL = "<script>alert('x')</script>|*_`$\\frac"

STUDY = Study(
    {"answer": 42},
    (Table("Mixing", ("case", "share", "count"), (("one", 0.5, 3), ("two", None, 4)), "A note."),),
    (
        Figure(
            "curves", "Curves.", (Panel("left", "x", "y", (Line("truth", (1, 10), (0, 1), dashed=True),), log_x=True),)
        ),
        Figure("surface", "A surface.", (Panel("error", "a", "b", grid=((0, 1), (2, 3)), extent=(0, 1, 0, 1)),)),
    ),
)


def settings(**changes: Any) -> RunConfig:
    banks = {
        "residual/plain": BankConfig(shape="mlp"),
        "residual/anchored": BankConfig(shape="mlp"),
        "standalone/linear": BankConfig(shape="linear"),
    }
    main = {"residual": "anchored", "standalone": "linear", "pooled": "linear"}
    return RunConfig.model_validate({"task": "toy", "preset": "quick", "banks": banks, "main": main, **changes})


def summary(
    config: RunConfig, forms: tuple[str, ...] = ("residual", "standalone", "pooled"), classes: int = 4
) -> dict[str, Any]:
    """What a run over random parts would write."""
    banks: Banks = {}
    for seed, key in enumerate(config.banks):
        form, name = key.split("/")
        if form in forms:
            banks[form, name] = problems.draw(40, 3, classes, seed)
    if "pooled" in forms:
        banks["pooled", "linear"] = problems.draw(40, 1, classes)
    rows = evaluate(
        banks, task=config.task, seed=0, domains=DOMAINS, kinds=config.noise, levels=(0, 0.5, 1), epsilons=(0, 0.5, 1)
    )
    return {
        "schema": 1,
        "data": {"train": 100, "validation": 10, "test": 40, "split": "disjoint", "seen_in_train": 0.0},
        "domains": list(DOMAINS),
        "rules": summarise(rows, config.main, 40),
        "router": {"accuracy": 0.5},
        "cost": {"seconds": {"experts": 1.5, "total": 1.5}, "peak_memory_mb": 500.2, "parameters": {"base": 1234}},
    }


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    folder = tmp_path_factory.mktemp("run")
    page = write_report(folder, settings(), summary(settings()), STUDY)
    assert page == folder / "report.html"
    return page.read_text(), (folder / "report.md").read_text(), folder


def check_tables(text: str) -> None:
    """All rows of a Markdown table have as many cells as its head."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table


def test_page_asks_nothing_from_outside(pages: tuple[str, str, Path]) -> None:
    html = re.sub(r'xmlns(:\w+)?="[^"]*"', "", pages[0])
    assert not re.search(r"https?://|<script|<link|@import|url\((?!#)", html)
    assert "currentColor" in html
    assert "#010203" not in html


def test_ids_are_unique(pages: tuple[str, str, Path]) -> None:
    found = re.findall(r' id="([^"]*)"', pages[0])
    assert len(found) == len(set(found))


def test_everything_is_told(pages: tuple[str, str, Path]) -> None:
    html, text, folder = pages
    rules = summary(settings())["rules"]
    for page in (html, text):
        assert all(name in page for name in (*rules, *RULES, *NOISES, *DOMAINS, "1,234", "A note.", "Mixing"))
        assert "redx run toy --preset quick --seed 0" in page
        assert "red/anchored †" in page
        assert "red/plain †" not in page
    assert '"banks"' in html.replace("&#34;", '"')
    assert all((folder / link).exists() for link in re.findall(r"\]\((figures/.*?)\)", text))
    assert len(list((folder / "figures").iterdir())) == 4


def test_an_alias_has_no_row_of_its_own(pages: tuple[str, str, Path]) -> None:
    head = pages[1].split("## Accuracy by domain")[0]
    assert not re.search(r"^\| red \|", head, re.MULTILINE)
    assert len(re.findall(r"^\| red/", head, re.MULTILINE)) == 2


def test_markdown_tables_are_regular(pages: tuple[str, str, Path]) -> None:
    check_tables(pages[1])


def test_same_bytes_twice(pages: tuple[str, str, Path], tmp_path: Path) -> None:
    write_report(tmp_path, settings(), summary(settings()), STUDY)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert path.read_bytes() == (pages[2] / path.relative_to(tmp_path)).read_bytes()


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    config = settings(task=EVIL, backbone=EVIL)
    made = summary(config)
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
def test_works_with_whatever_rules_there_are(tmp_path: Path, forms: tuple[str, ...], classes: int) -> None:
    page = write_report(tmp_path, settings(), summary(settings(), forms, classes), None)
    assert ("no RED to judge" in page.read_text()) == ("residual" not in forms)
    assert "<h2>Study</h2>" not in page.read_text()


def test_works_with_hardly_anything(tmp_path: Path) -> None:
    bare = {"accuracy": {"mean": 0.5, "low": 0.4, "high": 0.6}}
    made = {"data": summary(settings())["data"], "rules": {"red": bare, "other": bare}}
    assert "no composition to judge" in write_report(tmp_path, settings(), made, None).read_text()


@pytest.mark.parametrize(("worst", "words"), [(0.7, "0.1000 below the base"), (0.8, "does not fall below the base")])
def test_headline_says_it_either_way(worst: float, words: str) -> None:
    def entry(mean: float) -> dict[str, Any]:
        return {"accuracy": {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}}

    red = {**entry(0.75), "certified": {"1": worst}, "noise": {"swap": {"1": 0.72}}}
    said = " ".join(verdict({"base": entry(0.8), "red": red, "global": entry(0.755)}))
    assert words in said
    assert "0.0500 below the base (0.8000)" in said
    assert "0.0050 below the head trained on all data pooled (0.7550; the intervals overlap)" in said
    assert "wrong expert leaves 0.7200" in said


def test_figures_follow_the_page_or_stand_alone() -> None:
    figure = STUDY.figures[0]
    assert draw_figure(figure, "a") == draw_figure(figure, "a")
    assert "prefers-color-scheme" in draw_figure(figure, "a")
    assert "<style" not in draw_figure(figure, "a", figure.panels[0])


def save(folder: Path, study: Study | None = None, **changes: Any) -> Path:
    config = settings(noise=("swap",), **changes)
    files.write_json(folder / "config.json", config.model_dump(mode="json"))
    files.write_json(folder / "summary.json", summary(config))
    if study:
        files.write_json(folder / "study.json", asdict(study))
    return folder


def test_study_comes_back_as_it_was(tmp_path: Path) -> None:
    assert read_study(save(tmp_path / "a", STUDY)) == STUDY
    assert read_study(save(tmp_path / "b")) is None
    files.write_json(tmp_path / "b" / "study.json", {"tables": 3})
    with pytest.raises(RedxError, match="does not hold a study"):
        read_study(tmp_path / "b")


def test_combine(tmp_path: Path) -> None:
    one, two = save(tmp_path / "one", STUDY), save(tmp_path / "x" / "one", seeds=(3, 4))
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


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RedxError, match=r"needs matplotlib; .* 'redx\[report\]'"):
        write_report(tmp_path, settings(), summary(settings()), None)
