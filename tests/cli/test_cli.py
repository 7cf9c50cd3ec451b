"""The command line: helpful, fast to answer, and one clear sentence for whatever is wrong."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from asking import Ask, refused
from safetensors.torch import load_file, save_file

import redx
from redx.cli import app
from redx.tasks.arithmetic.questions import KINDS


@pytest.fixture
def copy(toy: redx.Run, tmp_path: Path) -> Path:
    shutil.copytree(toy.folder, tmp_path / "toy")
    return tmp_path / "toy"


VERBS = [(command.name or getattr(command.callback, "__name__", ""),) for command in app.registered_commands]


@pytest.mark.parametrize("verb", [*VERBS, ("fetch", "mnist")])
def test_every_verb_helps_with_an_example(ask: Ask, verb: tuple[str, ...]) -> None:
    code, out, _ = ask(*verb, "--help")
    assert code == 0
    assert "Example" in out
    assert "--json" in out


def test_light_commands_import_nothing_heavy() -> None:
    code = "import sys; from redx.cli import main\ntry: main(['list'])\nfinally: assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_list_and_doctor(ask: Ask) -> None:
    code, out, _ = ask("list", "--json")
    assert code == 0
    assert "toy" in json.loads(out)
    code, out, _ = ask("doctor", "--json")
    assert code == 0
    assert json.loads(out)["torch"] == torch.__version__


def test_evaluate_answers_other_questions_without_training(ask: Ask, toy: redx.Run, tmp_path: Path) -> None:
    words = ("--rule", "red", "--noise", "swap", "--level", "0.3", "--epsilon", "0.2")
    code, out, _ = ask("evaluate", toy.folder, *words, "--json", "--out", tmp_path / "rows.jsonl")
    assert code == 0
    rules = json.loads(out)["rules"]
    assert set(rules) == {"red", "red/residual"}
    assert set(rules["red"]["certified"]) == {"0.2"}
    assert set(rules["red"]["noise"]["swap"]) == {"0.3"}
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) > 5
    code, out, _ = ask("evaluate", toy.folder, "--rule", "moe/mlp")
    assert code == 0
    assert "moe/mlp" in out


def test_certify_agrees_with_the_summary(ask: Ask, toy: redx.Run) -> None:
    code, out, _ = ask("certify", toy.folder, "--rule", "base", "--json")
    assert code == 0
    assert json.loads(out)["certified"] == toy.summary["rules"]["base"]["certified"]
    code, out, _ = ask("certify", toy.folder)
    assert code == 0
    assert "breakable" in out


def test_report_of_one_and_of_several(ask: Ask, copy: Path, toy: redx.Run, tmp_path: Path) -> None:
    code, out, _ = ask("report", copy)
    assert code == 0
    assert str(copy / "report.html") in out.replace("\n", "")
    code, _, _ = ask("report", copy, toy.folder, "--out", tmp_path / "both.html")
    assert code == 0
    assert (tmp_path / "both.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "nothing"), ("no task 'nothing'", "toy")),
        (("run", "toy", "--preset", "huge"), ("no preset 'huge'", "quick")),
        (("run", "toy", "--seed", "-1"), ("seed", "-1")),
        (("run", "toy", "--run", "nothing"), ("red", "moe", "all")),
        (("run", "toy", "--integrate"), ("residual/plain", "--integrate")),
        (("run", "toy", "--device", "tpu"), ("device", "cpu")),
        (("run", "toy", "--batch-size", "0"), ("batch", "greater")),
        (("run", "mnist", "--alpha", "2"), ("alpha", "less")),
        (("run", "mnist", "--data-dir", "nowhere"), ("nowhere", "--data-dir")),
        (("fetch", "mnist", "--data-dir", "nowhere"), ("nowhere", "--data-dir")),
        (("run", "toy", "--seed", "1", "--seed", "1"), ("seed", "only once")),
        (("evaluate", "RUN", "--rule", "best"), ("no rule 'best'", "red")),
        (("evaluate", "RUN", "--rule", "red/none"), ("no bank 'none'", "residual")),
        (("evaluate", "RUN", "--noise", "thunder"), ("noise", "swap")),
        (("evaluate", "RUN", "--level", "1.5"), ("1.5", "between 0 and 1")),
        (("evaluate", "RUN", "--epsilon", "-0.1"), ("-0.1", "between 0 and 1")),
        (("certify", "RUN", "--epsilon", "2"), ("between 0 and 1",)),
        (("certify", "RUN", "--seed", "9"), ("seed 9",)),
        (("certify", "nowhere"), ("nowhere", "redx run")),
        (("report", "nowhere"), ("nowhere",)),
    ],
)
def test_bad_words_get_one_sentence(ask: Ask, toy: redx.Run, words: tuple[str, ...], told: tuple[str, ...]) -> None:
    refused(ask(*(str(toy.folder) if word == "RUN" else word for word in words)), *told)


def test_folder_of_another_task(ask: Ask, copy: Path) -> None:
    before = (copy / "config.json").read_bytes()
    refused(ask("run", "toy-mlp", "--out", copy), "holds a run of 'toy'", "--out")
    refused(ask("run", "toy", "--preset", "quick", "--out", copy), "other settings", "--out")
    assert (copy / "config.json").read_bytes() == before


def test_folder_that_holds_something_else(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    refused(ask("run", "toy", "--out", tmp_path), "not empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.txt"]


@pytest.mark.parametrize("content", ['{"task": "toy", "see', "[]", '{"task": 3}', ""])
def test_truncated_config(ask: Ask, copy: Path, content: str) -> None:
    (copy / "config.json").write_text(content)
    refused(ask("certify", copy), "config.json")
    refused(ask("run", "toy", "--out", copy), "config.json")
    assert (copy / "config.json").read_text() == content


def test_nan_and_truncated_parts(ask: Ask, copy: Path) -> None:
    path = copy / "seed-0" / "parts" / "residual-residual.safetensors"
    tensors = load_file(path)
    tensors["residuals"][0, 0, 0] = torch.nan
    save_file(tensors, path)
    refused(ask("certify", copy), "Parts.residuals", "NaN")
    path.write_bytes(path.read_bytes()[:-40])
    refused(ask("certify", copy), path.name, "truncated")


def test_read_only_folder_and_full_disk(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    refused(ask("run", "toy", "--out", file / "run"), "Cannot write", "--out")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.geteuid() == 0:  # root may write anywhere, so let the system say no for it
        monkeypatch.setattr("builtins.open", _no_space_for(locked))
    refused(ask("run", "toy", "--out", locked), "Cannot write", "--out")
    monkeypatch.undo()
    monkeypatch.setattr(os, "replace", _full)
    refused(ask("run", "toy", "--out", tmp_path / "full"), "Cannot write", "free space")
    assert not [path for path in (tmp_path / "full").iterdir() if path.name != ".lock"]


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def _no_space_for(folder: Path) -> Callable[..., object]:
    real = open

    def guarded(path: object, *rest: object, **more: object) -> object:
        if str(path).startswith(str(folder)):
            raise PermissionError(13, "Permission denied")
        return real(path, *rest, **more)  # type: ignore[call-overload]

    return guarded


def test_two_runs_cannot_write_one_folder(ask: Ask, copy: Path) -> None:
    from redx.runs.folder import lock_run, read_config

    config = read_config(copy)
    with lock_run(copy, config):
        refused(ask("run", "toy", "--preset", "quick", "--out", copy), "Another run is writing")


def test_debug_shows_the_traceback(ask: Ask) -> None:
    with pytest.raises(redx.RedxError):
        ask("run", "nothing", "--debug")


# Text


def test_predict_tells_who_said_what(ask: Ask, addition: redx.Run) -> None:
    code, out, _ = ask("predict", addition.folder, "What is 37 plus 12?", "--json")
    (told,) = json.loads(out)
    assert code == 0
    assert told["text"] == "What is 37 plus 12?"
    assert {"answer", "range", "expert", "base", "weights", "contributions", "radius"} <= set(told)
    code, out, _ = ask("predict", addition.folder, "What is 37 plus 12?", "--rule", "sum")
    assert code == 0
    assert all(name in out for name in ("range_2_20", "certified radius", "weight"))


@pytest.mark.parametrize(
    ("text", "named"), [("", "no text"), ("x" * 10_000, "10,000"), ("a\0b", "NUL"), ("   ", "no text")]
)
def test_predict_refuses_what_it_cannot_read(ask: Ask, addition: redx.Run, text: str, named: str) -> None:
    code, _, err = ask("predict", addition.folder, text)
    assert code == 2
    assert named in err
    assert len(err.splitlines()) == 1


def test_predict_needs_a_run_that_reads_text(ask: Ask, toy: redx.Run) -> None:
    code, _, err = ask("predict", toy.folder, "1 2")
    assert code == 2
    assert "redx.load" in err


@pytest.mark.parametrize("kind", KINDS)
def test_data_makes_every_kind(ask: Ask, kind: str, tmp_path: Path) -> None:
    code, out, _ = ask("data", kind, "--out", tmp_path / "made.jsonl", "--total", "200", "--seed", "3", "--json")
    assert code == 0
    assert json.loads(out)["questions"] == 200
    lines = [json.loads(line) for line in (tmp_path / "made.jsonl").read_text().splitlines()]
    assert len(lines) == 200
    assert all(tuple(line) == KINDS[kind].fields for line in lines)


def test_data_refuses_what_there_is_not(ask: Ask, tmp_path: Path) -> None:
    for words in (["nosuch"], ["addition", "--operators", "2"], ["ops", "--operation", "pow"]):
        code, _, err = ask("data", *words, "--out", tmp_path / "x.jsonl")
        assert code == 2
        assert err.startswith("redx: ")
        assert not (tmp_path / "x.jsonl").exists()


def test_the_cache_is_shown_and_cleared(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path))
    (tmp_path / "features" / "x").mkdir(parents=True)
    (tmp_path / "features" / "x" / "a.npy").write_bytes(b"12345")
    assert json.loads(ask("cache", "info", "--json")[1])["entries"][0]["bytes"] == 5
    assert "features" in ask("cache", "info")[1]
    assert json.loads(ask("cache", "clear", "features", "--json")[1]) == {"freed": 5}
    assert ask("cache", "clear", "nosuch")[0] == 2


def test_fetch_backbone_knows_folders_and_refuses_the_rest(ask: Ask, qwen: Path) -> None:
    assert json.loads(ask("fetch", "backbone", qwen, "--json")[1]) == {"folder": str(qwen)}
    code, _, err = ask("fetch", "backbone", "nosuch")
    assert code == 2
    assert "smollm2-135m" in err
