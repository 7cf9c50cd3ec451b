"""Which tensors of a checkpoint belong to a block of a pretrained model, and which were trained."""

import pytest

from redx.errors import RedxError
from redx.models.backbones.tensor_names import layer_stack, locate_tensor


@pytest.mark.parametrize(
    ("name", "group", "value"),
    [
        ("model.layers.12.self_attn.q_proj.weight", "layer", "12"),
        ("module._orig_mod.transformer.h.0.attn.weight", "layer", "0"),
        ("bert.encoder.layer.3.output.dense.bias", "layer", "3"),
        ("model.norm.weight", "norm", "norm"),
        ("lm_head.weight", "head", "lm_head"),
        ("model.embed_tokens.weight", "words", "embed_tokens"),
    ],
)
def test_tensors_of_pretrained_models_are_located(name: str, group: str, value: str) -> None:
    match = locate_tensor(name)
    assert match
    assert match[group] == value


@pytest.mark.parametrize(
    "name", ["classifier.weight", "model.router.0.weight", "experts.3.U", "model.layers.0.lora_A.weight.lora.x", "a:b"]
)
def test_trained_tensors_belong_to_no_pretrained_model(name: str) -> None:
    assert locate_tensor(name) is None


def test_blocks_are_counted_and_two_stacks_refused() -> None:
    names = dict.fromkeys(["model.layers.0.a.weight", "model.layers.5.a.weight", "head.weight"])
    assert layer_stack(names) == ("model.", 6)
    assert layer_stack({"head.weight": None}) == ("", 0)
    with pytest.raises(RedxError, match="several stacks"):
        layer_stack(names | {"encoder.layers.0.a.weight": None})
