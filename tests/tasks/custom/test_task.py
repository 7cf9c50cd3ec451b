"""The user's own data: read with every fault reported, split fairly, and run from the file to an answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import redx
from helpers.own_data import Record, draw_clouds, text_records, write_arrays, write_table
from redx.data.dataset import Data
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.io.files import natural_order
from redx.runs.presets import configure
from redx.tasks import get_task
from redx.tasks.custom.loading import folder_names

FEW: dict[str, Any] = {"epochs": {"base": 3, "experts": 2, "router": 2}}


pytestmark = pytest.mark.usefixtures("own_cache")


def load(name: str, path: Path, seed: int = 0, **changes: Any) -> Data:
    return get_task(name).load(configure(name, "quick", file=str(path), **changes), seed)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_every_format_of_a_table_gives_the_same_data(tmp_path: Path, kind: str) -> None:
    data = load("jsonl", write_table(tmp_path / f"t.{kind}", text_records()), domain="domain")
    assert (data.domains, data.classes) == (("d0", "d1", "d2"), ("no", "yes"))
    assert [len(split) for split in (data.train, data.validation, data.test)] == [96, 12, 12]
    again = load("jsonl", write_table(tmp_path / "again.jsonl", text_records()), domain="domain")
    assert data.test.digest() == again.test.digest()


GOOD = '{"text": "fine", "label": "a"}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", GOOD + "\n{oops\n", "Line 3 of .*is not JSON"),
        ("t.jsonl", GOOD + '{"text": "x", "label": null}\n', "Line 2 of .*no value in the column 'label'"),
        ("t.jsonl", GOOD + '{"text": "  ", "label": "a"}\n', "Line 2 of .*an empty text in the column 'text'"),
        ("t.jsonl", GOOD + '{"text": 7, "label": "a"}\n', "Line 2 of .*7 in the column 'text', not text"),
        ("t.jsonl", GOOD + '{"text": "x", "label": ["a"]}\n', "Line 2 of .*neither text nor a number"),
        ("t.jsonl", GOOD + '{"text": "\\ud800", "label": "a"}\n', "Line 2 of .*half a character"),
        ("t.jsonl", '{"body": "x", "topic": "a"}\n', r"no column 'text', only 'body', 'topic'"),
        ("t.jsonl", "", "is empty"),
        ("t.csv", "text,label\na,b\nc\nd,e,f\n", r"Lines 3, 4 of .*line 3 has 1 values where the first line has 2"),
        ("t.csv", "text,label\na,\n", "Line 2 of .*no value in the column 'label'"),
        ("t.csv", "body,label\na,b\n", r"t\.csv has no column 'text', only 'body', 'label'; rename yours"),
        ("t.csv", "Text,label\na,b\n", r"no column 'text' \(did you mean 'Text'\?\)"),
        ("t.jsonl", GOOD + '{"body": "x", "label": "a"}\n', "Line 2 of .*no column 'text', only 'body', 'label'"),
        ("t.csv", f"text,label\na,b\n{'x' * 200_000},b\n", "Line 3 of .*a field of more than 131,072 characters"),
        ("t.csv", "text,text\na,b\n", "a column twice"),
        ("t.csv", 'text,label\n"a,b\n', "Line 2 of .*is no CSV"),
        ("t.csv", "text,label\n", "contains no examples"),
        ("t.csv", b"text,label\n\xff,b\n", r"not UTF-8 text \(line 2\)"),
        ("t.parquet", "PAR1 not at all", "cannot be read as Parquet"),
        ("t.xlsx", "x", r"is none of \.jsonl, .*\.parquet"),
    ],
)
def test_faulty_tables_are_refused_by_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RedxError, match=message) as error:
        load("jsonl", path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_faulty_row_of_parquet_is_refused_by_number(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", [{"text": "a", "label": 1}, {"text": None, "label": 2}])
    with pytest.raises(RedxError, match=r"Row 2 of .*no value in the column 'text'"):
        load("jsonl", path)


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_table(tmp_path / "t.parquet", text_records())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RedxError, match=r"pip install 'redx\[tables\]'"):
        load("jsonl", path, domain="domain")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda all: all[:19], {}, "19 examples, and 20 are the least"),
        (lambda all: [row | {"label": "x"} for row in all], {}, "have the label 'x'"),
        (
            lambda all: [row | {"label": f"only {number}"} for number, row in enumerate(all)],
            {},
            "label of its own .'only 0' in row 1, 'only 1' in row 2.; name a column of classes.* with --label",
        ),
        (
            lambda all: [row | {"label": ["1", "yes", "1.0"][number % 3]} for number, row in enumerate(all)],
            {},
            "one number in two ways .'1' in row 1, '1.0' in row 3.; write it in one way",
        ),
        (
            lambda all: [row | {"label": [0, "Yes"][number % 2]} for number, row in enumerate(all)],
            {},
            "numbers and words for yes and no .'0' in row 1, 'Yes' in row 2.; write all of them in one way",
        ),
        (lambda all: [row | {"domain": "x"} for row in all], {}, "one domain, 'x'.*leave it out for clusters"),
        (
            lambda all: [*all, {"text": "t", "label": "no", "domain": "tiny"}],
            {},
            "'tiny' has [01] training examples, and 5",
        ),
        (lambda all: all, {"clusters": 3}, "give --domain or --clusters, not both"),
        (lambda all: [row | {"split": "train"} for row in all], {"split_column": "split"}, "0 examples for validation"),
        (lambda all: [row | {"split": "later"} for row in all], {"split_column": "split"}, "the split 'later'"),
        (lambda all: all, {"split_column": "fold"}, "no column 'fold'"),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused(
    tmp_path: Path, change: Callable[[list[Record]], list[Record]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RedxError, match=message):
        load("jsonl", write_table(tmp_path / "t.jsonl", change(text_records())), domain="domain", **options)


def test_a_file_must_be_given_and_be_there(tmp_path: Path) -> None:
    for name in ("jsonl", "features"):
        with pytest.raises(RedxError, match="give their file with --data FILE"):
            get_task(name).load(configure(name, "quick"), 0)
        with pytest.raises(RedxError, match="There is no file"):
            load(name, tmp_path / ("no.npz" if name == "features" else "no.csv"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": numpy.array([{}] * 200, object)}, "'y' of .*holds Python objects"),
        ({"x": numpy.full((200, 6), numpy.nan)}, "Rows 1, 2, .* and 190 more of .*NaN or infinity in 'x'"),
        ({"x": numpy.full((200, 6), 1e300)}, "NaN or infinity"),
        ({"x": numpy.zeros(200)}, r"'x' of .* shape \(200,\)"),
        ({"x": numpy.zeros((200, 6), complex)}, "not real numbers"),
        ({"y": numpy.zeros(199)}, r"'y' of .* shape \(199,\); give \(200,\)"),
        ({"y": numpy.full(200, numpy.nan)}, "no value in the column 'y'"),
        ({"domain": numpy.zeros((200, 1))}, r"'domain' of .* shape \(200, 1\)"),
        ({"split": numpy.array(["later"] * 200)}, "Rows 1, .*the split 'later'"),
    ],
)
def test_faulty_arrays_are_refused_by_row(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RedxError, match=message):
        load("features", write_arrays(tmp_path / "f.npz", **(draw_clouds() | change)))


def test_files_without_the_needed_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RedxError, match="no array 'y', only x"):
        load("features", write_arrays(tmp_path / "f.npz", x=numpy.zeros((30, 2))))
    (tmp_path / "g.npz").write_text("no archive")
    with pytest.raises(RedxError, match=r"cannot be read as \.npz|holds Python objects or is damaged"):
        load("features", tmp_path / "g.npz")
    with pytest.raises(RedxError, match=r"is no \.npz file"):
        load("features", tmp_path / "f.npy")


def test_a_given_split_keeps_labels_that_train_lacks(tmp_path: Path) -> None:
    arrays = draw_clouds()
    part = numpy.array(["train"] * 140 + ["dev"] * 30 + ["test"] * 30)
    arrays["y"][-3:] = "new"
    data = load("features", write_arrays(tmp_path / "f.npz", **arrays, split=part))
    assert [len(split) for split in (data.train, data.validation, data.test)] == [140, 30, 30]
    assert data.classes == ("high", "low", "new")
    assert data.seen_in_train == 0
    assert data.split == "disjoint"


def test_domains_become_distinct_names_of_folders() -> None:
    names = ["a/b", "a\\b", "..", "all", "Router", "A", "a", "x" * 300, "été 1", "  ", "c:d", "a_b"]
    made = folder_names(names)
    assert len({name.casefold() for name in made}) == len(names)
    assert all(name and Path(name).name == name and name not in (".", "..", "all", "router") for name in made)
    assert made[8] == "été 1"
    assert all(len(name.encode()) < 255 for name in made)


def test_domains_are_clustered_where_none_are_given(tmp_path: Path) -> None:
    arrays = draw_clouds()
    path = write_arrays(tmp_path / "f.npz", x=arrays["x"], y=arrays["y"])
    data = load("features", path, clusters=4)
    assert data.domains == ("cluster-1", "cluster-2", "cluster-3", "cluster-4")
    assert load("features", path, seed=1, clusters=4).domains == data.domains
    assert len(load("features", path).domains) == 2
    named = write_arrays(tmp_path / "g.npz", **arrays)
    assert len(load("features", named, clusters=2).domains) == 2  # when asked for, although domains are named


@pytest.mark.slow
def test_a_run_on_texts_from_the_file_to_an_answer(bert: Path, tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.jsonl", text_records())
    done = redx.run("jsonl", "quick", out=tmp_path / "run", file=str(path), domain="domain", backbone=str(bert), **FEW)
    assert done.summary["data"] | {"seen_in_train": 0.0} == done.summary["data"]
    assert done.summary["domains"] == ["d0", "d1", "d2"]
    assert done.summary["rules"]["red"]["accuracy"] == done.summary["rules"]["base"]["accuracy"]
    path.unlink()  # a model needs it no more
    model = redx.load(done.folder)
    predicted = model.predict(["case 5 is good", "Ünd 你好 " * 900])
    assert set(predicted) <= {"no", "yes"}
    assert set(model.explain(["x"])[0].weights) == {"d0", "d1", "d2"}


@pytest.mark.slow
def test_a_run_on_texts_without_domains(bert: Path, tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.jsonl", text_records())
    changes = {"file": str(path), "clusters": 2, "backbone": str(bert), "study": "none", "run": "red"}
    done = redx.run("jsonl", "quick", out=tmp_path / "run", **changes, **FEW)
    assert done.summary["domains"] == ["cluster-1", "cluster-2"]


@pytest.mark.slow
def test_a_run_on_features_from_the_file_to_an_answer(tmp_path: Path) -> None:
    arrays = draw_clouds(600)
    path = write_arrays(tmp_path / "f.npz", **arrays)
    done = redx.run("features", "default", seeds=[0, 1], out=tmp_path / "run", file=str(path))
    rules = done.summary["rules"]
    assert rules["red"]["accuracy"]["mean"] >= rules["base"]["accuracy"]["mean"] - 0.05
    assert rules["global"]["accuracy"]["mean"] > 0.9
    model = redx.load(done.folder)
    assert set(model.predict(arrays["x"][:5])) <= {"high", "low"}
    with pytest.raises(RedxError, match="reads 6 features"):
        model.predict(arrays["x"][:5, :4])
    with pytest.raises(RedxError, match="finite features"):
        model.predict([[float("nan")] * 6])


@pytest.mark.slow
def test_many_small_domains_and_unseen_labels_can_be_run(tmp_path: Path) -> None:
    """60 domains of ten examples, many with a single class, and a label that only test has."""
    draw = numpy.random.default_rng(0)
    domain = numpy.repeat(numpy.arange(60), 10)
    x = draw.normal(size=(600, 4)).astype("f4")
    y = numpy.where(domain % 3 == 0, "same", numpy.where(x[:, 0] > 0, "b", "a"))
    part = numpy.tile(["train"] * 8 + ["validation", "test"], 60)
    y[numpy.flatnonzero(part == "test")[:6]] = "unheard of"
    path = write_arrays(tmp_path / "f.npz", x=x, y=y, domain=domain, split=part)
    done = redx.run("features", "quick", out=tmp_path / "run", file=str(path), run="red", **FEW)
    assert done.summary["domains"] == [str(number) for number in range(60)]
    assert done.summary["study"]["unseen_labels_in_test"] == pytest.approx(0.1)
    assert done.summary["rules"]["red"]["accuracy"]["mean"] <= 0.9


def test_domains_are_in_the_order_of_their_folders(tmp_path: Path) -> None:
    lines = [{"text": f"text {n}", "label": n % 2, "domain": ("b", "<a>", "c")[n % 3]} for n in range(90)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = configure("jsonl", "quick", file=str(tmp_path / "own.jsonl"), domain="domain")
    data = get_task("jsonl").load(config, 0)
    assert list(data.domains) == sorted(data.domains, key=natural_order)
    index = data.domains.index("_a_")
    assert all(
        int(text.split()[1]) % 3 == 1 for text in unpack_texts(data.train.only(data.train.domains == index).inputs)
    )
