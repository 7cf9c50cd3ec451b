"""The lm decomposer: well-formed whatever the model says, and learning what it should, from what it should."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from redx.errors import RedxError
from redx.tasks.arithmetic.decomposers import language_model
from redx.tasks.arithmetic.decomposers.grammar import LIMIT, Grammar
from redx.tasks.arithmetic.decomposers.language_model import LMDecomposer, loss, stack
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
    "initializer_range": 0.3,  # else an untrained model says the same whatever it is asked
}
PIECES = (
    "12 5 3 0 100 7 7 twelve twenty-one hundred plus minus + - ? . , and add to from take away <|im_end|> x1 [END] é"
)
KINDS = ("qwen3", "llama")


def letters(signs: str = string.printable) -> PreTrainedTokenizerFast:
    """One token a character; padding is the end, as in many a real model."""
    inner = Tokenizer(models.WordLevel({sign: at for at, sign in enumerate(["[UNK]", "[END]", *signs])}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", eos_token="[END]", pad_token="[END]")


def chunks() -> PreTrainedTokenizerFast:
    """Tokens of many characters that know no bounds, such as ' = x1\\nStep 2: x1 '."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return merged(inner, pre_tokenizers.ByteLevel.alphabet())


def words(across: str = " ") -> PreTrainedTokenizerFast:
    """Tokens that carry the space before them, and get one at the start of a text; they may go across line breaks."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    return merged(inner, [*string.printable], across)


def merged(inner: Tokenizer, alphabet: list[str], across: str = "\n") -> PreTrainedTokenizerFast:
    draw = random.Random(0)
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["[END]"], initial_alphabet=alphabet)
    texts = (str(sample(draw, draw.randint(1, 4))).replace("\n", across) for _ in range(200))
    inner.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="[END]", pad_token="[END]")


TOKENIZERS = {"letters": letters(), "chunks": chunks(), "words": words(), "across": words("\n")}


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of tiny models; one asks to sample and to punish repetition, which must not matter."""
    torch.manual_seed(0)
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    qwen3 = Qwen3ForCausalLM(Qwen3Config(vocab_size=110, **SIZES, tie_word_embeddings=True))
    qwen3.generation_config.update(do_sample=True, repetition_penalty=9.0, max_length=5, eos_token_id=[5, 6])
    qwen3.save_pretrained(folders["qwen3"])
    letters().save_pretrained(folders["qwen3"])
    LlamaForCausalLM(LlamaConfig(vocab_size=400, **SIZES)).save_pretrained(folders["llama"])
    chunks().save_pretrained(folders["llama"])
    return {kind: str(place) for kind, place in folders.items()}


@pytest.fixture(scope="module", params=KINDS)
def untrained(backbones: dict[str, str], request: pytest.FixtureRequest) -> LMDecomposer:
    return LMDecomposer.train(0, backbones[request.param], samples=1)  # one small step is none


