"""The `lm` decomposer: well-formed programs whatever the model writes, and training on programs alone."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch.nn import functional as F
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from helpers.language_models import save_bert
from helpers.program_tokenizers import by_character, by_chunk, by_word
from redx.errors import RedxError
from redx.tasks.arithmetic.decomposers.grammar import Grammar
from redx.tasks.arithmetic.decomposers.language_model import (
    LMDecomposer,
    TrainingExample,
    draw_example,
    load_causal_lm,
    loss,
    stack_examples,
)
from redx.tasks.arithmetic.program import Program
from redx.tasks.arithmetic.sentences import language, render, sample
from redx.tasks.arithmetic.tokens import tokens

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,  # otherwise an untrained model writes the same for every question
}


PIECES = (
    "12 5 3 0 100 7 7 twelve twenty-one hundred plus minus + - ? . , and add to from take away <|im_end|> x1 [END] é"
)


KINDS = ("qwen3", "llama")


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of tiny models; one asks to sample and to punish repetition, which must not matter."""
    torch.manual_seed(0)
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    qwen3 = Qwen3ForCausalLM(Qwen3Config(vocab_size=110, **SIZES, tie_word_embeddings=True))
    qwen3.generation_config.update(do_sample=True, repetition_penalty=9.0, max_length=5, eos_token_id=[5, 6])
    qwen3.save_pretrained(folders["qwen3"])
    by_character().save_pretrained(folders["qwen3"])
    LlamaForCausalLM(LlamaConfig(vocab_size=400, **SIZES)).save_pretrained(folders["llama"])
    by_chunk().save_pretrained(folders["llama"])
    return {kind: str(folder) for kind, folder in folders.items()}


@pytest.fixture(scope="module", params=KINDS)
def untrained(backbones: dict[str, str], request: pytest.FixtureRequest) -> LMDecomposer:
    return LMDecomposer.train(0, backbones[request.param], samples=1)  # one small step is none


