"""Faults that were found by hand in files of users, experts, runs and caches: each is refused in one sentence."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import redx
from helpers.own_data import draw_clouds, text_records, write_table
from redx.data.arrays import read_arrays
from redx.data.tables import name_value, read_table
from redx.errors import RedxError
from redx.io.feature_cache import FeatureCache, cached_rows
from redx.models.backbones import hub
from redx.models.expert import Expert
from redx.runs.folder import SeedFolder
from redx.runs.parts import read_parts
from redx.runs.reports import write_reports


def test_a_small_archive_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = b"\x93NUMPY\1\0v\0" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (10000, 6000), }".ljust(117)
    compressed = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    with compressed as archive, archive.open("x.npy", "w", force_zip64=True) as stream:
        stream.write(header + b"\n")
        for _ in range(6):
            stream.write(bytes(10**7))
    assert path.stat().st_size < 2**21
    with pytest.raises(RedxError, match=r"unpacks to 480,000,000 bytes, more than 419,430,400"):
        read_arrays(path, ["x"], [])
    numpy.savez_compressed(path, x=numpy.zeros((2**20 + 1, 1), "u1"))
    with pytest.raises(RedxError, match="1,048,577 rows, more than"):
        read_arrays(path, ["x"], [])


@pytest.mark.parametrize(
    "header", [b"{'descr': (", b"((((", b"\0", b"{'descr': 'O', 'fortran_order': False, 'shape': ()}"]
)
def test_damaged_headers_of_arrays(tmp_path: Path, header: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(RedxError, match="holds Python objects or is damaged"):
        read_arrays(tmp_path / "x.npz", ["x"], [])


def test_characters_that_do_not_exist(tmp_path: Path) -> None:
    text = numpy.full(3, 0x7FFFFFFF, "<u4").view("<U1")
    numpy.savez(tmp_path / "x.npz", y=text)
    with pytest.raises(RedxError, match="damaged"):
        read_arrays(tmp_path / "x.npz", ["y"], [])


def test_labels_and_keys_of_tables(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.jsonl", [record | {"label": "9" * 5000} for record in text_records(3)])
    assert {len(name_value(record, "label")) for record in read_table(path, lambda _: None)} == {5000}
    path.write_text('{"label": 1, "label": 2}\n')
    with pytest.raises(RedxError, match="has the key 'label' twice"):
        read_table(path, lambda _: None)


def test_dates_out_of_range_in_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    days = pyarrow.array([10**9] * 3, pyarrow.date32())
    parquet.write_table(pyarrow.table({"label": days}), tmp_path / "t.parquet")
    with pytest.raises(RedxError, match="cannot be read as Parquet"):
        read_table(tmp_path / "t.parquet", lambda _: None)


# --- caches


def overwrite(path: Path) -> None:
    """Change one byte at the end of a file; its size and its time stay the same."""
    state, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))


def test_features_of_the_same_size_but_other_bytes(tmp_path: Path) -> None:
    FeatureCache(tmp_path, 2).add([[("one", torch.ones(1, 2))]])
    assert FeatureCache(tmp_path, 2).get(["one"])[0].tolist() == [[1, 1]]
    overwrite(next(path for path in tmp_path.glob("*.npy") if ".index" not in path.name))
    with pytest.raises(RedxError, match=r"was changed after it was written .*redx cache clear"):
        FeatureCache(tmp_path, 2).get(["one"])


def test_features_without_checksums_get_them(tmp_path: Path) -> None:
    FeatureCache(tmp_path, 2).add([[("one", torch.ones(1, 2))]])
    (sums,) = tmp_path.glob("*.sums.json")
    sums.unlink()
    assert FeatureCache(tmp_path, 2).get(["one"])[0].tolist() == [[1, 1]]
    assert sums.exists()


def test_cached_rows_of_the_same_size_but_other_bytes(own_cache: Path) -> None:
    cached_rows("x", 4, lambda: [torch.ones(4, 2)])
    overwrite(own_cache / "embeddings" / "x.npy")
    with pytest.raises(RedxError, match=r"x\.npy was changed after it was written .*; clear all features"):
        cached_rows("x", 4, lambda: [torch.ones(4, 2)])


# --- runs and experts


def change(path: Path, **entries: Any) -> None:
    """Change entries of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.usefixtures("unverified")
@pytest.mark.slow
def test_settings_of_an_expert_that_ask_for_too_much_memory(clouds_copy: Path) -> None:
    model = redx.load(clouds_copy)
    folder = clouds_copy / "seed-0" / "experts" / "0"
    info = json.loads((folder / "expert.json").read_text())
    model.experts.remove("0")
    for hidden, words in ((10**9, "unusable banks"), (2**16, "do not fit this bank")):
        banks = {name: bank | {"hidden": hidden} for name, bank in info["banks"].items()}
        change(folder / "expert.json", banks=banks)
        with pytest.raises(RedxError, match=words):
            model.experts.add(folder)


