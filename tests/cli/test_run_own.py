"""x"""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_lm

from redx.cli import main


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_lm.bert(tmp_path_factory.mktemp("lm") / "bert")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "jsonl"), "--data FILE"),
        (("run", "toy", "--text", "body"), "Task 'toy' reads no table of yours; leave out --text."),
        (("run", "features", "--data", "no.npz"), "no file no.npz"),
        (("run", "features", "--data", "no.npz", "--share", "2"), "base.share"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(
    words: tuple[str, ...], told: str, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ("--backbone", str(bert)) if "jsonl" in words else ()
    with pytest.raises(SystemExit) as stop:
        main([*words, *extra])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
