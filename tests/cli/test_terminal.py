"""The terminal: mistakes answered without torch, tables without cut cells, sentences that end at words."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import redx
from helpers.commands import Ask, refused, succeeded
from redx.cli import app, early
from redx.cli.common import say, show_table
from redx.cli.layout import fold, lay_out, wrap
from redx.composition.noise import NOISES
from redx.composition.rules import RULES

LONG = ["kitchen_and_dining", "auto_and_commute", "a_domain_with_a_name_that_no_terminal_likes_at_all", "8-9"]

ask_without_torch = """
import sys
from redx.cli import main
try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run tyo", "did you mean 'toy'"),
        ("run toy --preset quik", "did you mean 'quick'"),
        ("run toy --run bothh", "red, moe, all"),
        ("run toy --set router.hiden=3", "did you mean 'router.hidden'"),
        ("run mnist --risk 2", "less than or equal to 1"),
        ("run jsonl --data here/examples.jsnl", "did you mean here/examples.jsonl"),
        ("sweep toy --preset quik", "did you mean 'quick'"),
        ("sweep toy --set rooter.hidden=3", "did you mean 'router.hidden'"),
        ("evaluate runs/toi", "did you mean runs/toy"),
        ("evaluate runs/toy --rule redd", "did you mean 'red'"),
        ("evaluate runs/toy --noise swip", "did you mean 'swap'"),
        ("evaluate runs/toy --level 1.5", "--level lies between 0 and 1, not 1.5"),
        ("calibrate runs/toy --risk 2", "--risk lies between 0 and 1, not 2"),
        ("certify --parts nowhere.npz", "There is no file nowhere.npz; give another with --parts FILE"),
        ("experts remove runs/toy 8-8", "did you mean '8-9'"),
        ("experts add runs/toy nowhere", "The expert nowhere is not there"),
        ("report runs/toy runs/toi", "did you mean runs/toy"),
        ("monitor runs/toy nowhere", "There is no file nowhere"),
        ("check runs/toy --against runs/toi", "did you mean runs/toy"),
    ],
    ids=lambda value: value,
)
def test_mistakes_are_answered_without_torch(words: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "runs" / "toy" / "seed-0" / "experts" / "8-9").mkdir(parents=True)
    for name in ("config.json", "seed-0/experts/8-9/expert.json"):
        (tmp_path / "runs" / "toy" / name).write_text("{}")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "examples.jsonl").write_text("")
    command = [sys.executable, "-c", ask_without_torch, *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    refused((done.returncode, done.stdout, done.stderr), message)


def test_names_that_are_checked_early_are_those_that_redx_registers() -> None:
    for known, registry in ((early.RULES, RULES), (early.NOISES, NOISES)):
        own = [name for name, entry in registry.items() if type(entry).__module__.startswith("redx.composition")]
        assert own == list(known)


def test_the_shell_completes_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # whatever shell runs the tests
    runner = CliRunner()
    shown = runner.invoke(app, ["--show-completion", "bash"], prog_name="redx")
    assert "_REDX_COMPLETE" in shown.output
    for words, place, expected in (("redx run to", 2, "toy"), ("redx exp", 1, "experts"), ("redx run tyo --p", 3, "")):
        values = {"_REDX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
        done = runner.invoke(app, [], prog_name="redx", env=values)
        assert expected in done.output
        assert "Traceback" not in done.output


# --- width


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_table_fits_and_no_cell_is_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ["domain", "calibrated on", *LONG, "harm", "any router", "what it says of the examples"]
    rows = [[name, "1234 + (silent)", *["0.1234"] * 6, "words that say something"] for name in LONG]
    show_table(columns, rows, "By domain", spare=("harm",))
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in out
    for name in LONG:
        assert name in re.sub(r"[│\s]", "", "".join(line.split("│")[1] for line in lines if line.startswith("│")))
    assert out.count("0.1234") in (5 * 4, 6 * 4)


def test_only_headings_are_stacked_where_that_is_enough() -> None:
    (layout,), left_out = lay_out(["domain", "calibrated on"], [["a_b", "12"]], 22, False, ())
    assert (layout.headings, layout.rows, left_out) == (("domain", "calibrated\non"), (("a_b", "12"),), [])


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("kitchen_and_dining", 12, ["kitchen_and_", "dining"]),
        ("0.1234-0.2345", 8, ["0.1234-0", ".2345"]),
        ("one two", 5, ["one", "two"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("", 3, [""]),
    ],
)
def test_names_are_folded_at_their_parts(text: str, width: int, lines: list[str]) -> None:
    assert fold(text, width).split("\n") == lines


def test_sentences_end_at_words_and_paths_stay_whole() -> None:
    path = "/a" * 30
    assert wrap(f"It is in {path}.", 40) == f"It is in\n{path}."
    assert wrap("short", 40) == "short"


def on_terminal(words: list[str], tmp_path: Path) -> str:
    """Return what a command writes to a terminal of 80 columns."""
    parent, child = pty.openpty()
    values = os.environ | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    done = subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=values, stdout=child, stderr=child)
    os.close(child)
    pieces = []
    while True:
        try:
            piece = os.read(parent, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    done.wait()
    os.close(parent)
    return b"".join(pieces).decode()


def test_a_terminal_is_told_what_is_slow_and_gets_whole_words(tmp_path: Path) -> None:
    assert on_terminal(["-m", "redx", "doctor"], tmp_path).startswith("loading …\r")
    text = on_terminal(["-m", "redx", "run", "tyo"], tmp_path)
    assert "loading" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert " ".join(text.split()).startswith("redx: There is no task 'tyo' (did you mean 'toy'?); choose one of")


def test_lines_are_not_broken_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("word " * 50)
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "evaluate RUN",
        "certify RUN",
        "calibrate RUN --risk 0.1",
        "experts list RUN",
        "experts diff RUN --remove 0",
        "check RUN --min-accuracy 0.1",
        "list",
        "doctor",
        "inspect RUN",
    ],
)
def test_tables_of_verbs_fit_80_columns(
    ask: Ask, clouds_copy: Path, words: str, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = succeeded(ask(*(str(clouds_copy) if word == "RUN" else word for word in words.split())))
    table = [line for line in out.splitlines() if line[:1] in "┏┃┡│└"]
    assert table
    assert max(map(len, table)) <= 80
    assert not any("…" in line for line in table)


def test_all_extras_are_described(ask: Ask) -> None:
    out = succeeded(ask("doctor", "--json"))
    for extra in ("text", "tables", "report", "serve", "track", "cluster", "sign", "onnx"):
        assert f'"extra {extra}"' in out


def test_every_preset_of_redx_says_how_long_it_takes_or_nothing() -> None:
    for task in redx.TASKS.values():
        assert set(task.takes) <= set(task.presets)
