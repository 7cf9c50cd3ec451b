"""The files of CLINC150: found in the right order, verified, and read as the official splits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.clinc import INTENTS, expect, real_folder, tiny_queries, write_clinc
from helpers.commands import Ask, refused, succeeded
from helpers.servers import serve_folder
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.runs.presets import configure
from redx.tasks import get_task
from redx.tasks.intents.loading import DOMAINS, QUERIES, choose_training_rows, intents_folder, out_of_scope


@pytest.fixture(autouse=True)
def _only_what_a_test_gives(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's own cache or data."""
    monkeypatch.delenv("REDX_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Settings that read a tiny data set."""
    expect(monkeypatch, write_clinc(tmp_path / "tiny"))
    return configure("intents", "quick", data_dir=str(tmp_path / "tiny"))


def load(config: RunConfig, seed: int = 0, **changes: Any) -> Data:
    return get_task("intents").load(config.model_copy(update=changes), seed)


# --- where the files come from


def test_a_folder_of_the_user_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_clinc(tmp_path / "mine")
    write_clinc(tmp_path / "data" / "clinc150")
    monkeypatch.setenv("REDX_DATA", str(tmp_path / "data"))
    assert intents_folder(tmp_path / "mine", source) == tmp_path / "mine"
    assert intents_folder(tmp_path / "data", source) == tmp_path / "data" / "clinc150"


def test_the_environment_variable_comes_before_the_cache(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_clinc(own_cache / "clinc150")
    assert intents_folder(None, source) == own_cache / "clinc150"
    write_clinc(tmp_path / "data" / "clinc150")
    for folder in (tmp_path / "data", tmp_path / "data" / "clinc150"):
        monkeypatch.setenv("REDX_DATA", str(folder))
        assert intents_folder(None, source) == tmp_path / "data" / "clinc150"
    monkeypatch.setenv("REDX_DATA", str(tmp_path / "nowhere"))
    assert intents_folder(None, source) == own_cache / "clinc150"


def test_missing_files_are_downloaded_into_the_cache_once(tmp_path: Path, own_cache: Path) -> None:
    source = write_clinc(tmp_path / "remote")
    with serve_folder(tmp_path / "remote") as (url, requested):
        for _ in range(2):
            assert intents_folder(None, replace(source, url=url)) == own_cache / "clinc150"
        assert requested == [f"/{QUERIES}", f"/{DOMAINS}"]
    assert sorted(path.name for path in (own_cache / "clinc150").iterdir()) == [QUERIES, DOMAINS]


def test_a_download_of_another_file_is_refused_and_not_kept(tmp_path: Path, own_cache: Path) -> None:
    source = write_clinc(tmp_path / "remote")
    (tmp_path / "remote" / DOMAINS).write_text("{}")
    with (
        serve_folder(tmp_path / "remote") as (url, _),
        pytest.raises(RedxError, match=r"SHA256 expected .*; give --data-dir FOLDER or set REDX_DATA"),
    ):
        intents_folder(None, replace(source, url=url))
    assert not (own_cache / "clinc150" / DOMAINS).exists()


def test_the_error_lists_everything_that_was_tried(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_clinc(own_cache / "clinc150")
    (own_cache / "clinc150" / QUERIES).write_text("damaged")
    monkeypatch.setenv("REDX_DATA", str(tmp_path / "empty"))
    with pytest.raises(RedxError) as error:
        intents_folder(None, source)
    text = str(error.value)
    assert "\n" not in text
    for word in (f"REDX_DATA={tmp_path / 'empty'}: no {QUERIES}", str(own_cache), "is another file", source.url):
        assert word in text
    assert text.index("REDX_DATA=") < text.index(str(own_cache)) < text.index(source.url)


@pytest.mark.parametrize("fault", ["missing", "other", "folder"])
def test_a_wrong_file_of_the_user_is_refused_although_the_cache_has_it(
    tmp_path: Path, own_cache: Path, fault: str
) -> None:
    source = write_clinc(own_cache / "clinc150")
    write_clinc(tmp_path / "mine")
    path = tmp_path / "mine" / DOMAINS
    path.unlink()
    if fault == "other":
        path.write_text("{}")
    elif fault == "folder":
        path.mkdir()
    with pytest.raises(RedxError, match=rf"not in {tmp_path / 'mine'} \(.*{DOMAINS}.*\); give --data-dir"):
        intents_folder(tmp_path / "mine", source)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    source = replace(write_clinc(tmp_path), max_file_bytes=100)
    with pytest.raises(RedxError, match="more than 100"):
        intents_folder(tmp_path, source)


def test_the_command_fetches_and_refuses(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(monkeypatch, write_clinc(tmp_path / "mine"))
    answer = succeeded(ask("fetch", "intents", "--data-dir", tmp_path / "mine", "--json"))
    assert json.loads(answer) == {"folder": str(tmp_path / "mine")}
    refused(ask("fetch", "intents", "--data-dir", "nowhere"), "nowhere", "--data-dir", "REDX_DATA")
    refused(ask("run", "intents", "--data-dir", "nowhere"), "nowhere", "--data-dir")


# --- the splits


def test_the_splits_are_those_of_the_file(config: RunConfig) -> None:
    data, queries = load(config), tiny_queries()
    assert data.domains == ("travel", "work 2", "work 10")  # the order of a library
    assert data.classes == ("alarm", "holiday", "payday", "plug", "timer", "visa")
    for split, name in ((data.train, "train"), (data.validation, "val"), (data.test, "test")):
        labels = [data.classes[label] for label in split.labels.tolist()]
        assert [list(pair) for pair in zip(unpack_texts(split.inputs), labels, strict=True)] == queries[name]
        for label, domain in zip(labels, split.domains.tolist(), strict=True):
            assert label in INTENTS[data.domains[domain]]
    assert (data.split, data.seen_in_train) == ("disjoint", 0)
    assert -1 not in data.domain_of_classes()


def test_test_queries_that_train_has_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = tiny_queries()
    queries["train"][5] = [queries["test"][0][0], queries["train"][5][1]]
    expect(monkeypatch, write_clinc(tmp_path, queries))
    data = load(configure("intents", data_dir=str(tmp_path)))
    assert (data.split, data.seen_in_train) == ("random", 1 / len(data.test))


@pytest.mark.parametrize("shots", [1, 5, 100])
def test_shots_are_drawn_per_intent_by_the_seed(config: RunConfig, shots: int) -> None:
    whole, data, other = load(config), load(config, shots=shots), load(config, seed=1, shots=shots)
    assert torch.bincount(data.train.labels).tolist() == [min(shots, 12)] * 6
    assert load(config, shots=shots).train.digest() == data.train.digest()
    assert (other.train.digest() == data.train.digest()) == (shots >= 12)
    assert data.test.digest() == whole.test.digest()
    assert data.validation.digest() == whole.validation.digest()


def test_fewer_shots_are_among_more_shots() -> None:
    labels = torch.arange(600) % 7
    few, more = (set(choose_training_rows(labels, 3, shots, None).tolist()) for shots in (2, 9))
    assert len(few) == 14
    assert few < more


def test_a_limit_shortens_the_training_split() -> None:
    labels = torch.arange(600) % 7
    assert len(choose_training_rows(labels, 0, None, 100)) == 100
    assert len(choose_training_rows(labels, 0, 10, 100)) == 70
    assert choose_training_rows(labels, 0, None, None).tolist() == list(range(600))


def test_queries_out_of_scope_are_separate(config: RunConfig) -> None:
    validation, test = out_of_scope(config)
    assert unpack_texts(validation) == ["val riddle 0", "val riddle 1", "val riddle 2"]
    assert unpack_texts(test) == ["test riddle 0", "test riddle 1", "test riddle 2"]
    (train,) = out_of_scope(config, ["train"])
    assert unpack_texts(train)[0] == "train riddle 0"
    data = load(config)
    inside = {text for split in (data.train, data.validation, data.test) for text in unpack_texts(split.inputs)}
    assert not any("riddle" in text for text in inside)


@pytest.mark.parametrize(
    ("queries", "domains", "message"),
    [
        (tiny_queries() | {"train": [["one", "two", "three"]]}, None, "does not hold pairs of text and intent"),
        (tiny_queries() | {"val": []}, None, "has no split 'val'"),
        ({name: rows for name, rows in tiny_queries().items() if name != "oos_test"}, None, "has no split 'test'"),
        (None, {"travel": "visa"}, "does not hold lists of intents"),
        (None, INTENTS | {"travel": ["visa"]}, "no domain for the intent 'plug'"),
        (None, INTENTS | {"other": ["visa"]}, "an intent in two domains"),
        (None, {"a/b": [intent for names in INTENTS.values() for intent in names]}, "cannot be called 'a/b'"),
    ],
)
def test_files_of_another_form_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queries: Any, domains: Any, message: str
) -> None:
    expect(monkeypatch, write_clinc(tmp_path, queries, domains))
    with pytest.raises(RedxError, match=message):
        load(configure("intents", data_dir=str(tmp_path)))


@pytest.mark.slow
def test_the_real_files_give_the_official_splits() -> None:
    folder = real_folder()
    assert intents_folder(folder) == folder
    config = configure("intents", data_dir=str(folder))
    data = load(config)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [15_000, 3_000, 4_500]
    assert [len(queries) for queries in out_of_scope(config, ["train", "validation", "test"])] == [100, 100, 1_000]
    assert len(data.domains) == 10
    for split, count in ((data.train, 100), (data.validation, 20), (data.test, 30)):
        assert torch.bincount(split.labels).tolist() == [count] * 150
        assert torch.bincount(split.domains).tolist() == [15 * count] * 10
    assert data.seen_in_train == pytest.approx(2 / 4_500)
    assert len(load(config, shots=10).train) == 1_500