@pytest.mark.usefixtures("unverified")
@pytest.mark.slow
def test_expert_files_of_the_wrong_kind(clouds_copy: Path) -> None:
    folder = clouds_copy / "seed-0" / "experts" / "0"
    good = (folder / "expert.json").read_text()
    for entry in (
        {"base": {"probe": [[1], [1, 2]]}},
        {"base": 3},
        {"banks": []},
        {"classes": 3},
        {"metrics": {"a": "b"}},
    ):
        (folder / "expert.json").write_text(good)
        change(folder / "expert.json", **entry)
        with pytest.raises(RedxError, match=r"expert\.json does not describe an expert"):
            Expert.load(folder)
    (folder / "expert.json").unlink()
    os.mkfifo(folder / "expert.json")
    with pytest.raises(RedxError, match=r"expert\.json is a device or a pipe"):
        Expert.load(folder)


@pytest.mark.usefixtures("unverified")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("seed-0/model.json", '{"domains": ["0"], "classes": [], "belongs": [], "unit": 0}'),
        ("seed-0/model.json", '{"domains": ["0"], "classes": ["a"], "belongs": [7], "unit": 1}'),
        ("seed-0/model.json", '{"domains": ["0"], "classes": [], "belongs": [], "unit": 1, "shape": [1000000000]}'),
        ("seed-0/model.json", "[" * 10_000),
        ("seed-0/state.json", '{"version": "x"}'),
        ("seed-0/state.json", '{"version": 1, "version": 2}'),
        ("config.json", '{"task": "features"}'),
        ("summary.json", '{"rules": {"red": {"accuracy": 1}}}'),
        ("summary.json", '{"rules": {"red": {"accuracy": {"mean": 1, "low": 1, "high": 1}, "certified": {"x": 1}}}}'),
    ],
)
def test_json_of_a_run_that_is_not_what_it_should_be(clouds_copy: Path, file: str, content: str) -> None:
    (clouds_copy / file).write_text(content)
    with pytest.raises(RedxError, match=Path(file).name):
        redx.load(clouds_copy)


@pytest.mark.usefixtures("unverified")
@pytest.mark.slow
def test_further_json_of_a_run(clouds_copy: Path) -> None:
    for content in ("[]", '{"base": "x"}', '{"base": -1}', '{"base": 1, "base": 2}'):
        (clouds_copy / "seed-0" / "stages.json").write_text(content)
        with pytest.raises(RedxError, match=r"stages\.json"):
            SeedFolder(clouds_copy / "seed-0")
    for content in ("[]", '{"facts": 3}', '{"facts": {}, "tables": [{}]}'):
        (clouds_copy / "study.json").write_text(content)
        with pytest.raises(RedxError, match=r"study\.json does not hold a study"):
            write_reports([clouds_copy], clouds_copy)


@pytest.mark.usefixtures("unverified")
@pytest.mark.slow
def test_tensors_of_other_types_and_labels_that_do_not_exist(clouds_copy: Path) -> None:
    path = sorted((clouds_copy / "seed-0" / "parts").glob("*.safetensors"))[0]
    good = load_file(path)
    with safe_open(path, "pt") as file:
        about = file.metadata()
    for name, tensor in (
        ("base", good["base"].half()),
        ("labels", good["labels"] + 99),
        ("domains", good["domains"] - 9),
    ):
        save_file(good | {name: tensor}, path, about)
        with pytest.raises(RedxError, match="does not hold parts"):
            read_parts(clouds_copy, 0)
    save_file(good | {"base": good["base"].to(torch.float8_e4m3fn)}, path, about)
    with pytest.raises(RedxError, match="a type of tensor that redx does not use"):
        read_parts(clouds_copy, 0)


@pytest.mark.slow
def test_names_that_no_folder_can_have(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "x.npz", **draw_clouds(120))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.log").mkdir()
    for out in ("x" * 300, "a\0b", "\ud800", "run"):
        with pytest.raises(RedxError):
            redx.run("features", "quick", out=tmp_path / out, file=str(tmp_path / "x.npz"), study="none")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["run.log"]


def test_a_backbone_of_the_same_size_but_other_bytes_is_made_again(own_cache: Path) -> None:
    source = hub.EmbeddedModel("none==1", "none/model.safetensors", hub.EMBEDDED["minilm-l6"].digest, 100)
    target = own_cache / "backbones" / "tiny"
    target.mkdir(parents=True)
    (target / "config.json").write_text("{}")
    note = {"package": source.package, "sha256": source.digest.value, "files": {"config.json": 2}}
    (target / "redx.json").write_text(json.dumps(note))  # as an older version wrote it, without checksums

    def fail(*_: object) -> None:
        raise OSError("made again")

    assert hub.model_folder("tiny", {"tiny": source}, fail) == target
    assert "checksums" in json.loads((target / "redx.json").read_text())
    (target / "config.json").write_text("[]")
    with pytest.raises(RedxError, match=r"could not be fetched .*made again"):
        hub.model_folder("tiny", {"tiny": source}, fail)
