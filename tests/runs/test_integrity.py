"""No file of a run can change without being noticed: by the readers that use it, and by `redx verify`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import redx
from helpers.commands import Ask, refused, succeeded
from helpers.own_data import draw_clouds
from helpers.tampering import CHANGES, changed, exchange, files_of, reverse_tensors, scale_tensors, shift_tensors
from redx.errors import RedxError
from redx.io.manifest import MANIFEST, Difference, Entry, compare, format_manifest, list_folder, read_manifest
from redx.runs.check import Floors, check_run
from redx.runs.integrity import verify_folder
from redx.runs.parts import read_parts
from redx.runs.reports import write_reports

# files that no figure and no answer follows from: `redx verify` alone compares them
RECORDS = ("results.jsonl", "report.html", "report.md", "data.json", "state.json", "stages.json")


def edit_json(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def read_everything(run: Path) -> object:
    """Read a run as users do: check it, and ask its model; or report on it, where the model reads no figures."""
    check_run(run, Floors(min_accuracy=0.0))
    model: Any = redx.load(run)
    if not (run / "seed-0" / "library.json").exists():
        return model.predict(draw_clouds(4)["x"])
    model.scores("abc")
    write_reports([run], run)


def swap_tensors(path: Path) -> None:
    tensors = load_file(path)
    same = [(a, b) for a in tensors for b in tensors if a < b and tensors[a].shape == tensors[b].shape]
    one, other = next((a, b) for a, b in same if not tensors[a].equal(tensors[b]))
    save_file(tensors | {one: tensors[other].clone(), other: tensors[one].clone()}, path)


def reverse_classes(path: Path) -> None:
    edit_json(path, classes=json.loads(path.read_text())["classes"][::-1])


def add_expert(path: Path) -> None:
    shutil.copytree(path / "0", path / "more")


ATTACKS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "residuals × 30": ("seed-0/experts/0/expert.safetensors", lambda path: scale_tensors(path, 30)),
    "a flipped bit": ("seed-0/experts/1/expert.safetensors", CHANGES["one bit"]),
    "swapped tensors": ("seed-0/experts/1/expert.safetensors", swap_tensors),
    "base × 2": ("seed-0/base.safetensors", lambda path: scale_tensors(path, 2)),
    "router reversed": ("seed-0/router.safetensors", reverse_tensors),
    "class names reversed": ("seed-0/model.json", reverse_classes),
    "another score": ("seed-0/risk.json", lambda path: edit_json(path, score="answer")),
    "other thresholds": ("seed-0/thresholds.safetensors", shift_tensors),
    "parts zeroed": ("seed-0/parts/residual-risk.safetensors", CHANGES["zeros"]),
    "summary edited": ("summary.json", lambda path: edit_json(path, task="better")),
    "config edited": ("config.json", lambda path: edit_json(path, risk=0.5)),
    "features edited": ("seed-0/features.safetensors", lambda path: scale_tensors(path, 2)),
    "a description edited": ("seed-0/experts/0/expert.json", lambda path: edit_json(path, metrics={})),
    "experts exchanged": ("seed-0/experts/0", lambda path: exchange(path, path.with_name("1"))),
    "an expert missing": ("seed-0/experts/0", shutil.rmtree),
    "no calibration": ("seed-0/risk.json", Path.unlink),
    "an expert added": ("seed-0/experts", add_expert),
    "a file added": ("seed-0/integration.safetensors", lambda path: save_file({"a": torch.ones(1)}, path)),
    "a manifest missing": (f"seed-0/{MANIFEST}", Path.unlink),
    "the run's manifest missing": (MANIFEST, Path.unlink),
    "a manifest damaged": (f"seed-0/{MANIFEST}", CHANGES["cut short"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_changes_in_silence(clouds_copy: Path, ask: Ask, attack: str) -> None:
    name, change = ATTACKS[attack]
    assert verify_folder(clouds_copy) == []
    change(clouds_copy / name)
    with pytest.raises(RedxError) as error:
        read_everything(clouds_copy)
    assert str(error.value).count("\n") == 0
    assert "delete" not in str(error.value)
    code, out, _ = ask("verify", clouds_copy, "--json")
    assert code == 1
    assert any(one["file"].startswith(name) for one in json.loads(out)["files"])


@pytest.fixture(params=["clouds", "adapters"])
def any_copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a run of a classifier, or of one of adapters."""
    run: redx.Run = request.getfixturevalue(request.param)
    return Path(shutil.copytree(run.folder, tmp_path / "copy"))