def questions(total: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    sentences = [render(sample(draw, draw.randint(1, 4)), draw) for _ in range(total // 2)]
    return sentences + [" ".join(draw.choices(PIECES.split(), k=draw.randint(0, 9))) for _ in range(total // 2)]


def lessons(grammar: Grammar, total: int) -> list[language_model.Lesson]:
    draw = random.Random(9)
    return [language_model._lesson(draw, language("train"), grammar) for _ in range(total)]


@pytest.mark.parametrize(("copy", "total"), [(True, 500), (False, 40)])
def test_nothing_malformed_comes_out(
    untrained: LMDecomposer, copy: bool, total: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrained, "copy", copy)
    monkeypatch.setattr(language_model, "ROWS", 256)
    texts = questions(total)
    programs = 0
    for text, found in zip(texts, untrained.decompose(texts), strict=True):
        if isinstance(found, RedxError):
            with pytest.raises(RedxError):
                tokens(text)
            continue
        programs += 1
        assert Program.parse(str(found)) == found
        numbers = [token.value for token in tokens(text) if token.value is not None]
        for operand in found.operands if copy else ():  # every number of the text is used at most once
            numbers.remove(operand)
    assert programs > total / 2


def test_a_broken_model_keeps_to_the_grammar(backbones: dict[str, str]) -> None:
    broken = LMDecomposer.train(0, backbones["qwen3"], samples=1)
    for weights in broken._model.parameters():
        weights.fill_(torch.nan)
    (found,) = broken.decompose(["12 plus 5"])
    assert isinstance(found, Program)
    assert sorted(found.operands) == [5, 12]


def test_company_changes_no_answer(untrained: LMDecomposer) -> None:
    texts = questions(24, seed=3)
    together = [str(answer) for answer in untrained.decompose(texts)]
    assert together == [str(untrained.decompose([text])[0]) for text in texts]
    assert untrained.decompose([]) == []


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
def test_a_model_of_another_build_works_too(tmp_path: Path) -> None:
    """Positions by table, one matrix for q, k and v, and a word's space before it."""
    torch.manual_seed(0)
    GPT2LMHeadModel(
        GPT2Config(vocab_size=400, n_positions=512, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3)
    ).save_pretrained(tmp_path)
    words().save_pretrained(tmp_path)
    trained = LMDecomposer.train(0, str(tmp_path), samples=8)
    texts = questions(12, seed=7)
    together = [str(answer) for answer in trained.decompose(texts)]
    assert together == [str(trained.decompose([text])[0]) for text in texts]
    assert LMDecomposer.train(0, str(tmp_path), samples=8, last_blocks=1).tensors()


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_grammar_takes_every_program(tokenizer: str) -> None:
    grammar, draw = Grammar(TOKENIZERS[tokenizer]), random.Random(4)
    for copy in (True, False):
        for steps in (1, 2, 5, LIMIT):
            program = sample(draw, steps)
            state = grammar.start(program.operands, copy)
            ids = grammar.encode(program)
            for token in ids[:-1]:
                assert grammar.end not in grammar.allowed(state)
                state = grammar.allowed(state)[token]
            assert list(grammar.allowed(state)) == ids[-1:] == [grammar.end]
            assert grammar.text(ids) == str(program)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("copy", [True, False])
def test_a_program_that_never_wants_to_end_is_ended(tokenizer: str, copy: bool) -> None:
    grammar = Grammar(TOKENIZERS[tokenizer])
    state, ids = grammar.start([7] * 40, copy), []
    while ids[-1:] != [grammar.end]:
        allowed = grammar.allowed(state)
        token = max(allowed, key=lambda each: ("A" not in grammar.text([each]), each))
        state = allowed[token]
        ids.append(token)
    assert len(Program.parse(grammar.text(ids)).steps) == LIMIT
    assert len(ids) <= language_model._ROOM


def test_the_loss_counts_the_program_and_its_end_alone(backbones: dict[str, str]) -> None:
    model, grammar = language_model._load(backbones["qwen3"], "cpu")
    taught = lessons(grammar, 3)
    ids, mask, labels = stack(taught)
    assert grammar.tokenizer.pad_token_id == grammar.end  # the trap: the end must be learned all the same
    unlikely = []
    for row, (question, program) in enumerate(taught):
        whole = torch.tensor([question + program])
        size = whole.shape[1]
        assert program[-1] == grammar.end
        assert (labels[row, : len(question)] == -100).all()
        assert labels[row, len(question) : size].tolist() == program
        assert (labels[row, size:] == -100).all()
        assert mask[row].tolist() == [1] * size + [0] * (ids.shape[1] - size)
        logits = model(input_ids=whole).logits[0, len(question) - 1 : -1]
        unlikely.append(F.cross_entropy(logits, torch.tensor(program), reduction="none"))
    torch.testing.assert_close(loss(model, taught), torch.cat(unlikely).mean())


def test_training_lowers_the_loss_and_saves_lora_alone(backbones: dict[str, str]) -> None:
    place = backbones["llama"]
    model, grammar = language_model._load(place, "cpu")
    taught = lessons(grammar, 16)
    before = loss(model, taught)
    trained = LMDecomposer.train(0, place, samples=400, rank=4, rate=3e-2)
    assert loss(trained._model, taught) < 0.95 * before
    own = trained.tensors()
    assert len(own) == 3 * 4 * 2  # blocks, matrices, A and B
    assert all("lora" in name for name in own)
    again = LMDecomposer.of(load(save(own)), place, rank=4)
    texts = questions(20, seed=5)
    assert [*map(str, again.decompose(texts))] == [*map(str, trained.decompose(texts))]
    assert all(torch.equal(again.tensors()[name], own[name]) for name in own)
    same, other = (LMDecomposer.train(seed, place, samples=8).tensors() for seed in (0, 1))
    assert all(torch.equal(same[name], old) for name, old in LMDecomposer.train(0, place, samples=8).tensors().items())
    assert any(not torch.equal(same[name], old) for name, old in other.items())


def test_the_last_blocks_alone_learn(backbones: dict[str, str]) -> None:
    place = backbones["qwen3"]
    trained = LMDecomposer.train(0, place, samples=160, last_blocks=1, rate=1e-2)
    own = trained.tensors()
    model, grammar = language_model._load(place, "cpu")
    taught = lessons(grammar, 16)
    assert loss(trained._model, taught) < 0.95 * loss(model, taught)
    assert all(name.startswith("model.layers.2.") for name in own)
    for name, old in model.named_parameters():
        assert torch.equal(trained._model.get_parameter(name), old) == (name not in own), name
    again = LMDecomposer.of(load(save(own)), place, last_blocks=1)
    texts = questions(10, seed=6)
    assert [*map(str, again.decompose(texts))] == [*map(str, trained.decompose(texts))]
    with pytest.raises(RedxError, match="choose 1 to 3"):
        LMDecomposer.train(0, place, samples=1, last_blocks=4)


def test_a_text_that_cannot_be_read_yields_its_refusal_in_its_place(untrained: LMDecomposer) -> None:
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
            LMDecomposer.of(wrong, backbones["qwen3"])


@pytest.mark.parametrize(("lack", "reason"), [("\n", "cannot write programs"), ("end", "no end token")])
def test_a_tokenizer_that_cannot_write_programs_is_refused(
    backbones: dict[str, str], tmp_path: Path, lack: str, reason: str
) -> None:
    for file in Path(backbones["qwen3"]).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = letters(string.printable.replace(lack, ""))
    if lack == "end":
        tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(RedxError, match=reason):
        LMDecomposer.train(0, str(tmp_path), samples=1)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    import tiny_lm

    with pytest.raises(RedxError, match="causal language model"):
        LMDecomposer.train(0, str(tiny_lm.bert(tmp_path)), samples=1)