def questions(total: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    sentences = [render(sample(draw, draw.randint(1, 4)), draw) for _ in range(total // 2)]
    return sentences + [" ".join(draw.choices(PIECES.split(), k=draw.randint(0, 9))) for _ in range(total // 2)]


def draw_examples(grammar: Grammar, total: int) -> list[TrainingExample]:
    draw = random.Random(9)
    return [draw_example(draw, language("train"), grammar) for _ in range(total)]


@pytest.mark.parametrize(("copy", "total"), [(True, 500), (False, 40)])
def test_every_program_is_well_formed(
    untrained: LMDecomposer, copy: bool, total: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrained, "copy", copy)
    texts = questions(total)
    programs = 0
    for text, program in zip(texts, untrained.decompose(texts, max_batch_texts=256), strict=True):
        if isinstance(program, RedxError):
            with pytest.raises(RedxError):
                tokens(text)
            continue
        programs += 1
        assert Program.parse(str(program)) == program
        numbers = [token.value for token in tokens(text) if token.value is not None]
        for operand in program.operands if copy else ():  # every number of the text is used at most once
            numbers.remove(operand)
    assert programs > total / 2


def test_a_broken_model_keeps_to_the_grammar(backbones: dict[str, str]) -> None:
    broken = LMDecomposer.train(0, backbones["qwen3"], samples=1)
    for weights in broken._model.parameters():
        weights.fill_(torch.nan)
    (outcome,) = broken.decompose(["12 plus 5"])
    assert isinstance(outcome, Program)
    assert sorted(outcome.operands) == [5, 12]


def test_the_program_of_a_text_does_not_depend_on_the_other_texts(untrained: LMDecomposer) -> None:
    texts = questions(24, seed=3)
    together = [str(answer) for answer in untrained.decompose(texts)]
    assert together == [str(untrained.decompose([text])[0]) for text in texts]
    assert untrained.decompose([]) == []


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_a_model_of_another_architecture_works_too(tmp_path: Path) -> None:
    """Positions by table, one matrix for q, k and v, and a word's space before it."""
    torch.manual_seed(0)
    GPT2LMHeadModel(
        GPT2Config(vocab_size=400, n_positions=512, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3)
    ).save_pretrained(tmp_path)
    by_word().save_pretrained(tmp_path)
    trained = LMDecomposer.train(0, str(tmp_path), samples=8)
    texts = questions(12, seed=7)
    together = [str(answer) for answer in trained.decompose(texts)]
    assert together == [str(trained.decompose([text])[0]) for text in texts]
    assert LMDecomposer.train(0, str(tmp_path), samples=8, last_blocks=1).tensors()


def test_the_loss_counts_only_the_program_and_its_end(backbones: dict[str, str]) -> None:
    model, grammar = load_causal_lm(backbones["qwen3"], "cpu")
    examples = draw_examples(grammar, 3)
    ids, mask, labels = stack_examples(examples)
    assert grammar.tokenizer.pad_token_id == grammar.end  # the trap: the end must be learned all the same
    unlikely = []
    for row, (question, program) in enumerate(examples):
        whole = torch.tensor([question + program])
        size = whole.shape[1]
        assert program[-1] == grammar.end
        assert (labels[row, : len(question)] == -100).all()
        assert labels[row, len(question) : size].tolist() == program
        assert (labels[row, size:] == -100).all()
        assert mask[row].tolist() == [1] * size + [0] * (ids.shape[1] - size)
        logits = model(input_ids=whole).logits[0, len(question) - 1 : -1]
        unlikely.append(F.cross_entropy(logits, torch.tensor(program), reduction="none"))
    torch.testing.assert_close(loss(model, examples), torch.cat(unlikely).mean())


def test_training_lowers_the_loss_and_only_lora_is_saved(backbones: dict[str, str]) -> None:
    folder = backbones["llama"]
    model, grammar = load_causal_lm(folder, "cpu")
    examples = draw_examples(grammar, 16)
    before = loss(model, examples)
    trained = LMDecomposer.train(0, folder, samples=400, rank=4, rate=3e-2)
    assert loss(trained._model, examples) < 0.95 * before
    own = trained.tensors()
    assert len(own) == 3 * 4 * 2  # blocks, matrices, A and B
    assert all("lora" in name for name in own)
    again = LMDecomposer.from_tensors(load(save(own)), folder, rank=4)
    texts = questions(20, seed=5)
    assert [*map(str, again.decompose(texts))] == [*map(str, trained.decompose(texts))]
    assert all(torch.equal(again.tensors()[name], own[name]) for name in own)
    same, other = (LMDecomposer.train(seed, folder, samples=8).tensors() for seed in (0, 1))
    assert all(torch.equal(same[name], old) for name, old in LMDecomposer.train(0, folder, samples=8).tensors().items())
    assert any(not torch.equal(same[name], old) for name, old in other.items())


def test_only_the_last_blocks_are_trained(backbones: dict[str, str]) -> None:
    folder = backbones["qwen3"]
    trained = LMDecomposer.train(0, folder, samples=160, last_blocks=1, rate=1e-2)
    own = trained.tensors()
    model, grammar = load_causal_lm(folder, "cpu")
    examples = draw_examples(grammar, 16)
    assert loss(trained._model, examples) < 0.95 * loss(model, examples)
    assert all(name.startswith("model.layers.2.") for name in own)
    for name, old in model.named_parameters():
        assert torch.equal(trained._model.get_parameter(name), old) == (name not in own), name
    again = LMDecomposer.from_tensors(load(save(own)), folder, last_blocks=1)
    texts = questions(10, seed=6)
    assert [*map(str, again.decompose(texts))] == [*map(str, trained.decompose(texts))]
    with pytest.raises(RedxError, match="choose 1 to 3"):
        LMDecomposer.train(0, folder, samples=1, last_blocks=4)


def test_an_unreadable_text_gives_its_error_in_its_place(untrained: LMDecomposer) -> None:
    first, empty, last, times, long = untrained.decompose(
        ["1 plus 2", "", "4 minus 3", "3 times 4", "1 plus " * 250 + "1"]
    )
    assert isinstance(first, Program)
    assert isinstance(last, Program)
    assert set(last.operands) == {3, 4}
    for refusal, reason in ((empty, "empty"), (times, "Only plus and minus"), (long, "ask a shorter one")):
        assert isinstance(refusal, RedxError)
        assert reason in str(refusal)


def test_other_tensors_are_refused(backbones: dict[str, str]) -> None:
    own = LMDecomposer.train(0, backbones["qwen3"], samples=1).tensors()
    for wrong in ({}, own | {"more": torch.zeros(1)}, {name: tensor[:1] for name, tensor in own.items()}):
        with pytest.raises(RedxError, match="no lm decomposer"):
            LMDecomposer.from_tensors(wrong, backbones["qwen3"])


@pytest.mark.parametrize(("lack", "reason"), [("\n", "cannot write programs"), ("end", "no end token")])
def test_a_tokenizer_that_cannot_write_programs_is_refused(
    backbones: dict[str, str], tmp_path: Path, lack: str, reason: str
) -> None:
    for file in Path(backbones["qwen3"]).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = by_character(string.printable.replace(lack, ""))
    if lack == "end":
        tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(RedxError, match=reason):
        LMDecomposer.train(0, str(tmp_path), samples=1)


def test_a_model_that_is_not_causal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RedxError, match="causal language model"):
        LMDecomposer.train(0, str(save_bert(tmp_path)), samples=1)
