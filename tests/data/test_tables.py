"""JSONL, CSV and Parquet files: every fault is reported by its line, and a file is written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from redx.data import tables
from redx.errors import RedxError

FIELDS = {"question": str, "answer": int}


GOOD = '{"question": "What is 1 plus 2?", "answer": 3}'


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


objects = st.dictionaries(st.text(), scalars | st.lists(scalars), min_size=1)


def put(content: str | bytes) -> Path:
    path = Path("questions.jsonl")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@given(records=st.lists(objects, min_size=1))
def test_written_records_are_read_again(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("records") / "records.jsonl"
    tables.write_jsonl(path, records)
    assert tables.read_jsonl(path, {}) == records
    assert path.read_bytes().count(b"\n") == len(records)


@pytest.mark.parametrize(
    "content",
    [
        f"{GOOD}\n{GOOD}\n",
        f"{GOOD}\n{GOOD}",
        f"\ufeff{GOOD}\n{GOOD}\n",
        f"\n{GOOD}\r\n   \r\n\n{GOOD}\r\n",
    ],
)
def test_blank_lines_line_ends_and_a_byte_order_mark_do_not_matter(content: str) -> None:
    assert tables.read_jsonl(put(content), FIELDS) == [json.loads(GOOD)] * 2


def test_a_line_separator_inside_a_text_is_no_line_end() -> None:
    record = {"question": "one\u2028two\x85three", "answer": 3}
    assert tables.read_jsonl(put(json.dumps(record, ensure_ascii=False)), FIELDS) == [record]


def test_more_fields_are_kept() -> None:
    assert tables.read_jsonl(put('{"question": "q", "answer": 3, "more": [1, null]}'), FIELDS)[0]["more"] == [1, None]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"question": "q", "answer": 3', "is not JSON"),
        ("question,answer", "is not JSON"),
        ('["q", 3]', "is not a JSON object"),
        ("3", "is not a JSON object"),
        ("null", "is not a JSON object"),
        ('{"question": "q"}', "has no field 'answer'"),
        ('{"question": "q", "answer": "3"}', "has \"3\" in the field 'answer', not a whole number"),
        ('{"question": "q", "answer": 3.0}', "has 3.0 in the field 'answer', not a whole number"),
        ('{"question": "q", "answer": true}', "has true in the field 'answer', not a whole number"),
        ('{"question": "q", "answer": null}', "has null in the field 'answer', not a whole number"),
        ('{"question": 5, "answer": 3}', "has 5 in the field 'question', not text"),
        ('{"question": "q", "answer": NaN}', "has NaN, infinity or far too large a number"),
        ('{"question": "q", "answer": 3, "more": [-Infinity]}', "has NaN, infinity or far too large a number"),
        ('{"question": "q", "answer": 3, "more": 1e999}', "has NaN, infinity or far too large a number"),
        ('{"question": "q", "answer": ' + "9" * 5000 + "}", "has NaN, infinity or far too large a number"),
        ("[" * 200_000, "is nested too deeply"),
    ],
)
def test_a_faulty_line_is_named_with_its_reason(line: str, reason: str) -> None:
    with pytest.raises(RedxError) as error:
        tables.read_jsonl(put(f"{GOOD}\n\n{line}\n{GOOD}\n"), FIELDS)
    assert str(error.value) == f"Line 3 of questions.jsonl cannot be used (it {reason}); correct it."


def test_all_faulty_lines_are_named_with_the_reason_of_the_first() -> None:
    with pytest.raises(RedxError) as error:
        tables.read_jsonl(put(f'{GOOD}\n{{"answer": 1}}\n{GOOD}\n\nnonsense\n'), FIELDS)
    assert str(error.value) == (
        "Lines 2, 5 of questions.jsonl cannot be used (line 2 has no field 'question'); correct them."
    )


@pytest.mark.parametrize(("bad", "more"), [(10, ""), (11, " and 1 more"), (500, " and 490 more")])
def test_only_the_first_ten_are_named_and_the_others_counted(bad: int, more: str) -> None:
    with pytest.raises(RedxError) as error:
        tables.read_jsonl(put(f"{GOOD}\n" + "[]\n" * bad), FIELDS)
    assert str(error.value).startswith(f"Lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11{more} of questions.jsonl cannot")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (float, ["1", "1.5"], ["true", '"1"', "null"]),
        (int, ["1", "-7"], ["1.0", "false"]),
        (bool, ["true"], ["1", "null"]),
        (str, ['""'], ["1", "[]"]),
        (list, ["[]"], ["{}", '"a"']),
        (dict, ["{}"], ["[]"]),
    ],
)
def test_types_of_fields(kind: type, good: list[str], bad: list[str]) -> None:
    for value in good:
        assert tables.read_jsonl(put(f'{{"x": {value}}}'), {"x": kind})
    for value in bad:
        with pytest.raises(RedxError, match="in the field 'x'"):
            tables.read_jsonl(put(f'{{"x": {value}}}'), {"x": kind})


def test_files_that_cannot_be_read_each_have_their_sentence() -> None:
    with pytest.raises(RedxError, match=r"There is no file nowhere\.jsonl"):
        tables.read_jsonl(Path("nowhere.jsonl"), FIELDS)
    Path("folder").mkdir()
    with pytest.raises(RedxError, match="folder is a folder"):
        tables.read_jsonl(Path("folder"), FIELDS)
    for empty in ("", "\n\n  \n", "\ufeff"):
        with pytest.raises(RedxError, match=r"questions\.jsonl is empty"):
            tables.read_jsonl(put(empty), FIELDS)
    with pytest.raises(RedxError, match=r"not UTF-8 text \(line 3\)"):
        tables.read_jsonl(put(f"{GOOD}\n{GOOD}\n".encode() + '{"question": "é"}'.encode("latin-1")), FIELDS)
    with pytest.raises(RedxError, match="not UTF-8 text"):
        tables.read_jsonl(put(GOOD.encode("utf-16")), FIELDS)
    with pytest.raises(RedxError, match="Cannot read"):
        tables.read_jsonl(put(GOOD) / "inside.jsonl", FIELDS)
    with pytest.raises(RedxError, match="larger than 20 bytes"):
        tables.read_jsonl(put(GOOD), FIELDS, limit_bytes=20)
    assert tables.read_jsonl(put(GOOD), FIELDS, limit_bytes=len(GOOD)) == [json.loads(GOOD)]


def test_writing_makes_the_folder_and_replaces_what_was_there() -> None:
    path = Path("deep/er/records.jsonl")
    tables.write_jsonl(path, [{"a": 1}, {"a": 2}])
    tables.write_jsonl(path, iter([{"a": 3}]))
    assert tables.read_jsonl(path, {"a": int}) == [{"a": 3}]
    assert [entry.name for entry in path.parent.iterdir()] == ["records.jsonl"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("records.jsonl")
    tables.write_jsonl(path, [{"a": 1}])

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refuse)
        with pytest.raises(RedxError, match=r"Cannot write records\.jsonl \(No space left on device\)"):
            tables.write_jsonl(path, [{"a": 2}])
    for value in (float("nan"), {1, 2}):
        with pytest.raises(RedxError, match=r"A record for records\.jsonl cannot be written as JSON"):
            tables.write_jsonl(path, [{"a": value}])
    assert tables.read_jsonl(path, {"a": int}) == [{"a": 1}]
    assert [entry.name for entry in Path().iterdir()] == ["records.jsonl"]


def test_a_path_that_cannot_be_written_is_refused() -> None:
    Path("folder").mkdir()
    Path("file").write_text("")
    for path in (Path("folder"), Path("file/inside.jsonl")):
        with pytest.raises(RedxError, match="Cannot write"):
            tables.write_jsonl(path, [{"a": 1}])
    assert sorted(entry.name for entry in Path().iterdir()) == ["file", "folder"]


def test_csv_files_of_spreadsheets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes('\ufefftext;label\r\n"a;\r\nb";1\r\n\r\nc;2.0\r\n'.encode())
    assert tables.read_table(path, lambda _: None) == [{"text": "a;\r\nb", "label": "1"}, {"text": "c", "label": "2.0"}]


def test_labels_of_any_kind_in_natural_order() -> None:
    record = {"a": 2.0, "b": 0.5, "c": True, "d": " été ", "e": 10**20}
    assert [tables.name_value(record, key) for key in record] == ["2", "0.5", "true", "été", str(10**20)]
    assert tables.sorted_names(["b10", "b9", "B1", "10", "9", "a", "9"]) == ["9", "10", "a", "B1", "b9", "b10"]


@pytest.mark.parametrize(
    ("name", "head", "row", "values"),
    [("t.jsonl", "", '{"a":[1,[2],{"b":3}]}', 6), ("t.jsonl", "", '{"a":1,"b":2}', 2), ("t.csv", "a,b,c", "1,2,3", 3)],
)
def test_the_values_of_a_table_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, head: str, row: str, values: int
) -> None:
    (tmp_path / name).write_text("\n".join([head, *[row] * 10]))
    monkeypatch.setattr(tables, "MAX_VALUES", values * 10)
    assert len(tables.read_table(tmp_path / name, lambda _: None)) == 10
    monkeypatch.setattr(tables, "MAX_VALUES", values * 10 - 1)
    with pytest.raises(
        RedxError, match=f"has more than {values * 10 - 1} values; give fewer examples, or fewer columns"
    ):
        tables.read_table(tmp_path / name, lambda _: None)


def test_an_error_names_few_of_many_columns(tmp_path: Path) -> None:
    names = [f"{'column' * 20}{number}" for number in range(1000)]
    (tmp_path / "t.csv").write_text("\n".join([",".join(names), *[",".join("a" * 1000)] * 3]))
    with pytest.raises(RedxError, match="has no column") as refused:
        tables.read_table(tmp_path / "t.csv", lambda record: print(tables.text_value(record, "text")))
    assert len(str(refused.value)) < 1500
    assert "has no column 'text', only 'columncolumn" in str(refused.value)
    assert "…; rename yours" in str(refused.value)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({str(number): [1] for number in range(1001)}, {}, "1 rows of 1,001 columns; give at most"),
        ({"a": range(2**22 + 1), "b": range(2**22 + 1)}, {}, "4,194,305 rows of 2 columns; give at most 8,388,608"),
        ({"a": ["x" * 5000] * 3}, {"use_dictionary": False}, "unpacks to more than 9,999 bytes"),
        ({"a": ["x" * 5000] * 3}, {}, "unpacks to more than 9,999 bytes"),  # the text lies in the file once
    ],
)
def test_parquet_files_that_unpack_to_too_much_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet", **options)
    if "unpacks" in message:
        monkeypatch.setattr(tables, "MAX_BYTES", 9_999)
    with pytest.raises(RedxError, match=message):
        tables.read_table(tmp_path / "t.parquet", lambda _: None)


def test_all_row_groups_of_parquet_are_read(tmp_path: Path) -> None:
    table = pyarrow.table({"text": [f"text {number}" for number in range(600)], "list": [[1]] * 600})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=70, compression="zstd")
    expected = [{"text": f"text {number}", "list": []} for number in range(600)]  # lists are not unpacked
    assert tables.read_table(tmp_path / "t.parquet", lambda _: None) == expected
