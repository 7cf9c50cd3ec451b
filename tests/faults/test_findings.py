"""The findings of a day of hostile testing, and which test fails without the cure of each.

 1  a kill during `experts add / remove / replace`     test_crash_points.py, test_signals.py
 2  names swapped or parts missing, read in silence    runs/test_parts.py, test_two_processes.py
 3  a refused `experts add` changes the run            here: test_an_expert_with_infinite_outputs_changes_nothing
 4  files of others deleted by `redx run --out`        runs/test_foreign_folders.py
 5  radii too large at ties                            composition/test_ties.py
 6  markup and escapes reach the terminal              here: test_text_from_outside_is_shown_as_it_is
 7  `experts train` and `export` of features           cli/test_experts.py, runs/test_checkpoint.py
 8  a small archive fills the memory                   test_files.py, `python -m faults.memory`
 9  caches with other bytes of the same size           test_files.py
10  experts without a fingerprint                      here: test_an_expert_without_a_fingerprint_is_refused
11  figures that an expert brings along                here: test_figures_of_an_expert_are_measured_anew
12  tracebacks from bad files                          test_files.py, test_fuzz.py
13  names that are too long, folders in place of files test_files.py
14  Ctrl-C                                             test_signals.py
15  names, umask, keys twice, missing domains          here: test_names_that_some_disk_refuses,
                                                       runs/test_foreign_folders.py, io/test_reading.py
16  versions                                           here: test_every_declared_package_is_pinned
"""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from faults.worlds import state_of
from helpers.commands import Ask, refused, succeeded
from redx.cli.common import show_table
from redx.errors import RedxError
from redx.io.files import check_name, write_json
from redx.io.reading import read_json

ROOT = Path(__file__).parents[2]


@pytest.fixture
def apart(clouds_copy: Path, tmp_path: Path, ask: Ask) -> Path:
    """An expert that was removed from the run."""
    succeeded(ask("experts", "remove", clouds_copy, "1"))
    return Path(shutil.copytree(clouds_copy / "seed-0" / "removed" / "1", tmp_path / "apart"))


@pytest.mark.parametrize("value", [float("inf"), 1e38])
def test_an_expert_with_infinite_outputs_changes_nothing(
    clouds_copy: Path, apart: Path, ask: Ask, value: float
) -> None:
    path = apart / "expert.safetensors"
    save_file({name: torch.full_like(tensor, value) for name, tensor in load_file(path).items()}, path)
    before = state_of(clouds_copy)
    refused(ask("experts", "add", clouds_copy, apart))
    assert state_of(clouds_copy) == before


def test_an_expert_without_a_fingerprint_is_refused(clouds_copy: Path, apart: Path, ask: Ask) -> None:
    write_json(apart / "expert.json", read_json(apart / "expert.json") | {"base": {}})
    before = state_of(clouds_copy)
    refused(ask("experts", "add", clouds_copy, apart), "--unverified")
    assert state_of(clouds_copy) == before
    code, _, err = ask("experts", "add", clouds_copy, apart, "--unverified")
    assert code == 0
    assert "base" in err


def test_figures_of_an_expert_are_measured_anew(clouds_copy: Path, apart: Path, ask: Ask) -> None:
    about = read_json(apart / "expert.json")
    metrics = dict.fromkeys(about["metrics"], 0.123456)
    write_json(apart / "expert.json", about | {"metrics": metrics})
    succeeded(ask("experts", "add", clouds_copy, apart))
    kept = read_json(clouds_copy / "seed-0" / "experts" / "1" / "expert.json")["metrics"]
    assert metrics
    assert 0.123456 not in kept.values()


def test_text_from_outside_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["label"], [["[/]"], ["[bold]run"], ["\x1b]0;title\x07"], ["\u202eevil"]], "[red]title[/]")
    out = capsys.readouterr().out
    for text in ("[/]", "[bold]run", "\\x1b]0;title\\x07", "\\u202eevil", "[red]title[/]"):
        assert text in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    "name", ["CON", "nul", "a:b", "a\x07", "\u202eb", "all", "pooled", "router", "a ", "a.", "-rf"]
)
def test_names_that_some_disk_refuses(name: str) -> None:
    with pytest.raises(RedxError, match="cannot be called"):
        check_name(name)


def test_an_expert_with_a_dash_at_the_start_of_its_name_can_be_removed(
    clouds_copy: Path, apart: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name begins so today, but a run that somebody else made may have one."""
    write_json(apart / "expert.json", read_json(apart / "expert.json") | {"domain": "-rf"})
    refused(ask("experts", "add", clouds_copy, apart), "no dash at the start")
    with monkeypatch.context() as patch:
        patch.setattr("redx.io.files.to_safe_name", lambda name: name)
        succeeded(ask("experts", "add", clouds_copy, apart))
    succeeded(ask("experts", "remove", clouds_copy, "--", "-rf"))
    assert not (clouds_copy / "seed-0" / "experts" / "-rf").exists()
    assert (clouds_copy / "seed-0" / "removed" / "_rf" / "expert.json").exists()


def test_a_number_that_is_written_as_text_is_refused(clouds_copy: Path, apart: Path, ask: Ask) -> None:
    about = read_json(apart / "expert.json")
    probe = [[str(value) for value in row] for row in about["base"]["probe"]]
    write_json(apart / "expert.json", about | {"base": about["base"] | {"probe": probe}})
    before = state_of(clouds_copy)
    refused(ask("experts", "add", clouds_copy, apart), "does not describe an expert")
    assert state_of(clouds_copy) == before


def test_every_declared_package_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[\s\[<>=!~;]", one)[0].lower().replace("_", "-") for one in wanted} - {"redx"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert names - pinned == set()
    assert all(re.search(r">=", one) for one in wanted if not one.startswith("redx"))
