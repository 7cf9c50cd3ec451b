"""The example of a plugin is installed in an environment of its own, and its task, router and rule work there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BROKEN = """
import redx

redx.RULES.register("red", lambda parts: parts.gates)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the variables of an environment that has the plugin as well."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(ROOT / "examples" / "plugin", folder / "source")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", folder / "site", folder / "source"], check=True, timeout=300)
    path = os.pathsep.join([str(folder / "site"), str(ROOT / "src")])
    return {**os.environ, "PYTHONPATH": path, "REDX_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}


def ask(environment: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "redx", *words]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_the_plugin_runs(environment: dict[str, str], tmp_path: Path) -> None:
    listed = ask(environment, tmp_path, "list")
    assert "Handwritten digits of four owners." in listed.stdout, listed.stderr
    run = ask(environment, tmp_path, "run", "mine", "--preset", "quick")
    assert run.returncode == 0, run.stderr
    summary = json.loads((tmp_path / "runs" / "mine" / "summary.json").read_text())
    assert {"red", "loudest", "moe"} <= set(summary["rules"])
    rules = summary["rules"]
    assert rules["loudest"]["accuracy"]["mean"] > rules["base/shared"]["accuracy"]["mean"]
    report = (tmp_path / "runs" / "mine" / "report.md").read_text()
    assert "loudest" in report
    config = json.loads((tmp_path / "runs" / "mine" / "config.json").read_text())
    assert config["router"]["shape"] == "nearest"
    code = "import redx, torch; print(redx.load('runs/mine').predict(torch.zeros(2, 64)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert loaded.returncode == 0, loaded.stderr
    for words in (
        ("predict", "runs/mine", "--help"),
        ("evaluate", "runs/mine", "--rule", "loudest", "--noise", "swap", "--level", "0.3"),
        ("certify", "runs/mine", "--rule", "loudest"),
        ("router", "train", "runs/mine"),
        ("experts", "list", "runs/mine"),
    ):
        done = ask(environment, tmp_path, *words)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.slow
def test_the_router_of_the_plugin_works_in_another_task(environment: dict[str, str], tmp_path: Path) -> None:
    words = ("run", "toy-residual", "--preset", "quick", "--router", "nearest")
    done = ask(environment, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    without = {**environment, "PYTHONPATH": str(ROOT / "src")}
    refused = ask(without, tmp_path, "evaluate", "runs/toy-residual", "--rule", "loudest")
    assert refused.returncode == 2
    assert "There is no rule 'loudest'" in refused.stderr
    lost = ask(without, tmp_path, "run", "mine")
    assert lost.returncode == 2
    wrong = ask(without, tmp_path, "run", "toy", "--router", "nearest", "--out", "other")
    assert wrong.returncode == 2
    assert "There is no router 'nearest'; choose one of keys, linear, mlp." in " ".join(wrong.stderr.split())
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_plugin_that_takes_a_name_is_refused_by_name(environment: dict[str, str], tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(environment["PYTHONPATH"].split(os.pathsep)[0], site)
    (site / "redx_mine" / "__init__.py").write_text(BROKEN)
    broken = {**environment, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "src")])}
    refused = ask(broken, tmp_path, "list")
    assert refused.returncode == 2
    expected = "The plugin 'mine' of the package 'redx-mine' does not load (There is a rule 'red' already"
    assert expected in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_the_commands_of_the_guide_put_a_rule_and_a_head_beside_ours(
    environment: dict[str, str], tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "guide" / "your-method.md").read_text()
    rule = "def loudest" + page.partition("def loudest")[2].partition("```")[0]
    assert rule.strip() in (ROOT / "examples" / "plugin" / "src" / "redx_mine" / "__init__.py").read_text()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = [line for line in page.splitlines() if line.startswith(("redx ", "python "))]
    assert len(commands) == 5
    printed = ""
    for command in commands:
        name, *words = command.split()
        start = [sys.executable, "-m", "redx"] if name == "redx" else [sys.executable]
        done = subprocess.run(
            [*start, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    assert "loudest" in (tmp_path / "runs" / "mine" / "report.md").read_text()
    assert "Accuracy 0." in printed
