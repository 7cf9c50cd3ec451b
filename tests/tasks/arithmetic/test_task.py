"""Arithmetic in words: data, trunks on a tiny language model, whole runs, and experts that were trained apart."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import redx
from redx.composition.evaluation import certify
from redx.composition.parts import Parts
from redx.composition.rules import RULES, compose, get_rule
from redx.config import BankConfig, RunConfig, TrainingConfig
from redx.data import tables
from redx.data.text import pack_texts, unpack_texts
from redx.errors import RedxError
from redx.models.banks import build_bank, fill_bank, run_bank, split_bank
from redx.models.base import Base
from redx.models.encoder import TextEncoder, build_encoder
from redx.runs.folder import read_config
from redx.runs.presets import configure
from redx.tasks import get_preset, get_task
from redx.tasks.arithmetic import canonical, questions
from redx.tasks.arithmetic.task import TASKS
from redx.training import datasets
from redx.training.banks import train_bank
from redx.training.features import embed_splits

TEXTS = ["What is 37 plus 12?", "What is 4 minus 1?", "What is 4 minus 1?", "ä 10 − 3"]
SHAPES = {"mlp": "mean", "sum": "tokens", "blocks": "mean"}
ARITHMETIC = list(TASKS)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))


def small(qwen: Path, shape: str = "mlp") -> dict[str, Any]:
    """What makes a run of seconds out of the quick preset."""
    reading = {"blocks": [1, 2], "pooling": SHAPES[shape], "trunk": shape, "train_blocks": 1}
    return {"backbone": str(qwen), "limit": 600, "epochs": {"base": 2, "experts": 1, "router": 2}} | reading


def test_texts_come_back_from_their_bytes() -> None:
    assert unpack_texts(pack_texts(TEXTS)) == TEXTS
    assert pack_texts(TEXTS).dtype == torch.uint8
    for wrong in ([""], ["  "], ["a\0"], [3], "not a list"):
        with pytest.raises(RedxError):
            pack_texts(wrong)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_disjoint_splits_share_no_question_in_any_wording(name: str) -> None:
    data = get_task(name).load(configure(name, total=3000, split="disjoint"), 0)
    keys = [
        {canonical.canonical(text) for text in unpack_texts(split.inputs)}
        for split in (data.train, data.validation, data.test)
    ]
    assert keys[0].isdisjoint(keys[1] | keys[2])
    assert keys[1].isdisjoint(keys[2])
    assert data.seen_in_train == 0
    assert len(data.test) == len(keys[2])
    for split in (data.train, data.validation, data.test):
        assert len(split.domains.unique()) == len(data.domains)
        for text, label in zip(unpack_texts(split.inputs), split.labels.tolist(), strict=True):
            terms = canonical.canonical(text).replace("- ", "-").replace("+ ", "").split()
            assert sum(map(int, terms)) == int(data.classes[label])


def test_the_papers_split_shows_nearly_every_test_question_in_training() -> None:
    data = get_task("addition").load(configure("addition", split="random"), 0)
    assert data.split == "random"
    assert data.seen_in_train > 0.99
    assert (len(data.train), len(data.validation), len(data.test)) == (20_000, 2_500, 2_500)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_the_papers_presets_say_what_the_papers_say(name: str) -> None:
    few, many = get_preset(name, "paper"), get_preset(name, "paper-80k")
    assert (few.questions.total, many.questions.total) == (25_000, 80_000)
    assert few.base.share == many.base.share == 0.1
    assert few.integrate
    assert many.integrate
    for config, virtual, epochs, patience in ((few, 128, 8, None), (many, 64, 60, 3)):
        assert config.base.trunk.shape == "blocks"
        assert config.base.trunk.blocks == 2
        assert config.reading.pooling == "mean"
        assert config.router.hidden == 256
        assert config.banks["residual/plain"].hidden == 0  # a quarter of D
        for training in (config.base.training, config.router.training, config.banks["residual/plain"].training):
            assert (training.lr, training.batch, training.virtual_batch) == (1e-4, 16, virtual)
            assert (training.epochs, training.patience) == (epochs, patience)
            assert training.precision == ("float16" if config is few else "float32")


def test_top_blocks_on_kept_states_are_the_whole_model(qwen: Path) -> None:
    encoder = build_encoder(configure("addition", "quick", **small(qwen, "blocks")))
    found = encoder(pack_texts(TEXTS))
    model = AutoModel.from_pretrained(qwen).eval()
    assert isinstance(encoder, TextEncoder)
    for row, text in zip(found, TEXTS, strict=True):
        ids = encoder.prefix.tokenizer(text, return_tensors="pt")["input_ids"]
        torch.testing.assert_close(row, model(ids).last_hidden_state.mean(1)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_alone_is_read_as_in_company(qwen: Path, shape: str) -> None:
    encoder = build_encoder(configure("addition", "quick", **small(qwen, shape)))
    assert isinstance(encoder, TextEncoder)
    encoder.trunk.fit(encoder.read(pack_texts([f"What is {a} plus {a * 7 % 50}?" for a in range(1, 50)])))
    company, alone = encoder(pack_texts(TEXTS)), torch.cat([encoder(pack_texts([text])) for text in TEXTS])
    torch.testing.assert_close(company, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_on_a_folder_from_data_to_prediction(qwen: Path, tmp_path: Path, shape: str) -> None:
    seeds = [0, 1] if shape == "mlp" else [0]
    done = redx.run("mixed", "quick", seeds=seeds, out=tmp_path / "run", **small(qwen, shape))  # seeds differ in size
    assert done.summary["data"]["seen_in_train"] == 0
    assert done.summary["study"]["passes"]["here, each distinct text once"] <= 600
    model = redx.load(done.folder)
    told = model.explain(["What is 37 plus 12?"])[0]
    assert 2 <= int(told["answer"]) <= 100
    low, high = map(int, told["range"].split("_")[1:])
    assert low <= int(told["answer"]) <= high
    assert sum(told["weights"].values()) == pytest.approx(1)
    for rule in RULES:
        if rule != "average":
            with model.using(rule):
                assert model.predict(["What is 37 plus 12?"]) == [model.explain(["What is 37 plus 12?"])[0]["answer"]]
    assert not any("prefix" in name for name in load_file(done.folder / "seed-0" / "base.safetensors"))
    # cached and computed anew are the same
    data = get_task("mixed").load(read_config(done.folder), 0)
    kept = model.base.classify(model.base.embed(data.test.inputs))
    for path in (tmp_path / "cache" / "features").rglob("*.npy"):
        path.unlink()
    fresh = redx.load(done.folder).base
    torch.testing.assert_close(fresh.classify(fresh.embed(data.test.inputs)), kept, atol=1e-5, rtol=0)


def test_features_are_shared_between_runs(qwen: Path, tmp_path: Path) -> None:
    config = configure("addition", "quick", **small(qwen))
    data = get_task("addition").load(config, 0)
    counts = []
    for _ in range(2):
        encoder = build_encoder(config)
        assert isinstance(encoder, TextEncoder)
        encoder.prepare([data.train.inputs, data.test.inputs])
        counts.append(encoder.prefix.forwards)
    assert counts == [len({*unpack_texts(data.train.inputs), *unpack_texts(data.test.inputs)}), 0]


def test_a_file_of_questions_is_a_run_s_data(qwen: Path, tmp_path: Path) -> None:
    for kind, name in (("mixed", "mixed"), ("steps", "mixed"), ("ops", "ops"), ("addition", "addition")):
        made = questions.make(kind, 500, 0, **({"operations": ("add", "sub")} if kind == "ops" else {}))
        tables.write_jsonl(tmp_path / "questions.jsonl", made)
        data = get_task(name).load(configure(name, file=str(tmp_path / "questions.jsonl")), 0)
        assert len(data.train) + len(data.validation) + len(data.test) <= 500
        assert data.seen_in_train == 0


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"question": "What is 1 plus 1?"', "not JSON"),
        ('{"question": "What is 1 plus 1?"}', "answer"),
        ('{"question": "What is 60 plus 60?", "answer": 120}', "120"),
        ('{"question": " ", "answer": 12}', "empty"),
        ('{"answer": 12}', "neither"),
    ],
)
def test_a_faulty_file_trains_nothing(qwen: Path, tmp_path: Path, line: str, named: str) -> None:
    good = [json.dumps(record) for record in questions.make("addition", 300, 0)]
    (tmp_path / "bad.jsonl").write_text("\n".join([*good[:7], line, *good[7:], line]))
    with pytest.raises(RedxError, match="8, 302") as refused:
        redx.run("addition", "quick", out=tmp_path / "run", file=str(tmp_path / "bad.jsonl"), **small(qwen))
    assert named in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"backbone": "nosuch"}, "nosuch"),
        ({"backbone": "cnn"}, "text"),
        ({"blocks": [99]}, "99"),
        ({"trunk": "sum", "pooling": "mean"}, "tokens"),
        ({"trunk": "blocks", "train_blocks": 7}, "blocks"),
        ({"file": "nosuch.jsonl"}, "nosuch"),
        ({"operations": ["add"]}, "operations"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(
    qwen: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(RedxError, match=named):
        redx.run("ops", "quick", out=tmp_path / "run", **(small(qwen) | changes))
    assert not (tmp_path / "run").exists()


# Experts trained apart: other precisions, sizes of data and processes

APART: dict[str, tuple[Any, float]] = {
    "range_2_20": ("float32", 1.0),
    "range_41_60": ("bfloat16", 0.5),
    "range_81_100": ("float32", 0.25),
}
SCRIPT = """
import sys
from pathlib import Path
from test_arithmetic import learn, prepared
learn(prepared(Path(sys.argv[1]), Path(sys.argv[2])), sys.argv[3], Path(sys.argv[4]))
"""


def prepared(qwen: Path, folder: Path) -> tuple[RunConfig, Base, list[datasets.ExpertData]]:
    """The shared base and the lessons, as any place would read them."""
    config = configure("addition", "quick", **small(qwen))
    data = get_task("addition").load(config, 0)
    base = Base.from_tensors(load_file(folder / "base.safetensors"), build_encoder(config))
    train, shared, check = embed_splits(config, base, data, datasets.select_shared(data, config, 0), 0)
    return config, base, datasets.expert_datasets(data.domains, train, shared, check)


def learn(place: tuple[RunConfig, Base, list[datasets.ExpertData]], name: str, out: Path) -> None:
    """Train one expert alone and save it, in half precision where it was trained so."""
    _, base, taught = place
    precision, part = APART[name]
    lesson = next(lesson for lesson in taught if lesson.name == name)
    fewer = lesson.own.only(torch.arange(round(part * len(lesson.own))))
    bank = BankConfig(
        shape="lowrank", hidden=16, anchor="truth", training=TrainingConfig(epochs=3, precision=precision)
    )
    own = dataclasses.replace(lesson, own=fewer)
    made = train_bank("residual/apart", bank, [own], base, 0, 1.0)
    kept = torch.bfloat16 if precision == "bfloat16" else torch.float32
    save_file({key: value.to(kept) for key, value in split_bank(made)[0].items()}, out)


def test_experts_trained_in_other_processes_and_precisions_compose_as_in_one(qwen: Path, tmp_path: Path) -> None:
    done = redx.run("addition", "quick", out=tmp_path / "run", **small(qwen))
    folder = done.folder / "seed-0"
    place = prepared(qwen, folder)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    for name in APART:
        learn(place, name, tmp_path / f"{name}.here")
        command = [sys.executable, "-c", SCRIPT, str(qwen), str(folder), name, str(tmp_path / f"{name}.there")]
        subprocess.run(command, check=True, env=environment)
    _, base, taught = place
    composed = []
    for where in ("here", "there"):
        files = [load_file(tmp_path / f"{name}.{where}") for name in APART]
        bank = build_bank(BankConfig(shape="lowrank", hidden=16), len(files), base)
        fill_bank(bank, files)
        h = taught[0].anchors.inputs
        none = torch.zeros(len(h), dtype=torch.long)
        parts = Parts(base.classify(h), run_bank(bank, h), torch.randn(len(h), 3).fill_(0.3), none, none)
        composed.append(compose(get_rule("red"), parts, get_rule("red").weights(parts)))
        assert certify(get_rule("red"), parts).radius.isfinite().all()
    assert torch.equal(*composed)
    assert not torch.equal(composed[0], base.classify(taught[0].anchors.inputs))


def test_the_real_language_model_adds_unseen_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REDX_CACHE")  # the user's, where the model is
    done = redx.run("addition", "quick", out=tmp_path / "run", epochs={"base": 100, "experts": 2}, study="none")
    assert done.summary["data"]["seen_in_train"] == 0
    rules = done.summary["rules"]
    assert rules["base"]["accuracy"]["mean"] > 0.8
    assert rules["red"]["certified"]["1"] >= rules["base"]["accuracy"]["mean"] - 0.02
    (told,) = redx.load(done.folder).explain(["What is 37 plus 12?"])
    assert told["range"] == "range_41_60"
