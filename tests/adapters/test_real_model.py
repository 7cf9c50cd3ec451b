"""One real adapter: SmolLM2-135M learns a little of Python's own standard library, and is composed exactly."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from redx.adapters.base import BaseLM, load_base
from redx.adapters.composed import ComposedLM
from redx.adapters.documents import Document, training_blocks
from redx.adapters.training import next_token_loss, save_adapter, train_adapter
from redx.config import LoraTraining
from redx.errors import RedxError
from redx.models.backbones.causal import load_causal_model

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
TRAINING = {
    "python": ("json/decoder.py", "json/encoder.py", "csv.py", "shlex.py", "textwrap.py"),
    "manual": ("pydoc_data/topics.py",),
}
HELD_OUT = "configparser.py"  # no part of it is trained on
CHARACTERS = 8000  # at the end of a module, where there is code
SETTINGS = LoraTraining(rank=4, steps=8, batch=2, tokens=64, lr=4e-3, first_block=15)
PROMPT = "def read_lines(path):\n"


@pytest.fixture(scope="module")
def real_base() -> BaseLM:
    try:
        return load_base("smollm2-135m")
    except RedxError as error:
        pytest.skip(f"SmolLM2-135M is needed and not to be had: {error}")


def blocks_of(modules: Sequence[str], base: BaseLM, tokens: int) -> torch.Tensor:
    documents = [Document((LIBRARY / name).read_text(encoding="utf-8")[-CHARACTERS:], "") for name in modules]
    return training_blocks(documents, base.tokenizer, tokens, base.end)


@torch.inference_mode()
def perplexity(model: object, blocks: torch.Tensor) -> float:
    return math.exp(float(next_token_loss(model, blocks)))


@pytest.mark.slow
def test_one_real_adapter(real_base: BaseLM, tmp_path: Path) -> None:
    held = blocks_of([HELD_OUT], real_base, 128)[:3]
    found = {"base": perplexity(real_base.model, held)}
    for name, modules in TRAINING.items():
        settings = SETTINGS if name == "python" else SETTINGS.model_copy(update={"steps": 2})
        trained, _ = train_adapter(real_base, blocks_of(modules, real_base, settings.tokens), settings, 0, name)
        found[name] = perplexity(trained, held)
        save_adapter(trained, tmp_path / name)
        trained.unload()
    assert found["python"] < 0.99 * found["base"], found

    _, plain, tokenizer = load_causal_model("smollm2-135m")
    tokens = torch.tensor(tokenizer(PROMPT, add_special_tokens=False)["input_ids"])[None]
    with torch.inference_mode():
        nothing = plain.eval()(input_ids=tokens).logits[0, -1]
        alone = PeftModel.from_pretrained(plain, tmp_path / "python").eval()(input_ids=tokens).logits[0, -1]
    composed = ComposedLM(real_base)
    for name in TRAINING:
        composed.add(name, tmp_path / name)
    assert (alone - nothing).abs().max() > 0.1
    assert (composed.scores(PROMPT, weights={"python": 1.0}) - alone).abs().max() <= 1e-4
    assert (composed.scores(PROMPT, weights=[0.0, 0.0]) - nothing).abs().max() <= 1e-4

    result = composed.generate(PROMPT, 4, weights={"python": 1.0})
    assert result.tokens[0].token == int(alone.argmax())
    assert result.radius is not None
    assert result.radius == min(step.radius for step in result.tokens if step.radius is not None)
    assert 0 < result.radius <= 1
    share = 0.99 * result.radius  # of the weight, which another router moves to the other adapter
    moved = composed.generate(PROMPT, 4, weights={"python": 1 - share, "manual": share})
    assert [step.token for step in moved.tokens] == [step.token for step in result.tokens]
    composed.stack.close()
