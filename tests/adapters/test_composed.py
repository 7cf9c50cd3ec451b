"""One-hot weights give an adapter back, zero weights the base, and a removed adapter leaves no trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM

from helpers.adapters import save_adapter
from redx.adapters.base import BaseLM
from redx.adapters.composed import ComposedLM
from redx.errors import RedxError
from redx.models.router import TrainedRouter

PROMPT = "What is 12 plus 30?"


def plain_logits(model: Path, adapter: Path | None, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of plain transformers, or of plain peft with one adapter."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    if adapter is not None:
        plain = PeftModel.from_pretrained(plain, adapter).eval()
    with torch.inference_mode():
        return plain(input_ids=tokens[None]).logits[0]


def tokens_of(composed: ComposedLM, text: str = PROMPT) -> torch.Tensor:
    return torch.tensor(composed.base.tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_one_hot_is_plain_peft(
    composed: ComposedLM, model_folder: Path, adapter_folders: dict[str, Path], name: str
) -> None:
    expected = plain_logits(model_folder, adapter_folders[name], tokens_of(composed))[-1]
    scores = composed.scores(PROMPT, weights={name: 1.0})
    assert (scores - expected).abs().max() <= 1e-4
    base = plain_logits(model_folder, None, tokens_of(composed))[-1]
    assert (scores - base).abs().max() > 0.01, "the adapter must change something"


def test_zero_weights_are_plain_transformers(composed: ComposedLM, model_folder: Path) -> None:
    expected = plain_logits(model_folder, None, tokens_of(composed))[-1]
    for scores in (composed.scores(PROMPT, weights=[0.0, 0.0, 0.0]), composed.scores(PROMPT, rule="base")):
        assert (scores - expected).abs().max() <= 1e-4
    with pytest.raises(RedxError, match="has weights of its own"):
        composed.scores(PROMPT, rule="base", weights=[1.0, 0.0, 0.0])


def test_mixture_is_affine_in_the_weights(
    composed: ComposedLM, model_folder: Path, adapter_folders: dict[str, Path]
) -> None:
    tokens = tokens_of(composed)
    base = plain_logits(model_folder, None, tokens)[-1]
    rows = [plain_logits(model_folder, folder, tokens)[-1] for folder in adapter_folders.values()]
    weights = [0.2, 0.5, 0.3]
    expected = base + sum(weight * (row - base) for weight, row in zip(weights, rows, strict=True))
    assert (composed.scores(PROMPT, weights=weights) - expected).abs().max() <= 1e-4
    total = base + sum(row - base for row in rows)
    assert (composed.scores(PROMPT, rule="sum") - total).abs().max() <= 1e-4


def test_removed_adapter_leaves_no_trace(
    composed: ComposedLM, base: BaseLM, model_folder: Path, adapter_folders: dict[str, Path]
) -> None:
    without = ComposedLM(base)
    composed.remove("b")
    kept = composed.scores(PROMPT, weights={"a": 0.4, "c": 0.6})
    composed.remove("a")
    composed.remove("c")
    assert not [name for name, _ in composed.base.model.named_modules() if "lora" in name]
    expected = plain_logits(model_folder, None, tokens_of(composed))[-1]
    assert torch.equal(composed.scores(PROMPT, weights=[]), expected)
    for name in ("a", "c"):
        without.add(name, adapter_folders[name])
    assert torch.equal(without.scores(PROMPT, weights={"a": 0.4, "c": 0.6}), kept)


def test_parts_agree_with_scores(composed: ComposedLM) -> None:
    parts = composed.parts(tokens_of(composed))
    mixed = parts.base[-1] + parts.residuals[-1].mean(0)
    assert torch.allclose(composed.scores(PROMPT, rule="fixed"), mixed, atol=1e-5)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([float("nan"), 0.5, 0.5], "NaN"),
        ([0.5, 0.2, 0.2], "sum to 0.9"),
        ([-0.5, 1.0, 0.5], "between 0 and 1"),
        ([1.0], "give one for each"),
        ({"d": 1.0}, "no adapter 'd'"),
    ],
)
def test_bad_weights(composed: ComposedLM, weights: list[float], words: str) -> None:
    with pytest.raises(RedxError, match=words):
        composed.scores(PROMPT, weights=weights)


def test_two_adapters_of_one_name(composed: ComposedLM, adapter_folders: dict[str, Path]) -> None:
    with pytest.raises(RedxError, match="two adapters called 'a'"):
        composed.add("a", adapter_folders["b"])


def test_adapters_of_different_shape_in_one_stack(
    composed: ComposedLM, model_folder: Path, tmp_path: Path, adapter_folders: dict[str, Path]
) -> None:
    other = save_adapter(model_folder, tmp_path / "d", 9, rank=5, target_modules=["k_proj", "down_proj"])
    composed.add("d", other)
    tokens = tokens_of(composed)
    for name, folder in {**adapter_folders, "d": other}.items():
        expected = plain_logits(model_folder, folder, tokens)[-1]
        assert (composed.scores(PROMPT, weights={name: 1.0}) - expected).abs().max() <= 1e-4


class Constant(nn.Module):
    """A router that has the same gates everywhere."""

    def __init__(self, *gates: float) -> None:
        super().__init__()
        self.gates = nn.Buffer(torch.tensor(gates))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.gates.expand(len(h), -1)


def test_routers(base: BaseLM, adapter_folders: dict[str, Path]) -> None:
    """The trained router, which does not know one adapter; keys, where one adapter has no score; equal weights."""
    router = TrainedRouter(Constant(100.0, 0.0), ["b", "c"])
    ownership: dict[str, nn.Module] = {"a": Constant(0.0, 0.0), "c": Constant(100.0, 0.0)}
    for routing, weights in ((None, [0.0, 1.0, 0.0]), ("keys", [0.0, 0.0, 1.0]), ("uniform", [1 / 3, 1 / 3, 1 / 3])):
        model = ComposedLM(base, router, ownership, routing)
        for name, folder in adapter_folders.items():
            model.add(name, folder)
        assert torch.allclose(model.scores(PROMPT), model.scores(PROMPT, weights=weights), atol=1e-6)
        model.stack.close()
    with pytest.raises(RedxError, match="no trained router"):
        ComposedLM(base, routing="router")
    with pytest.raises(RedxError, match="have no ownership scores"):
        ComposedLM(base, router, routing="keys")


def test_unknown_rule(composed: ComposedLM) -> None:
    with pytest.raises(RedxError, match="no rule 'moe' for adapters"):
        composed.scores(PROMPT, rule="moe")