@pytest.mark.slow
def test_every_file_and_every_kind_of_change(any_copy: Path) -> None:
    """The whole grid: `verify` names the file, and readers refuse every file that they use."""
    silent, cases = [], 0
    for name in files_of(any_copy):
        used = Path(name).name not in RECORDS and not name.startswith("figures/")
        for kind, change in CHANGES.items():
            with changed(any_copy / name, change) as differs:
                if not differs:
                    continue
                cases += 1
                found = verify_folder(any_copy)
                named = [one for one in found if one.file == name or Path(name).name == MANIFEST]  # or a file in it
                if not named:
                    silent.append((name, kind, "verify"))
                # one bit of a manifest concerns one file, which may be a record
                if used and (Path(name).name != MANIFEST or kind in ("another meaning", "missing")):
                    try:
                        read_everything(any_copy)
                        silent.append((name, kind, "readers"))
                    except RedxError:
                        pass
    assert silent == []
    assert cases > 200
    assert verify_folder(any_copy) == []
    read_everything(any_copy)


@pytest.mark.slow
def test_readers_refuse_only_what_concerns_them(clouds_copy: Path, ask: Ask) -> None:
    (clouds_copy / "report.html").write_text("mine")
    read_everything(clouds_copy)
    code, out, _ = ask("verify", clouds_copy)
    assert code == 1
    assert "report.html" in out
    succeeded(ask("report", clouds_copy))  # written anew
    assert "every file" in succeeded(ask("verify", clouds_copy))
    (clouds_copy / "redx.toml").write_text("[check]\nmin_accuracy = 0.5\n")  # the user's own
    (clouds_copy / "notes.txt").write_text("mine")
    read_everything(clouds_copy)
    assert verify_folder(clouds_copy) == [Difference("notes.txt", "added")]


@pytest.mark.slow
def test_changes_by_redx_keep_manifests(clouds_copy: Path, ask: Ask) -> None:
    before = json.loads((clouds_copy / "summary.json").read_text())["states"]
    succeeded(ask("experts", "remove", clouds_copy, "1"))
    assert verify_folder(clouds_copy) == []
    assert json.loads((clouds_copy / "summary.json").read_text())["states"] != before
    succeeded(ask("experts", "add", clouds_copy, clouds_copy / "seed-0" / "removed" / "1"))
    succeeded(ask("calibrate", clouds_copy, "--risk", "0.2"))
    succeeded(ask("router", "train", clouds_copy))
    assert verify_folder(clouds_copy) == []
    assert "seed-0/removed/1/expert.json".removeprefix("seed-0/") in (read_manifest(clouds_copy / "seed-0") or {})
    read_everything(clouds_copy)


@pytest.mark.slow
def test_parts_name_the_modules_that_made_them(clouds_copy: Path) -> None:
    """Somebody who corrects the manifest by hand is told that the parts are of another base."""
    seed = clouds_copy / "seed-0"
    scale_tensors(seed / "router.safetensors", 2)
    (seed / MANIFEST).write_bytes(format_manifest(list_folder(seed)))
    assert compare(seed) == []
    with pytest.raises(RedxError, match="were made with another router"):
        read_parts(clouds_copy, 0)
    assert Difference("seed-0/parts/", "made with another router") in verify_folder(clouds_copy)


@pytest.mark.slow
def test_a_summary_belongs_to_a_state(clouds_copy: Path) -> None:
    seed = clouds_copy / "seed-0"
    shift_tensors(seed / "thresholds.safetensors")
    (seed / MANIFEST).write_bytes(format_manifest(list_folder(seed)))
    with pytest.raises(RedxError, match=r"describes another state of seed 0 .* repeat its `redx run`"):
        write_reports([clouds_copy], clouds_copy)
    with pytest.raises(RedxError, match="describes another state"):
        redx.load(clouds_copy)
    assert verify_folder(clouds_copy) == [Difference("summary.json", "of another seed-0")]


def test_verify_shows_the_first_of_many_files(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / MANIFEST).write_bytes(format_manifest({f"parts/{n}": Entry("0" * 64, 0) for n in range(2000)}))
    code, out, _ = ask("verify", tmp_path)
    assert code == 1
    assert "and 1,900 more" in out
    assert out.count("missing") == 100
    assert len(json.loads(ask("verify", tmp_path, "--json")[1])["files"]) == 2000


def test_verify_refuses_what_is_no_run(tmp_path: Path, ask: Ask) -> None:
    refused(ask("verify", tmp_path / "none"), "There is no folder")
    refused(ask("verify", tmp_path), "has no manifest.json")
