"""The `lm` decomposer as an adapter: the same scores in the library as in the run of steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from helpers.adapters import save_adapter
from redx.adapters.base import BaseLM
from redx.adapters.composed import ComposedLM
from redx.adapters.decomposer import write_peft
from redx.adapters.library import add_adapter
from redx.errors import RedxError
from redx.tasks.arithmetic.decomposers.language_model import _open_for_training


def test_same_scores_beside_other_adapters(base: BaseLM, model_folder: Path, tmp_path: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    model, trained = _open_for_training(plain, None, 4)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trained.values():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=draw))
    folder = write_peft({name: parameter.detach() for name, parameter in trained.items()}, tmp_path / "steps", "tiny")
    add_adapter(tmp_path / "run", folder, base)
    add_adapter(tmp_path / "run", save_adapter(model_folder, tmp_path / "other", 3), base)
    composed = ComposedLM.from_pretrained(tmp_path / "run")
    assert composed.names == ["steps", "other"]
    text = "Question 12 plus 3"
    tokens = torch.tensor([base.tokenizer(text)["input_ids"]])
    with torch.inference_mode():
        expected = model.eval()(input_ids=tokens).logits[0, -1]
    assert (composed.scores(text, weights={"steps": 1.0}) - expected).abs().max() <= 1e-4
    with pytest.raises(RedxError, match="exists already"):
        write_peft(dict(trained), folder, "tiny")


def test_whole_blocks_are_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(RedxError, match="not trained with LoRA"):
        write_peft({"model.layers.0.weight": torch.zeros(2)}, tmp_path / "x", "tiny")
    assert not (tmp_path / "x").exists()
