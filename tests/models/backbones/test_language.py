"""Frozen language models: equal to the plain model, never padded, run once per text, and unreadable texts refused."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from helpers.language_models import save_qwen3
from redx.errors import RedxError
from redx.models.backbones.hub import model_folder
from redx.models.backbones.language import FrozenLM, Pooling

TEXTS = ["1+2=?", "What is 37 plus 12?", "a", "2+2=?", "What is 11 plus 12?", "no", "1+2=?"]


pytestmark = pytest.mark.usefixtures("own_cache")


@functools.cache
def plain(folder: Path, text: str) -> list[Tensor]:
    """Return the raw output of every block for one text, (T, D) each, by hooks in the full model: the reference."""
    model = AutoModel.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)(text, truncation=False, padding=False, return_tensors="pt")["input_ids"]
    layers = model.layers if hasattr(model, "layers") else model.encoder.layer
    outputs: list[Tensor] = []
    for layer in layers:
        layer.register_forward_hook(lambda _, __, out: outputs.append(out[0] if isinstance(out, tuple) else out))
    layers[0].register_forward_pre_hook(lambda _, given: outputs.append(given[0]))
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert all(torch.equal(a, b) for a, b in zip(states[:-1], outputs[:-1], strict=True))
    return [state[0] for state in outputs]


def one_by_one(frozen: FrozenLM, texts: list[str]) -> dict[str, Tensor]:
    return {text: rows for one in texts for batch in frozen.encode([one]) for text, rows in batch}


@pytest.mark.parametrize("kind", ["qwen", "bert"])
@pytest.mark.parametrize("block", [0, 1, 2, 3, -1, -2, -3])
def test_every_block_is_that_of_the_plain_model(kind: str, block: int, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    frozen = FrozenLM(folder, (block,), "tokens")
    for text in TEXTS[:3]:
        expected = plain(folder, text)[block]
        torch.testing.assert_close(frozen.read([text])[0], expected, atol=1e-5, rtol=1e-5)


def test_the_last_block_is_read_before_the_final_norm(qwen: Path) -> None:
    with torch.no_grad():
        normed = AutoModel.from_pretrained(qwen).eval()(input_ids=torch.tensor([[3, 4, 5]])).last_hidden_state[0]
    frozen = FrozenLM(qwen, (-1,), "tokens")
    assert (frozen._forward(torch.tensor([[3, 4, 5]]))[0] - normed).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["qwen", "bert"])
def test_poolings_of_several_blocks(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    states = plain(folder, TEXTS[1])
    rows = torch.cat([states[3], states[1]], dim=-1)  # (T, 2D), in the order asked for
    expected = {"mean": rows.mean(0), "last": rows[-1], "both": torch.cat([rows.mean(0), rows[-1]]), "tokens": rows}
    pooling: Pooling
    for pooling in ("mean", "last", "both", "tokens"):
        frozen = FrozenLM(folder, (3, 1), pooling)
        features = frozen.read([TEXTS[1]])[0]
        assert frozen.width == features.shape[-1] == (128 if pooling == "both" else 64)
        torch.testing.assert_close(features, expected[pooling], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["qwen", "bert"])
def test_texts_in_a_batch_give_the_same_as_one_by_one(kind: str, request: pytest.FixtureRequest) -> None:
    frozen = FrozenLM(request.getfixturevalue(kind), (2,), "tokens")
    single = one_by_one(frozen, TEXTS)
    extra = kind == "bert"  # its [CLS]
    together = frozen.read(TEXTS)
    assert together.shape == (7, 19 + extra, 32)
    for text, rows in zip(TEXTS, together, strict=True):
        count = len(text) + extra
        assert single[text].shape == (count, 32)  # neither cut nor filled up, whatever the tokenizer's file asks for
        torch.testing.assert_close(rows[:count], single[text], atol=1e-5, rtol=1e-5)
        assert not rows[count:].any()


def test_the_size_of_batches_does_not_matter(qwen: Path) -> None:
    texts = [f"{a}+{b}=?" for a in range(9) for b in range(9)]
    large = FrozenLM(qwen, (2,), "mean").read(texts)
    frozen = FrozenLM(qwen, (2,), "mean", batch_tokens=12)
    assert {len(batch) for batch in frozen.encode(texts)} == {2, 1}
    torch.testing.assert_close(frozen.read(texts), large, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("block", "layers"), [(0, 1), (1, 1), (2, 2), (-1, 3)])
def test_only_the_blocks_needed_are_loaded(qwen: Path, bert: Path, block: int, layers: int) -> None:
    for folder, path in ((qwen, "layers"), (bert, "encoder.layer")):
        frozen = FrozenLM(folder, (block,), "last")
        assert len(list(frozen.model.get_submodule(path).children())) == layers
        assert frozen.config.num_hidden_layers == 3


def test_loading_is_silent(qwen: Path, capfd: pytest.CaptureFixture[str]) -> None:
    FrozenLM(qwen, (1,), "last").read(["a"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("pooling", ["mean", "tokens"])
def test_every_distinct_text_is_encoded_once_and_read_from_the_cache(qwen: Path, pooling: Pooling) -> None:
    first = FrozenLM(qwen, (2,), pooling)
    fresh = first.read(TEXTS)
    assert first.encoded_texts == 6
    assert not list(first.cache.folder.glob("*"))  # `read` keeps nothing
    first.prepare(TEXTS[:4])
    first.prepare(TEXTS)
    assert first.encoded_texts == 12
    stored = first.read(TEXTS)
    assert first.encoded_texts == 12
    torch.testing.assert_close(stored, fresh, atol=1e-5, rtol=1e-5)
    second = FrozenLM(qwen, (2,), pooling)
    assert torch.equal(second.read(TEXTS), stored)
    second.prepare(TEXTS)
    assert second.encoded_texts == 0
    assert "model" not in vars(second)  # never loaded
    torch.testing.assert_close(second.read([*TEXTS, "new"])[:7, ...], _widen(stored, second), atol=0, rtol=0)
    assert second.encoded_texts == 1


def _widen(rows: Tensor, frozen: FrozenLM) -> Tensor:
    return rows if frozen.pooling != "tokens" else rows[:, : max(map(len, TEXTS))]


def test_features_can_be_trained_on(qwen: Path) -> None:
    frozen = FrozenLM(qwen, (1,), "mean")
    frozen.prepare(TEXTS[:2])
    for texts in (TEXTS[:2], TEXTS, TEXTS[5:6]):
        layer = torch.nn.Linear(32, 1)
        layer(frozen.read(texts)).sum().backward()
        assert layer.weight.grad is not None


def test_no_texts_give_no_rows(qwen: Path) -> None:
    assert FrozenLM(qwen, (1,), "mean").read([]).shape == (0, 32)
    assert FrozenLM(qwen, (1,), "tokens").read([]).shape == (0, 0, 32)
    FrozenLM(qwen, (1,), "mean").prepare([])


def test_an_interrupted_encoding_ends_with_the_same_bits(
    qwen: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = [f"{a}+{b}=?" for a in range(0, 20, 3) for b in range(20)]
    frozen = FrozenLM(qwen, (3,), "both", batch_tokens=37)
    frozen.prepare(texts)
    whole = frozen.read(texts)
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "other"))
    broken = FrozenLM(qwen, (3,), "both", batch_tokens=37)
    run, calls = broken._forward, iter(range(7))

    def until(tokens: Tensor) -> Tensor:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return run(tokens)

    monkeypatch.setattr(broken, "_forward", until)
    with pytest.raises(KeyboardInterrupt):
        broken.prepare(texts)
    again = FrozenLM(qwen, (3,), "both", batch_tokens=37)
    again.prepare(texts)
    assert again.encoded_texts == len(texts) - broken.encoded_texts < len(texts)
    assert torch.equal(again.read(texts), whole)


def test_other_settings_have_other_cache_folders(qwen: Path, tmp_path: Path) -> None:
    other = save_qwen3(tmp_path / "qwen", seed=1)
    same = shutil.copytree(qwen, tmp_path / "copy")
    base = FrozenLM(qwen, (1,), "mean").cache.folder
    assert base == FrozenLM(same, (-3,), "mean").cache.folder
    different = {
        FrozenLM(other, (1,), "mean").cache.folder,
        FrozenLM(qwen, (2,), "mean").cache.folder,
        FrozenLM(qwen, (1, 2), "mean").cache.folder,
        FrozenLM(qwen, (1,), "last").cache.folder,
        FrozenLM(qwen, (1,), "mean", "bfloat16").cache.folder,
    }
    assert len(different | {base}) == 6


def test_a_cache_of_another_backbone_is_refused(qwen: Path, tmp_path: Path) -> None:
    ours, theirs = FrozenLM(qwen, (1,), "mean"), FrozenLM(save_qwen3(tmp_path / "qwen", seed=1), (1,), "mean")
    theirs.prepare(["a"])
    about = json.loads((theirs.cache.folder / "about.json").read_text())
    assert about["backbone"] == "qwen"
    theirs.cache.folder.rename(theirs.cache.folder.with_name(ours.cache.folder.name))
    with pytest.raises(RedxError, match=r"another backbone \(fingerprint differ\); clear all .* `redx cache clear`"):
        FrozenLM(qwen, (1,), "mean").read(["a"])


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_near_or_refused(qwen: Path, precision: Any) -> None:
    frozen = FrozenLM(qwen, (2,), "mean", precision)
    try:
        rows = frozen.read(TEXTS)
    except RedxError as error:  # some virtual machines announce AMX and kill whoever uses it
        assert precision == "bfloat16"
        assert "ONEDNN_MAX_CPU_ISA" in str(error)  # noqa: PT017
    else:
        assert rows.dtype == torch.float32
        torch.testing.assert_close(rows, FrozenLM(qwen, (2,), "mean").read(TEXTS), atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no text"),
        (" \n\t", "is no text"),
        (None, "is no text"),
        ("x" * 2001, "has 2,001 characters, but at most 2,000 are read"),
        ("x" * 257, "has 257 tokens, but qwen reads 256"),
        ("a\0b", "NUL"),
        ("a\ud800b", "lone surrogate"),
        ("a\udfff", "lone surrogate"),
    ],
)
def test_unreadable_texts_are_refused(qwen: Path, text: Any, message: str) -> None:
    frozen = FrozenLM(qwen, (1,), "mean")
    for call in (frozen.read, frozen.prepare):
        with pytest.raises(RedxError, match=message) as error:
            call(["fine", text])
        assert len(str(error.value)) < 200
        assert str(error.value).isprintable()
    assert not list(frozen.cache.folder.glob("*"))


@pytest.mark.parametrize("text", ["x" * 256, "é ∑ 😀", "[PAD]", "<|im_end|>"])
def test_odd_texts_are_read(qwen: Path, text: str) -> None:
    assert FrozenLM(qwen, (1,), "mean").read([text]).isfinite().all()


@pytest.mark.parametrize("blocks", [(), (4,), (-4,), (1, 9)])
def test_blocks_that_the_model_lacks_are_refused(qwen: Path, blocks: tuple[int, ...]) -> None:
    with pytest.raises(RedxError, match=r"has no blocks \(.*\); choose one or more of 1\.\.3"):
        FrozenLM(qwen, blocks, "mean")


def damage(folder: Path, how: str) -> None:
    config, weights = folder / "config.json", folder / "model.safetensors"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:5000])
    elif how == "lacking":
        save_file({k: v for k, v in load_file(weights).items() if "layers.0.mlp" not in k}, weights, {"format": "pt"})
    elif how == "tokenizer":
        (folder / "tokenizer.json").write_text("{}")
    else:
        facts = json.loads(config.read_text())
        config.write_text(json.dumps(facts | json.loads(how)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", "The model in .* cannot be loaded"),
        ("lacking", r"lack layers\.0\.mlp"),
        ("tokenizer", "The tokenizer in .* cannot be loaded"),
        ('{"model_type": "nothing"}', r"The config\.json in .* cannot be loaded"),
        ('{"hidden_size": 48}', "The model in .* cannot be loaded"),
        ('{"model_type": "t5", "is_encoder_decoder": true}', "no plain text model"),
    ],
)
def test_damaged_folders_are_refused(qwen: Path, tmp_path: Path, how: str, message: str) -> None:
    folder = shutil.copytree(qwen, tmp_path / "bad")
    damage(folder, how)
    with pytest.raises(RedxError, match=message) as error:
        FrozenLM(folder, (2,), "mean").read(["a"])
    assert "\n" not in str(error.value)


def test_an_unknown_device_is_refused(qwen: Path) -> None:
    with pytest.raises(RedxError, match="cannot be loaded"):
        FrozenLM(qwen, (1,), "mean", device="nowhere").read(["a"])


@pytest.mark.slow
def test_smollm_reads_questions(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delenv("REDX_CACHE")  # the user's cache, since the model has 540 MB
        smollm = model_folder("smollm2-135m")
    questions = ["What is 137 plus 12?", "What is 137 plus 12?", "What is 8 times 7?", "37 + 12 ="]
    frozen = FrozenLM(smollm, (4, 2), "both")
    assert frozen.width == 4 * 576
    tokens = frozen.tokenizer.tokenize(questions[0])
    assert tokens == ["What", "Ġis", "Ġ", "1", "3", "7", "Ġplus", "Ġ", "1", "2", "?"]
    frozen.prepare(questions)
    rows = frozen.read(questions)
    assert frozen.encoded_texts == 3
    assert rows.isfinite().all()
    assert torch.equal(rows[0], rows[1])
    assert (rows[0] - rows[2]).abs().max() > 0.1
    for batch in frozen.encode(questions[1:]):  # once more: the same bits
        for text, again in batch:
            assert torch.equal(again[0], rows[questions.index(text)])


def test_the_mean_of_the_last_block_equals_that_of_transformers(bert: Path) -> None:
    texts = ["a", "What is 37 plus 12?", "some more words to read here"]
    frozen = FrozenLM(bert, (-1,), "mean")
    model = AutoModel.from_pretrained(bert).eval()
    tokens = frozen.tokenizer(texts, truncation=False, padding="longest", return_tensors="pt")
    with torch.inference_mode():
        states = model(tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    torch.testing.assert_close(frozen.read(texts), (states * mask).sum(1) / mask.sum(1), rtol=1e-4, atol=1e-5)


def test_long_texts_are_truncated_on_request(bert: Path) -> None:
    long = "word " * 100
    with pytest.raises(RedxError, match="tokens, but bert reads 64"):
        FrozenLM(bert, (-1,), "mean").read([long])
    cut = FrozenLM(bert, (-1,), "tokens", max_tokens=16)
    assert cut.read([long]).shape == (1, 16, 32)
    assert FrozenLM(bert, (-1,), "mean", max_tokens=1000).read([long]).shape == (1, 32)  # what the model reads at most
    assert "t16" in cut.cache.folder.name  # other features than those of whole texts
    torch.testing.assert_close(cut.read(["short"]), FrozenLM(bert, (-1,), "tokens").read(["short"]))
