"""The command line as a whole: help, fast start, and one clear sentence for every mistake."""

from __future__ import annotations

import subprocess
import sys

import pytest

import redx
from helpers.commands import Ask, refused
from redx.cli import PANELS, app

COMMANDS = [(command.name or getattr(command.callback, "__name__", ""),) for command in app.registered_commands]


NESTED = [("fetch", "mnist"), ("fetch", "intents"), ("fetch", "adapters-data"), ("run", "adapters")]
NESTED += [("adapters", verb) for verb in ("add", "list", "remove", "save", "export-decomposer")]


@pytest.mark.parametrize("command", [*COMMANDS, *NESTED], ids=" ".join)
def test_every_command_has_help_with_an_example(ask: Ask, command: tuple[str, ...]) -> None:
    code, out, _ = ask(*command, "--help")
    assert code == 0
    assert "Example" in out
    assert "--json" in out


def test_help_shows_every_verb_once_and_run_first(ask: Ask) -> None:
    groups = [group.name for group in app.registered_groups]
    verbs = [name for names in PANELS.values() for name in names]
    assert sorted(verbs) == sorted([*(name for (name,) in COMMANDS), *filter(None, groups)])
    _, out, _ = ask("--help")
    shown = [line.split()[1] for line in out.splitlines() if line.startswith("│ ") and line[2] not in " -"]
    assert shown == verbs


def test_light_commands_import_nothing_heavy() -> None:
    code = "import sys; from redx.cli import main\ntry: main(['list'])\nfinally: assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "nothing"), ("no task 'nothing'", "toy")),
        (("run", "toy", "--preset", "huge"), ("no preset 'huge'", "quick")),
        (("run", "toy", "--seed", "-1"), ("seed", "-1")),
        (("run", "toy", "--run", "nothing"), ("red", "moe", "all")),
        (("run", "mnist", "--run", "moe", "--integrate"), ("residual/plain", "--integrate")),
        (("run", "mnist", "--device", "tpu"), ("device", "cpu")),
        (("run", "toy", "--batch-size", "0"), ("batch", "greater")),
        (("run", "mnist", "--risk", "2"), ("risk", "less")),
        (("run", "mnist", "--data-dir", "nowhere"), ("nowhere", "--data-dir")),
        (("fetch", "mnist", "--data-dir", "nowhere"), ("nowhere", "--data-dir")),
        (("run", "toy", "--seed", "1", "--seed", "1"), ("seed", "only once")),
        (("evaluate", "RUN", "--rule", "best"), ("no rule 'best'", "red")),
        (("evaluate", "RUN", "--rule", "red/none"), ("no bank 'none'", "anchored")),
        (("evaluate", "RUN", "--noise", "thunder"), ("noise", "swap")),
        (("evaluate", "RUN", "--level", "1.5"), ("1.5", "between 0 and 1")),
        (("evaluate", "RUN", "--epsilon", "-0.1"), ("-0.1", "between 0 and 1")),
        (("certify", "RUN", "--epsilon", "2"), ("between 0 and 1",)),
        (("certify", "RUN", "--seed", "9"), ("seed 9",)),
        (("certify", "nowhere"), ("nowhere", "redx run")),
        (("report", "nowhere"), ("nowhere",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_mistakes_get_one_sentence(
    ask: Ask, clouds: redx.Run, words: tuple[str, ...], message: tuple[str, ...]
) -> None:
    refused(ask(*(str(clouds.folder) if word == "RUN" else word for word in words)), *message)


def test_debug_shows_the_traceback(ask: Ask) -> None:
    with pytest.raises(redx.RedxError):
        ask("run", "nothing", "--debug")
