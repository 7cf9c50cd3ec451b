"""Run folders: settings, parts, stages that are done once, and one writer at a time."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest
import torch

import redx
from helpers.commands import Ask, refused
from helpers.parts import draw_parts
from helpers.runs import repeat_clouds
from redx.config import BankId
from redx.errors import RedxError
from redx.io.files import write_json, write_tensors
from redx.io.reading import read_json
from redx.runs.folder import SeedFolder, choose_seed, lock_run, read_config
from redx.runs.parts import read_parts, write_parts
from redx.runs.presets import configure

CONFIG = configure("toy", "quick")


def test_parts_are_written_and_read_by_bank(tmp_path: Path) -> None:
    one = draw_parts(dtype=torch.float32)
    banks = {BankId("residual", "plain"): one, BankId("averaged", "a-b"): draw_parts(experts=1, dtype=torch.float32)}
    names = ("a", "b", "c", "d", "e")
    write_parts(tmp_path / "seed-3" / "parts", banks, names, experts=5)
    again = read_parts(tmp_path, 3)
    assert (set(again.banks), again.domains) == (set(banks), names)
    for bank_id, parts in banks.items():
        assert all(torch.equal(tensor, getattr(again.banks[bank_id], name)) for name, tensor in parts.tensors().items())


@pytest.mark.usefixtures("unverified")
def test_missing_and_other_parts_are_refused(clouds_copy: Path, tmp_path: Path) -> None:
    with pytest.raises(RedxError, match="holds no parts of seed 0"):
        read_parts(tmp_path, 0)
    for path in (clouds_copy / "seed-0" / "parts").iterdir():
        write_tensors(path, {"other": torch.zeros(1)})
    with pytest.raises(RedxError, match="does not hold parts"):
        read_parts(clouds_copy, 0)


def test_a_stage_is_computed_once(tmp_path: Path) -> None:
    calls: list[str] = []
    SeedFolder(tmp_path).stage("base", lambda: calls.append("base"))
    again = SeedFolder(tmp_path)
    again.stage("base", lambda: calls.append("base"))
    again.stage("experts", lambda: calls.append("experts"))
    assert calls == ["base", "experts"]
    assert list(read_json(tmp_path / "stages.json")) == ["base", "experts"]


def test_a_stage_that_fails_is_not_done(tmp_path: Path) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SeedFolder(tmp_path).stage("base", fail)
    assert SeedFolder(tmp_path).done == {}


def test_only_one_writer_may_lock_a_run(tmp_path: Path) -> None:
    with lock_run(tmp_path / "run", CONFIG):
        with pytest.raises(RedxError, match="Another run is writing"), lock_run(tmp_path / "run", CONFIG):
            pass
        assert read_config(tmp_path / "run") == CONFIG
    with lock_run(tmp_path / "run", CONFIG):
        pass


def test_a_lock_cleans_up_and_logs_errors(tmp_path: Path) -> None:
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "config.json").write_text(CONFIG.model_dump_json())
    (tmp_path / "seed-0" / ".base.safetensors.0123abcd.tmp").write_text("half")

    def fail() -> None:
        with lock_run(tmp_path, CONFIG):
            logging.getLogger("redx").info("working")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert not list(tmp_path.rglob("*.tmp"))
    log = (tmp_path / "run.log").read_text()
    assert "INFO working" in log
    assert "ERROR ValueError: broken" in log


def test_other_settings_are_refused_and_other_seeds_accepted(tmp_path: Path) -> None:
    with lock_run(tmp_path, CONFIG):
        pass
    more = CONFIG.model_copy(update={"seeds": (0, 1)})
    with lock_run(tmp_path, more):
        assert read_config(tmp_path).seeds == (0, 1)
    limited, other = (CONFIG.model_copy(update=change) for change in ({"limit": 500}, {"task": "toy-mlp"}))
    with pytest.raises(RedxError, match=r"other settings \(limit\)"), lock_run(tmp_path, limited):
        pass
    with pytest.raises(RedxError, match="holds a run of 'toy', not of 'toy-mlp'"), lock_run(tmp_path, other):
        pass


def test_the_first_seed_is_the_default(clouds: redx.Run) -> None:
    config, seed = choose_seed(clouds.folder, None)
    assert (config.task, seed) == ("features", 0)
    with pytest.raises(RedxError, match="holds no seed 5"):
        choose_seed(clouds.folder, 5)


def test_a_run_without_a_decomposer_has_no_solver(clouds: redx.Run) -> None:
    with pytest.raises(RedxError, match="has no decomposer"):
        redx.solver(clouds.folder)


@pytest.mark.usefixtures("unverified")
def test_a_run_of_another_schema_is_not_read_and_not_continued(clouds: redx.Run, clouds_copy: Path, ask: Ask) -> None:
    summary = read_json(clouds_copy / "summary.json")
    write_json(clouds_copy / "summary.json", summary | {"schema": 1})
    before = (clouds_copy / "config.json").stat().st_mtime_ns
    name = redx.load(clouds.folder).experts.names[0]
    for words in (("report", clouds_copy), ("experts", "list", clouds_copy), ("experts", "remove", clouds_copy, name)):
        refused(ask(*words), "summary.json has schema 1", "repeat the run with --out ANOTHER")
    with pytest.raises(RedxError, match=r"summary\.json has schema 1"):
        repeat_clouds(clouds_copy, clouds)
    assert (clouds_copy / "config.json").stat().st_mtime_ns == before


def test_nobody_is_told_to_delete_anything() -> None:
    sentences = [
        (path.name, node.value)
        for path in Path(redx.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value
    ]
    assert [text for text in sentences if re.search(r"(; |^|and |, )delete (it|the|that|this)\b", text[1])] == []
