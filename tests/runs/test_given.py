"""Examples in memory: DataFrames, datasets, columns, records and lists run as their file would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

import redx
from helpers.own_data import Record, draw_clouds, text_records
from redx.data.frames import read_columns
from redx.errors import RedxError
from redx.io.reading import read_json
from redx.runs.given import keep_examples, task_of_data


class Names:
    """As ClassLabel of `datasets`: whole numbers that stand for names."""

    names = ("no", "yes")


class Table:
    """As `datasets.Dataset`."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.column_names = list(records[0])
        self.features = {"text": None, "label": Names(), "domain": None}

    def __getitem__(self, name: str) -> list[Any]:
        return [row[name] if name != "label" else Names.names.index(row[name]) for row in self.records]


RECORDS = text_records()
COLUMNS = {name: [row[name] for row in RECORDS] for name in RECORDS[0]}
FORMS: dict[str, Any] = {
    "frame": pandas.DataFrame(RECORDS).sample(frac=1.0, random_state=0).sort_index(),
    "dataset": Table(RECORDS),
    "columns": COLUMNS | {"label": numpy.array(COLUMNS["label"])},
    "records": RECORDS,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_written_as_the_same_file(form: str, tmp_path: Path) -> None:
    options = keep_examples("jsonl", tmp_path / "run", FORMS[form], {"domain": "domain", "patience": 2})
    lists = keep_examples(
        "jsonl", tmp_path / "run", None, {name: COLUMNS[name] for name in ("text", "label", "domain")}
    )
    assert options == lists | {"patience": 2}
    assert (options["text"], options["label"], options["domain"]) == ("text", "label", "domain")
    rows = [list(row.values()) for row in read_records(Path(options["data"]))]
    assert rows == [[row["text"], row["label"], row["domain"]] for row in RECORDS]
    assert [path.name for path in tmp_path.iterdir()] == [Path(options["data"]).name]


def read_records(path: Path) -> list[Record]:
    import json

    return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_the_columns_that_are_read_are_written(tmp_path: Path) -> None:
    frame = pandas.DataFrame(RECORDS).rename(columns={"text": "query", "domain": "unit"}).assign(secret="x")
    options = keep_examples("jsonl", tmp_path / "run", frame, {"text": "query", "domain": "unit"})
    assert set(read_records(Path(options["data"]))[0]) == {"query", "label", "unit"}


def test_splits_of_a_dataset_are_the_splits_of_the_run(tmp_path: Path) -> None:
    parts = {"train": RECORDS[:80], "validation": RECORDS[80:100], "test": RECORDS[100:]}
    options = keep_examples("jsonl", tmp_path / "run", {name: Table(rows) for name, rows in parts.items()}, {})
    assert options["split_column"] == "split"
    assert [row["split"] for row in read_records(Path(options["data"]))].count("validation") == 20
    with pytest.raises(RedxError, match="has the splits train, test; give one of them"):
        read_columns({"train": Table(RECORDS), "test": Table(RECORDS)})


def changed(row: int, column: str, value: Any) -> pandas.DataFrame:
    frame = pandas.DataFrame(RECORDS).astype(object)
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (changed(4, "text", float("nan")), {}, "Row 5 of the data .*no value in the column 'text'"),
        (changed(4, "text", " "), {}, "Row 5 of the data .*an empty text in the column 'text'"),
        (changed(4, "label", pandas.NA), {}, "Row 5 of the data .*no value in the column 'label'"),
        (changed(4, "text", 7), {}, "Row 5 of the data .*not text"),
        (pandas.DataFrame(RECORDS), {"label": "lable"}, r"the data has no column 'lable' \(did you mean 'label'\?\)"),
        ({"text": ["a"], "label": ["x", "y"]}, {}, "equal length"),
        (None, {"text": ["a"], "label": ["x", "y"]}, r"differ in length \(text 1, label 2\)"),
        (7, {}, "cannot be read from a int"),
        ("file.jsonl", {"label": ["x"]}, "give their names"),
    ],
)
def test_faults_are_one_sentence(data: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RedxError, match=message):
        keep_examples("jsonl", tmp_path / "run", data, options)
    assert not list(tmp_path.iterdir())


def test_the_task_follows_from_the_data() -> None:
    assert task_of_data("x.npz", {}) == "features"
    assert task_of_data(Path("x.csv"), {}) == task_of_data(RECORDS, {}) == task_of_data(None, COLUMNS) == "jsonl"
    with pytest.raises(RedxError, match="nothing to run"):
        redx.run()
    with pytest.raises(RedxError, match="'mnist' reads its examples from a file"):
        redx.run("mnist", data=RECORDS)


def test_three_lines_from_a_frame_to_answers(bert: Path, tmp_path: Path, own_cache: Path) -> None:
    frame = pandas.DataFrame(RECORDS).rename(columns={"domain": "unit"}).set_index(pandas.RangeIndex(7, 127))
    few = {"epochs": {"base": 2, "experts": 1, "router": 1}, "study": "none", "backbone": str(bert), "risk": 0.3}
    run = redx.run(data=frame, preset="quick", text="text", label="label", domain="unit", out=tmp_path / "run", **few)
    assert run.summary["domains"] == ["d0", "d1", "d2"]
    again = redx.run(data=frame, preset="quick", domain="unit", out=tmp_path / "run", **few)
    assert again.summary["rules"] == run.summary["rules"]
    file = Path(read_json(run.folder / "config.json")["table"]["file"])
    assert file.parent == tmp_path
    model = run.load()
    answers = model.predict(frame.head(5), abstain=0.5)
    assert list(answers.columns) == ["answer", "domain", "radius", "abstained"]
    assert list(answers.index) == [7, 8, 9, 10, 11]
    plain = model.predict(frame["text"].head(5))
    shown = model.predict(frame[["text"]].head(5))
    assert list(shown["answer"]) == plain
    assert set(shown["domain"]) <= {"d0", "d1", "d2"}
    assert not shown["abstained"].any()
    with pytest.raises(RedxError, match="DataFrame has no column 'text'"):
        model.predict(frame[["label", "unit"]])


def test_features_come_from_the_columns_of_a_frame(clouds: redx.Run) -> None:
    x = draw_clouds(count=8)["x"]
    model = clouds.load()
    frame = pandas.DataFrame(x)
    assert list(model.predict(frame)["answer"]) == model.predict(x)
    assert [one.answer for one in model.explain(frame)] == model.predict(x)
    with pytest.raises(RedxError, match="leave out top"):
        model.predict(frame, top=1)
