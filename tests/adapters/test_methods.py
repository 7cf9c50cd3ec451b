"""Every method of peft that can be switched per row composes as LoRA does; the others are refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft import (
    AdaLoraConfig,
    GloraConfig,
    HiraConfig,
    IA3Config,
    LoHaConfig,
    LoraConfig,
    PeftModel,
    RoadConfig,
    VeraConfig,
)
from peft.tuners.lora.config import BdLoraConfig, MontecloraConfig, VeloraConfig
from transformers import AutoModelForCausalLM

from helpers.adapters import TARGETS, save_any_adapter
from helpers.language_models import save_qwen3
from redx.adapters.base import BaseLM, load_base
from redx.adapters.checking import check_adapter
from redx.adapters.composed import ComposedLM
from redx.adapters.library import add_adapter, read_library
from redx.adapters.merging import choose_merges
from redx.errors import RedxError

PROMPT = "What is 12 plus 30?"
BLOCKS = {"target_modules_bd_a": ["q_proj"], "target_modules_bd_b": ["v_proj"], "nblocks": 2, "match_strict": False}


def lora(**options: Any) -> LoraConfig:
    return LoraConfig(r=2, lora_alpha=4, **TARGETS, **options)


SWITCHED = {
    "plain": lora(),
    "rank-stabilised": lora(use_rslora=True),
    "ranks by pattern": lora(rank_pattern={"q_proj": 4}, alpha_pattern={"v_proj": 7}),
    "bias of B": lora(lora_bias=True),
    "orthogonal": lora(init_lora_weights="orthogonal"),
    "eva": lora(init_lora_weights="eva"),
    "mica": lora(init_lora_weights="mica"),
    "velora": lora(velora_config=VeloraConfig(num_groups=4)),
    "monteclora": lora(monteclora_config=MontecloraConfig()),
    "blocks": lora(use_bdlora=BdLoraConfig(**BLOCKS)),
    "road_1": RoadConfig(group_size=4, **TARGETS),
    "road_2": RoadConfig(variant="road_2", group_size=8, **TARGETS),
    "road_4": RoadConfig(variant="road_4", group_size=4, **TARGETS),
    "glora": GloraConfig(r=2, **TARGETS),
    "glora of vectors": GloraConfig(config_A_B="vector", **TARGETS),
    "glora of constants": GloraConfig(config_A_B="constant", **TARGETS),
}
REFUSED = {
    "dora": (lora(use_dora=True), "use_dora"),
    "alora": (lora(alora_invocation_tokens=[5]), "alora_invocation_tokens"),
    "vera": (VeraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"), "the kind 'VERA'"),
    "ia3": (IA3Config(feedforward_modules=["up_proj"], **TARGETS), "the kind 'IA3'"),
    "hira": (HiraConfig(r=2, **TARGETS), "the kind 'HIRA'"),
    "loha": (LoHaConfig(r=2, **TARGETS), "the kind 'LOHA'"),
    "adalora": (AdaLoraConfig(init_r=2, target_r=2, total_step=10, **TARGETS), "the kind 'ADALORA'"),
}


def plain_scores(model: Path, adapter: Path | None, tokens: torch.Tensor) -> torch.Tensor:
    """Return the next-token scores of plain transformers, or of plain peft with one adapter."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    if adapter is not None:
        plain = PeftModel.from_pretrained(plain, adapter).eval()
    with torch.inference_mode():
        return plain(input_ids=tokens[None]).logits[0, -1]


@pytest.mark.parametrize("case", SWITCHED)
def test_switched_method(case: str, base: BaseLM, model_folder: Path, tmp_path: Path) -> None:
    folders = {
        name: save_any_adapter(model_folder, tmp_path / name, seed, SWITCHED[case]) for seed, name in enumerate("ab")
    }
    tokens = torch.tensor(base.tokenizer(PROMPT, add_special_tokens=False)["input_ids"])
    run = tmp_path / "run"
    for name, folder in folders.items():
        add_adapter(run, folder, base, name)
    composed = ComposedLM.from_pretrained(run)
    nothing = plain_scores(model_folder, None, tokens)
    alone = {name: plain_scores(model_folder, folder, tokens) for name, folder in folders.items()}
    for name, expected in alone.items():
        assert (expected - nothing).abs().max() > 0.01, "the adapter must change something"
        assert (composed.scores(PROMPT, weights={name: 1.0}) - expected).abs().max() <= 1e-4
        only = composed.stack.forward([name], tokens[None]).logits[0, -1]  # without a mixed batch
        assert (only - expected).abs().max() <= 1e-4
    assert (composed.scores(PROMPT, weights=[0.0, 0.0]) - nothing).abs().max() <= 1e-4
    mixed = nothing + 0.3 * (alone["a"] - nothing) + 0.7 * (alone["b"] - nothing)
    assert (composed.scores(PROMPT, weights=[0.3, 0.7]) - mixed).abs().max() <= 1e-4
    first = composed.generate(PROMPT, 3, weights={"b": 1.0})
    assert first.tokens[0].token == int(alone["b"].argmax())
    assert first.radius is not None
    composed.remove("a")
    assert (composed.scores(PROMPT, weights=[1.0]) - alone["b"]).abs().max() <= 1e-4
    composed.remove("b")
    assert torch.equal(composed.scores(PROMPT, weights=[]), nothing)
    assert {type(module) for module in composed.base.model.modules()} == {
        type(module) for module in base.model.modules()
    }


