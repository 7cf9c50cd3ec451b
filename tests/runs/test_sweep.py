"""Sweeps: every combination is a run of its own, the order is that of validation, and finished runs are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.commands import Ask
from helpers.own_data import draw_clouds, write_arrays
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.io.reading import read_json
from redx.runs import folder, pipeline, sweep
from redx.runs.sweep import cell_name, make_cells, parse_grid, split_values


@pytest.mark.parametrize(
    ("text", "values"),
    [("1,2", ["1", "2"]), ("[1,2],[3]", ["[1,2]", "[3]"]), ('"a,b",c', ['"a,b"', "c"]), ("mlp", ["mlp"])],
)
def test_commas_separate_values_but_not_in_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        (["router.hidden"], "sets nothing"),
        (["router.hidden="], "sets nothing"),
        (["seeds=0,1"], "give seeds with --seed"),
        (["router.hidden=1", "router.hidden=2"], "is given twice"),
        (["router.hidden=8,8"], "has the same value twice"),
        (["router.hiden=8"], "did you mean 'router.hidden'"),
        (["router.hidden=8,0"], "Setting 'router.hidden' is not usable"),
        (["risk=0.1,0.10"], "same"),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_is_written(grid: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(RedxError, match=sentence):
        sweep.sweep("toy", "quick", grid, out=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_cells_are_all_combinations_with_names_of_their_own(tmp_path: Path) -> None:
    values = parse_grid(["router.hidden=8,16", "banks.residual/plain.hidden=1,2,3"])
    cells = make_cells("mnist", "quick", values, [0], tmp_path, {})
    assert len({cell.folder for cell in cells}) == 6
    assert [cell.config.router.hidden for cell in cells] == [8, 8, 8, 16, 16, 16]
    assert len(cell_name({"table.file": "x" * 300})) < 100
    assert cell_name({"table.file": "a/b"}) != cell_name({"table.file": "a_b"})


@pytest.mark.slow
def test_a_sweep_compares_its_runs_and_continues(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_arrays(tmp_path / "clouds.npz", **draw_clouds())
    words = ["features", "--preset", "quick", "--set", f"table.file={file}", "--set", "study=none"]
    words += ["--set", "base.training.epochs=1", "--out", tmp_path / "sweep"]
    short = ["--set", "router.hidden=8,16"]
    code, _, err = ask("sweep", *words, *short)
    assert (code, err) == (0, "")
    content = read_json(tmp_path / "sweep" / "sweep.json")
    assert len(content["cells"]) == 2
    accuracy = [cell["choice"]["accuracy"] for cell in content["cells"]]
    assert accuracy == sorted(accuracy, reverse=True)
    assert all(0 < cell["choice"]["any_router"] <= cell["choice"]["accuracy"] <= 1 for cell in content["cells"])
    assert not any("test" in cell for cell in content["cells"])
    best = tmp_path / "sweep" / content["cells"][0]["folder"]
    rules = read_json(best / "summary.json")["rules"]
    assert content["test"]["red"]["accuracy"] == rules["red"]["accuracy"]["mean"]
    page = (tmp_path / "sweep" / "sweep.md").read_text()
    assert page.count("on the test split") == 1
    assert page.index("On choice examples") < page.index(f"{best.name} on the test split")
    read = folder.read_feature_split

    def other_labels(path: Path, part: str) -> Split:
        split = read(path, part)
        return Split(split.inputs, 1 - split.labels, split.domains)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "read_feature_split", other_labels)  # what calibration reads
        assert sweep.choice_figures(best, 0) == content["cells"][0]["choice"]

    again: list[Any] = []
    run_all = sweep.run_all
    monkeypatch.setattr(sweep, "run_all", lambda cells, engine: again.append(cells) or run_all(cells, engine))
    code, out, _ = ask("sweep", *words, *short, "--json")
    assert code == 0
    assert json.loads(out) == content
    assert again == []
    (tmp_path / "sweep" / content["cells"][0]["folder"] / "summary.json").unlink()
    assert ask("sweep", *words, *short)[0] == 0
    assert [len(cells) for cells in again] == [1]
    assert read_json(tmp_path / "sweep" / "sweep.json") == content
    assert pipeline.run_all is run_all
