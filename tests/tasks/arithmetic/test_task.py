"""Arithmetic in words: data, whole runs on a tiny language model, and experts that were trained apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import redx
from helpers.experts_apart import APART, read_base_and_data, train_expert
from helpers.runs import text_settings
from redx.composition.evaluation import certify
from redx.composition.parts import Parts
from redx.composition.rules import RULES, compose, get_rule
from redx.config import BankConfig, BankId
from redx.data import tables
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.models.banks import build_bank, fill_bank, run_bank
from redx.models.encoder import TextEncoder, build_encoder
from redx.runs.folder import read_config
from redx.runs.presets import configure
from redx.tasks import get_preset, get_task
from redx.tasks.arithmetic import canonical, questions
from redx.tasks.arithmetic.task import TASKS

ARITHMETIC = list(TASKS)
PLAIN = BankId("residual", "plain")

pytestmark = pytest.mark.usefixtures("own_cache")


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


def test_a_random_split_has_seen_nearly_every_test_question() -> None:
    data = get_task("addition").load(configure("addition", split="random"), 0)
    assert data.split == "random"
    assert data.seen_in_train > 0.99
    assert (len(data.train), len(data.validation), len(data.test)) == (20_000, 2_500, 2_500)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_the_presets_of_the_papers_have_their_settings(name: str) -> None:
    few, many = get_preset(name, "paper"), get_preset(name, "paper-80k")
    assert (few.questions.total, many.questions.total) == (25_000, 80_000)
    assert few.base.share == many.base.share == 0.1
    assert few.integrate
    assert many.integrate
    for config, virtual, epochs, patience in ((few, 128, 8, None), (many, 64, 60, 3)):
        assert config.base.trunk.shape == "blocks"
        assert config.base.trunk.blocks == 2
        assert config.encoding.pooling == "mean"
        assert config.router.hidden == 256
        assert config.banks[PLAIN].hidden == 0  # a quarter of D
        for training in (config.base.training, config.router.training, config.banks[PLAIN].training):
            assert (training.lr, training.batch, training.virtual_batch) == (1e-4, 16, virtual)
            assert (training.epochs, training.patience) == (epochs, patience)
            assert training.precision == ("float16" if config is few else "float32")


@pytest.mark.parametrize("task", ["addition", "mixed"])
@pytest.mark.parametrize("preset", ["quick", "default"])
def test_heads_and_residual_experts_of_a_weak_base_have_the_same_make(task: str, preset: str) -> None:
    banks = get_preset(task, preset).banks
    for name in ("plain", "anchored"):
        residual, standalone = banks[BankId("residual", name)], banks[BankId("standalone", name)]
        assert (residual.shape, standalone.shape) == ("shift", "value")
        assert standalone == residual.model_copy(update={"shape": "value"})
    assert banks[BankId("pooled", "value")] == banks[BankId("standalone", "plain")]


def test_another_trunk_has_experts_of_classes() -> None:
    config = configure("mixed", trunk="mlp")
    assert {bank.shape for bank in (*config.banks.values(), config.ownership.bank)} == {"mlp"}
    assert {bank.fit for bank in config.banks.values()} == {"gradient"}
    assert configure("mixed", trunk="sum").banks == get_preset("mixed", "default").banks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["banks.residual/plain.shape=value"], "'shift' is for residual banks"),
        (["ownership.bank.shape=value"], "their shape is 'shift'"),
        (["base.teach=classes"], "only a base with trunk 'sum' codes"),
    ],
)
def test_experts_of_values_in_the_wrong_place_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(RedxError, match=message):
        configure("mixed", assignments=changes)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["mlp", "sum", "blocks"])
def test_a_run_from_data_to_prediction(qwen: Path, tmp_path: Path, shape: str) -> None:
    seeds = [0, 1] if shape == "mlp" else [0]
    done = redx.run(
        "mixed", "quick", seeds=seeds, out=tmp_path / "run", **text_settings(qwen, shape)
    )  # seeds differ in size
    assert done.summary["data"]["seen_in_train"] == 0
    assert done.summary["study"]["passes"]["here, each distinct text once"] <= 600
    model = redx.load(done.folder)
    (explanation,) = model.explain(["What is 37 plus 12?"])
    assert 2 <= int(explanation.answer) <= 100
    assert explanation.range is not None
    low, high = map(int, explanation.range.split("_")[1:])
    assert low <= int(explanation.answer) <= high
    assert sum(explanation.weights.values()) == pytest.approx(1)
    for rule in RULES:
        if rule in ("oracle", "red-oracle"):  # they follow the true domain, which a question does not say
            with model.using(rule), pytest.raises(RedxError, match="choose a rule that needs none"):
                model.predict(["What is 37 plus 12?"])
        elif rule not in ("average", "statistics"):
            with model.using(rule):
                (explanation,) = model.explain(["What is 37 plus 12?"])
                assert model.predict(["What is 37 plus 12?"]) == [explanation.answer]
    assert not any("frozen" in name for name in load_file(done.folder / "seed-0" / "base.safetensors"))
    # cached and computed anew are the same
    data = get_task("mixed").load(read_config(done.folder), 0)
    cached = model.base.classify(model.base.embed(data.test.inputs))
    for path in (tmp_path / "cache" / "features").rglob("*.npy"):
        path.unlink()
    fresh = redx.load(done.folder).base
    torch.testing.assert_close(fresh.classify(fresh.embed(data.test.inputs)), cached, atol=1e-5, rtol=0)


def test_features_are_cached_between_runs(qwen: Path, tmp_path: Path) -> None:
    config = configure("addition", "quick", **text_settings(qwen))
    data = get_task("addition").load(config, 0)
    counts = []
    for _ in range(2):
        encoder = build_encoder(config)
        assert isinstance(encoder, TextEncoder)
        encoder.prepare([data.train.inputs, data.test.inputs])
        counts.append(encoder.frozen.encoded_texts)
    assert counts == [len({*unpack_texts(data.train.inputs), *unpack_texts(data.test.inputs)}), 0]


def test_questions_can_be_read_from_a_file(qwen: Path, tmp_path: Path) -> None:
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
def test_a_faulty_file_is_refused_before_training(qwen: Path, tmp_path: Path, line: str, named: str) -> None:
    good = [json.dumps(record) for record in questions.make("addition", 300, 0)]
    (tmp_path / "bad.jsonl").write_text("\n".join([*good[:7], line, *good[7:], line]))
    with pytest.raises(RedxError, match="8, 302") as refused:
        redx.run("addition", "quick", out=tmp_path / "run", file=str(tmp_path / "bad.jsonl"), **text_settings(qwen))
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
        redx.run("ops", "quick", out=tmp_path / "run", **(text_settings(qwen) | changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_experts_trained_in_other_processes_and_precisions_compose_as_in_one(qwen: Path, tmp_path: Path) -> None:
    done = redx.run("addition", "quick", out=tmp_path / "run", **text_settings(qwen))
    folder = done.folder / "seed-0"
    base, datasets = read_base_and_data(qwen, folder)
    for name in APART:
        train_expert(base, datasets, name, tmp_path / f"{name}.here")
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "helpers.experts_apart", str(qwen), str(folder), str(tmp_path)]
    subprocess.run(command, check=True, env=environment)
    composed = []
    for where in ("here", "there"):
        files = [load_file(tmp_path / f"{name}.{where}") for name in APART]
        bank = build_bank(BankConfig(shape="lowrank", hidden=16), len(files), base)
        fill_bank(bank, files)
        h = datasets[0].anchors.inputs
        none = torch.zeros(len(h), dtype=torch.long)
        parts = Parts(base.classify(h), run_bank(bank, h), torch.full((len(h), 3), 0.3), none, none)
        composed.append(compose(get_rule("red"), parts, get_rule("red").weights(parts)))
        assert certify(get_rule("red"), parts).radius.isfinite().all()
    assert torch.equal(*composed)
    assert not torch.equal(composed[0], base.classify(datasets[0].anchors.inputs))


@pytest.mark.slow
def test_the_real_language_model_adds_unseen_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REDX_CACHE")  # the user's, where the model is
    few = {"epochs": {"base": 100, "experts": 2}, "total": 10_000, "study": "none"}
    done = redx.run("addition", "strong", out=tmp_path / "run", **few)
    assert done.summary["data"]["seen_in_train"] == 0
    rules = done.summary["rules"]
    assert rules["base"]["accuracy"]["mean"] > 0.8
    assert rules["red"]["certified"]["1"] >= rules["base"]["accuracy"]["mean"] - 0.02
    (explanation,) = redx.load(done.folder).explain(["What is 37 plus 12?"])
    assert explanation.range == "range_41_60"