@pytest.mark.parametrize(("to_bias", "of_bias"), [("lora", "vector"), ("vector", "constant"), ("none", "none")])
def test_glora_on_layers_with_bias(to_bias: str, of_bias: str, tmp_path: Path) -> None:
    model = save_qwen3(tmp_path / "model", attention_bias=True)
    config: Any = {"config_C": to_bias, "config_D_E": of_bias}
    folder = save_any_adapter(model, tmp_path / "a", 0, GloraConfig(r=2, **TARGETS, **config))
    composed = ComposedLM(load_base(str(model)))
    composed.add("a", folder)
    tokens = torch.tensor(composed.base.tokenizer(PROMPT, add_special_tokens=False)["input_ids"])
    expected = plain_scores(model, folder, tokens)
    assert (composed.scores(PROMPT, weights=[1.0]) - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("case", REFUSED)
def test_refused_method(case: str, base: BaseLM, model_folder: Path, tmp_path: Path) -> None:
    config, words = REFUSED[case]
    folder = save_any_adapter(model_folder, tmp_path / "a", 0, config)
    with pytest.raises(RedxError, match=words) as caught:
        add_adapter(tmp_path / "run", folder, base)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", ["vera", "ia3", "hira", "loha"])
def test_refused_method_cannot_be_switched(case: str, model_folder: Path, tmp_path: Path) -> None:
    """peft takes `adapter_names` and ignores them, so that the row of the base is not the base."""
    folder = save_any_adapter(model_folder, tmp_path / "a", 0, REFUSED[case][0])
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    tokens = torch.tensor([[5, 6, 7], [5, 6, 7]])
    with torch.inference_mode():
        expected = plain(input_ids=tokens).logits[0]
        mixed = PeftModel.from_pretrained(plain, folder).eval()(input_ids=tokens, adapter_names=["__base__", "default"])
    assert (mixed.logits[0] - expected).abs().max() > 0.01


def test_variants_of_lora_in_one_library(base: BaseLM, model_folder: Path, tmp_path: Path) -> None:
    names = ["plain", "rank-stabilised", "bias of B", "mica", "velora", "blocks"]
    composed = ComposedLM(base)
    tokens = torch.tensor(base.tokenizer(PROMPT, add_special_tokens=False)["input_ids"])
    for seed, name in enumerate(names):
        composed.add(name, save_any_adapter(model_folder, tmp_path / str(seed), seed, SWITCHED[name]))
    for seed, name in enumerate(names):
        expected = plain_scores(model_folder, tmp_path / str(seed), tokens)
        assert (composed.scores(PROMPT, weights={name: 1.0}) - expected).abs().max() <= 1e-4


def test_two_methods_in_one_library_are_refused(base: BaseLM, model_folder: Path, tmp_path: Path) -> None:
    first = save_any_adapter(model_folder, tmp_path / "a", 0, SWITCHED["plain"])
    second = save_any_adapter(model_folder, tmp_path / "b", 1, SWITCHED["road_1"])
    run, composed = tmp_path / "run", ComposedLM(base)
    add_adapter(run, first, base)
    composed.add("a", first)
    for add in (lambda: add_adapter(run, second, base), lambda: composed.add("b", second)):
        with pytest.raises(RedxError, match="ROAD cannot stand beside one of the kind LORA"):
            add()
    assert read_library(run).names == composed.names == ["a"]
    composed.remove("a")
    composed.add("b", second)  # the first one left no trace
    assert composed.names == ["b"]
    with pytest.raises(ValueError, match="Cannot combine adapters with different peft types"):  # of peft itself
        composed.stack.model.add_adapter("c", peft.PeftConfig.from_pretrained(str(first)))


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        ("road_1", {"group_size": 3}, "does not hold settings of ROAD"),
        ("road_1", {"group_size": 10}, "group_size 10 of the adapter does not divide"),
        ("road_1", {"variant": "road_2"}, "has 32 values as road_alpha .* takes 64"),
        ("road_1", {"variant": "road_3"}, "does not hold settings of ROAD"),
        ("glora", {"r": 3}, "has .* 2 values as glora_A.Xd of .* takes .* 3;"),
        ("glora", {"config_A_B": "vector"}, "lacks glora_A.X of"),
        ("glora", {"config_C": "matrix"}, "does not hold settings of GLORA"),
        ("blocks", {"use_bdlora": BLOCKS | {"nblocks": 3}}, "nblocks 3 of the adapter does not divide"),
        ("blocks", {"use_bdlora": BLOCKS | {"nblocks": 0}}, "does not hold settings of LORA"),
        ("blocks", {"use_bdlora": None}, "has 2 x 16 values as lora_A.weight"),
    ],
)
def test_settings_that_do_not_fit(
    case: str, changes: dict[str, Any], words: str, base: BaseLM, model_folder: Path, tmp_path: Path
) -> None:
    folder = save_any_adapter(model_folder, tmp_path / "a", 0, SWITCHED[case])
    settings = json.loads((folder / "adapter_config.json").read_text()) | changes
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(RedxError, match=words) as caught:
        check_adapter(folder, base)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", ["road_1", "blocks"])
def test_no_merges_of_methods_that_peft_cannot_merge(
    case: str, base: BaseLM, model_folder: Path, tmp_path: Path
) -> None:
    composed = ComposedLM(base)
    for seed, name in enumerate("ab"):
        composed.add(name, save_any_adapter(model_folder, tmp_path / name, seed, SWITCHED[case]))
    assert choose_merges(composed, [], ["linear", "cat"], [0.5]) == {}
