"""The speed benchmark: its rows have one form, its sides compute the same, and what is missing is named; no times."""

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import redx
import speed
from redx.errors import RedxError
from redx.models.backbones.language import FrozenLM
from speed import bench_rows, describe_bench
from speed_rows import composing, encoding, timing
from speed_rows.page import BenchFile, make_page
from speed_rows.timing import BenchRow, BenchSettings

FIELDS = {"name", "ours", "opponents", "ratio", "low", "high", "about", "details", "missing"}


def check_row(row: BenchRow) -> None:
    facts = row.to_dict()
    assert set(facts) == FIELDS
    assert facts["ours"] > 0
    assert all(seconds > 0 for seconds in facts["opponents"].values())
    assert facts["low"] <= facts["ratio"] <= facts["high"]
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize("group", ["sweep", "certify", "calibrate"])
def test_rows_of_evaluation_have_one_form(group: str) -> None:
    (row,) = bench_rows([group], BenchSettings(repeat=2, quick=True))
    check_row(row)
    assert row.name == group


@pytest.mark.slow
def test_the_row_of_the_estimator_gives_accuracies() -> None:
    (row,) = bench_rows(["estimator"], BenchSettings(repeat=1, quick=True))
    check_row(row)
    assert set(row.details["accuracy"]) == {"ours", "LogisticRegression", "MLPClassifier", "VotingClassifier"}


@pytest.mark.slow
def test_rows_on_language_models_have_one_form(qwen: Path, addition: redx.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    monkeypatch.setattr(encoding, "absent", lambda modules: dict.fromkeys(modules, "missing: pip install 'redx[onnx]'"))
    settings = BenchSettings(1, True, str(qwen), str(qwen), addition.folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sentence-transformers warns of its own interfaces
        rows = list(bench_rows(["encode", "compose", "train", "answer"], settings))
    for row in rows:
        check_row(row)
    assert [row.name for row in rows] == ["encode", "compose-5", "train", "answer"]
    encode, compose, train, _ = rows
    assert encode.details["largest difference"] < 1e-5
    assert "ONNX Runtime" in encode.missing
    assert "redx[onnx" in encode.missing["ONNX Runtime"]
    assert "peft mixed batch" in compose.opponents
    assert train.details["largest difference of weights"] < 1e-5


@pytest.mark.slow
def test_the_row_of_cold_starts_has_the_form(addition: redx.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    (row,) = bench_rows(["start"], BenchSettings(repeat=1, quick=True, run=addition.folder))
    check_row(row)
    assert set(row.opponents) == {"redx --help", "import torch"}


def test_plain_transformers_compute_the_same_features(bert: Path) -> None:
    frozen, texts = FrozenLM(bert, (-1,), "mean"), ["abc", "abcd ef", "x"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frozen.tokenizer.backend_tokenizer.no_truncation()
        assert encoding.difference(frozen, texts) < 1e-5


def test_onnx_runtime_as_an_opponent_computes_the_same_features(bert: Path, tmp_path: Path) -> None:
    frozen, texts = FrozenLM(bert, (-1,), "mean"), ["abc", "abcd ef", "x"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frozen.tokenizer.backend_tokenizer.no_truncation()
        session = encoding.export_onnx(frozen, tmp_path)
        theirs = torch.from_numpy(np.concatenate(encoding.run_onnx(session, frozen, texts)))
        torch.testing.assert_close(theirs.float(), torch.cat(encoding.plain(frozen, texts)), atol=1e-5, rtol=1e-4)


def test_the_composed_model_of_the_benchmark_answers_alike_with_all_and_with_the_first_experts() -> None:
    model = composing.make_model(6, width=20)
    h = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    assert model.predict(h) == model.predict(h, top=6)


def test_sides_alternate_and_the_first_repetition_is_not_counted() -> None:
    order: list[str] = []
    seconds = timing.alternate({"ours": lambda: order.append("ours"), "b": lambda: order.append("b")}, 2)
    assert order == ["ours", "b"] * 3
    assert {name: len(values) for name, values in seconds.items()} == {"ours": 2, "b": 2}


def test_ratios_are_taken_within_repetitions() -> None:
    seconds = {"ours": [1.0, 2.0, 4.0], "b": [2.0, 6.0, 4.0]}
    row = timing.compare("x", seconds, "b", "")
    assert (row.ratio, row.low, row.high, row.ours) == (2.0, 1.0, 3.0, 2.0)
    assert timing.share("x", seconds, "b", "").high == 1.0


def test_missing_opponents_come_with_the_command_that_installs_them() -> None:
    (problem,) = timing.absent({"torch": "torch", "other": "no_such_module"}).values()
    assert "no-such-module is not installed" in problem
    assert "redx[onnx" in problem


def test_slopes_and_peak_memory() -> None:
    assert math.isclose(timing.slope([10, 100, 1000], [0.1, 1, 10]), 1)
    assert timing.peak_memory(lambda: torch.ones(20_000_000).sum()) >= 0


def test_unknown_rows_and_no_repetitions_are_refused() -> None:
    with pytest.raises(RedxError, match="choose from encode"):
        list(bench_rows(["x"], BenchSettings()))
    with pytest.raises(RedxError, match="at least one repetition"):
        list(bench_rows(["sweep"], BenchSettings(repeat=0)))


def test_the_command_prints_json_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    speed.main(["--only", "certify", "--quick", "--repeat", "1", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in printed["rows"]] == ["certify"]
    assert printed["machine"]["cores"]
    assert not list(tmp_path.iterdir())


def test_new_rows_take_the_place_of_their_groups_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    old = [BenchRow(name, 1.0, {}, 1.0, 1.0, 1.0, "old") for name in ("encode", "compose-5", "compose-50", "sweep")]
    (tmp_path / "bench.json").write_text(json.dumps(describe_bench(old)))
    speed.merge([BenchRow("compose-5", 2.0, {}, 2.0, 2.0, 2.0, "new")])
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [(row["name"], row["about"]) for row in rows] == [("encode", "old"), ("compose-5", "new"), ("sweep", "old")]


def test_the_page_shows_every_row(tmp_path: Path) -> None:
    rows = [
        BenchRow("encode", 1.0, {"b": 2.0}, 2.0, 1.5, 2.5, "about | it", missing={"c": "missing"}),
        BenchRow("compose-5", 0.001, {"backbone": 1.0}, 0.001, 0.0009, 0.002, "share"),
    ]
    text = make_page(BenchFile.model_validate(describe_bench(rows)))
    assert "| encode |" in text
    assert "| compose-5 |" in text
    assert "about \\| it" in text
    assert "0.1 %" in text
