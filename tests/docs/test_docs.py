"""The commands, the Python code and the examples of the documentation work."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn

import redx
from helpers.clinc import real_folder
from helpers.pages import ROOT, fenced_blocks
from helpers.parts import draw_parts, write_parts
from helpers.serving import asking
from redx.cli import main
from redx.engine import ENGINES
from redx.models.calibration import read_calibration, write_calibration
from redx.runs import pipeline, presets, sweep
from redx.runs.sweep import Sweep, make_cells, parse_grid
from redx.runs.transaction import edit

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNS = {  # by fixture
    "toy": "toy",
    "mnist": "toy",
    "addition": "addition",
    "mixed": "addition",
    "intents": "addition",
    "steps": "chains",
    "adapters": "adapters",
}


COMMANDS = list(
    dict.fromkeys(  # many pages show the same command
        tuple(shlex.split(line, comments=True)[1:])
        for page in PAGES
        for block in fenced_blocks(page, "")
        for line in block.splitlines()
        if line.startswith("redx ")
    )
)


def is_slow(words: tuple[str, ...]) -> bool:
    """Return whether a command needs a finished run or a download."""
    return words[0] == "fetch" or words[:2] == ("run", "adapters") or any(f"runs/{name}" in words for name in RUNS)


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=pytest.mark.slow if is_slow(words) else ()) for words in COMMANDS],
    ids=[" ".join(words) for words in COMMANDS],
)
def test_commands_in_the_documents_run(
    words: tuple[str, ...],
    clouds: redx.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    for name, fixture in RUNS.items():
        if f"runs/{name}" in words:
            run: redx.Run = request.getfixturevalue(fixture)
            shutil.copytree(run.folder, tmp_path / "runs" / name)
            monkeypatch.setenv("REDX_CACHE", str(run.folder.parent / "cache"))
            if words[0] == "calibrate":
                calibrate_on_many_examples(tmp_path / "runs" / name / "seed-0")
    if words[:2] == ("fetch", "intents"):
        monkeypatch.setenv("REDX_DATA", str(real_folder()))
    for name in (word for word in words if word.endswith(".npz") and "--parts" in words):
        write_parts(tmp_path / name, draw_parts(400, 3, 4))
    if words[0] == "run" and "--data" in words:
        (tmp_path / words[words.index("--data") + 1]).touch()
    if words[0] in ("cache", "doctor"):
        monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    if words[0] == "monitor":
        record_answers(tmp_path)
    if words[0] in ("serve", "route"):
        monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)  # it would wait for Ctrl+C
    configured: list[Any] = []

    def run_nothing(
        name: str,
        preset: str,
        assignments: Any = (),
        seeds: Any = None,
        out: Any = None,
        engine: str = "local",
        address: str | None = None,
        **changes: Any,
    ) -> redx.Run:
        assert engine in ENGINES
        configured.append(presets.configure(name, preset, assignments, seeds=seeds, **changes))
        return clouds

    def sweep_nothing(name: str, preset: str, grid: Any, seeds: Any, *places: Any, **changes: Any) -> Sweep:
        cells = make_cells(name, preset, parse_grid(grid), seeds, tmp_path, changes)
        configured.extend(cells)
        first = {"folder": "first", "settings": cells[0].settings, "choice": None}
        return Sweep(tmp_path, {"grid": parse_grid(grid), "cells": [first], "test": None})

    monkeypatch.setattr(pipeline, "run", run_nothing)
    monkeypatch.setattr(sweep, "sweep", sweep_nothing)
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    # the experts of the tests are hardly trained: a chain may leave the range, which `solve` reports by exit code 1
    assert stop.value.code in ((None, 0, 1) if words[0] == "solve" else (None, 0))
    assert bool(configured) == (words[0] in ("run", "sweep"))


def record_answers(folder: Path) -> None:
    """Let a run that is served have given answers, some of whose labels became known."""
    with asking(folder / "runs" / "intents", audit=folder / "answers.jsonl") as client:
        numbers = range(20, 50)
        inputs = [f"What is {number} plus 12?" for number in numbers]
        answers = client.post("/api/predict", json={"inputs": inputs}).json()["answers"]
    sums = zip(answers, numbers, strict=True)
    rows = "".join(f"{answer['id']},{number + 12}\n" for answer, number in list(sums)[::2])
    (folder / "labels.csv").write_text(f"id,label\n{rows}")


def calibrate_on_many_examples(folder: Path) -> None:
    """Let a small run have as many calibration examples as the runs of the documentation."""
    before = read_calibration(folder)
    assert before is not None
    before.thresholds = {region: torch.linspace(-5, 5, 2_000) for region in before.thresholds}
    before.mistakes = torch.zeros(2_000, dtype=torch.bool)
    if before.domains is not None:
        before.domains = torch.arange(2_000) % len(before.domain_names)
    with edit(folder) as transaction:
        write_calibration(transaction.new("risk.json"), transaction.new("thresholds.safetensors"), before)


def test_the_documents_hold_commands() -> None:
    assert len(COMMANDS) >= 6


def test_the_fifteen_lines_of_the_readme_keep_their_promise() -> None:
    block = fenced_blocks(ROOT / "README.md", "python")[0]
    assert len([line for line in block.splitlines() if line.strip()]) <= 15
    found: dict[str, Any] = {}
    torch.manual_seed(0)  # the encoder's weights are random
    exec(block, found)
    model, x, y = found["model"], found["x"], found["y"]
    parts = model.parts(x[1500:])
    known = redx.Parts(parts.base, parts.residuals, parts.gates, y[1500:].long(), confidences=parts.confidences)
    figures = model.control.report(known)["after"]
    shared = model.base.classify(model.embed(x[1500:])).argmax(1) == y[1500:]  # before anybody's statistics
    assert figures["clean"] > float(shared.double().mean()) + 0.01
    assert figures["base"] > float(shared.double().mean()) + 0.01
    assert figures["clean"] >= figures["base"] - model.control.risk
    assert figures["low"] <= 0.01  # the exact lower bound of the harm
    assert [one.answer for one in model.explain(x[1500:1505])] == model.predict(x[1500:1505])


@pytest.mark.slow
@pytest.mark.parametrize("page", ["compose", "extend"])
def test_the_guides_to_python_run_as_they_stand(page: str, tmp_path: Path) -> None:
    blocks = fenced_blocks(ROOT / "docs" / "guide" / f"{page}.md", "python")
    assert len(blocks) >= 3
    command = [sys.executable, "-c", "\n".join(blocks)]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=600)


@pytest.mark.slow
def test_python_in_the_readme_runs(toy: redx.Run, tmp_path: Path) -> None:
    shutil.copytree(toy.folder, tmp_path / "runs" / "toy")
    _, block = fenced_blocks(ROOT / "README.md", "python")
    shorter = block.replace('redx.run("toy", preset="quick")', 'redx.load("runs/toy")')
    assert shorter != block
    subprocess.run([sys.executable, "-c", shorter], check=True, cwd=tmp_path, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, example, *(["0"] if example.name == "scikit_learn.py" else [])]  # one seed is enough
    done = subprocess.run(command, check=True, cwd=tmp_path, timeout=900, capture_output=True, text=True)
    assert done.stdout
