"""Experts that correct a value: a shift is a residual, a value a head, and both are the same function."""

from collections.abc import Sequence

import pytest
import torch

from helpers.values import CLASSES, WAVES, features_of, value_base
from redx.config import BankConfig, BankId, OwnershipConfig
from redx.errors import RedxError
from redx.models.banks import build_bank, initialise_bank, load_bank, run_bank, split_bank
from redx.models.base import Base
from redx.models.classes import extend_base
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary
from redx.models.value_bank import ValueBank
from redx.models.values import class_distance, class_values, classifier_of_values, code_values, decode_values
from redx.seeding import generator

SHIFT, VALUE = BankConfig(shape="shift", hidden=6, depth=1), BankConfig(shape="value", hidden=6, depth=1)
PLAIN = BankId("residual", "plain")


def draw_bank(config: BankConfig, names: Sequence[str] = ("a", "b", "c"), size: float = 0.3) -> ValueBank:
    bank = build_bank(config, len(names), value_base())
    assert isinstance(bank, ValueBank)
    initialise_bank(bank, [generator(0, "expert", name) for name in names])
    with torch.no_grad():
        last = bank.network.get_parameter("weights.1")
        for k, name in enumerate(names):
            last[k] = size * torch.randn(last.shape[1:], generator=generator(1, name))
    return bank


VALUES = torch.linspace(-1.6, 1.6, 40)


def test_a_code_gives_its_value_back() -> None:
    assert torch.allclose(decode_values(code_values(VALUES, WAVES)), VALUES, atol=1e-6)
    assert torch.allclose(class_values(CLASSES).diff(), torch.full((CLASSES - 1,), class_distance(CLASSES)))


def test_the_base_rounds_its_value_to_the_nearest_class() -> None:
    nearest = (VALUES[:, None] - class_values(CLASSES)).abs().argmin(1)
    assert torch.equal(value_base().classify(features_of(VALUES)).argmax(1), nearest)


def test_a_shift_added_to_the_base_gives_the_logits_of_the_corrected_value() -> None:
    base, x = value_base(), features_of(VALUES)
    shift, value = draw_bank(SHIFT), draw_bank(VALUE)
    corrected = shift.values(x.expand(3, *x.shape))  # (K, N)
    assert (corrected - VALUES).abs().max() > class_distance(CLASSES)
    composed = base.classify(x)[:, None] + run_bank(shift, x)
    assert torch.allclose(composed, run_bank(value, x), atol=2e-4)
    expected = code_values(corrected, WAVES) @ classifier_of_values(CLASSES, WAVES)
    assert torch.allclose(composed.transpose(0, 1), expected, atol=2e-4)


def test_an_untrained_expert_keeps_the_value_of_the_base() -> None:
    bank = build_bank(SHIFT, 2, value_base())
    assert isinstance(bank, ValueBank)
    initialise_bank(bank, [generator(0, name) for name in "ab"])
    x = features_of(VALUES)
    assert any(parameter.any() for parameter in bank.parameters())
    assert torch.allclose(bank.values(x.expand(2, *x.shape)), VALUES.expand(2, -1), atol=1e-5)
    assert torch.allclose(run_bank(bank, x), torch.zeros(40, 2, CLASSES), atol=1e-3)


def test_outputs_are_bounded_whatever_the_network_gives() -> None:
    bank = draw_bank(SHIFT, size=1e30)
    outputs = run_bank(bank, features_of(VALUES))
    assert outputs.isfinite().all()
    assert outputs.abs().max() <= 2 * 2 * 2 * WAVES  # twice the height of a code of 2 · WAVES numbers


def test_the_error_is_counted_in_classes() -> None:
    bank = build_bank(SHIFT, 1, value_base())
    assert isinstance(bank, ValueBank)
    x = features_of(class_values(CLASSES)[:-1])[None]
    assert torch.allclose(bank.errors(x, torch.arange(1, CLASSES)[None]), torch.ones(1), atol=1e-3)


@pytest.mark.parametrize(
    "config", [SHIFT, VALUE, SHIFT.model_copy(update={"depth": 0})], ids=["shift", "value", "linear"]
)
def test_stacked_experts_and_saved_ones_give_the_same_bits(config: BankConfig) -> None:
    base, x = value_base(), features_of(VALUES)
    bank = build_bank(config, 3, base)
    for number, parameter in enumerate(bank.parameters()):
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator(number, "draw"))
    files = [
        Expert({"domain": name}, {f"{PLAIN}.{key}": value for key, value in tensors.items()})
        for name, tensors in zip("abc", split_bank(bank), strict=True)
    ]
    library = ExpertLibrary({expert.name: expert for expert in files}, base, {PLAIN: config}, OwnershipConfig())
    alone = [run_bank(load_bank(config, [tensors], base), x)[:, 0] for tensors in split_bank(bank)]
    assert torch.equal(library.outputs(PLAIN, x), torch.stack(alone, 1))
    first = torch.randint(3, (len(x), 2), generator=generator(0, "first"))
    chosen = torch.stack(alone, 1)[torch.arange(len(x))[:, None], first]  # (N, 2, C)
    assert torch.allclose(library.run(PLAIN, x, first)[1], chosen, atol=1e-4)
    before = library.outputs(PLAIN, x)
    library.add(library.remove("b"), unverified=True)
    assert torch.equal(library.outputs(PLAIN, x), before)


def test_a_base_that_codes_no_value_is_refused() -> None:
    base = value_base()
    other = Base(base.encoder, base.weight.flip(1), base.bias, base.mean, base.scale)
    odd = Base(base.encoder, base.weight[1:], base.bias, base.mean, base.scale)
    for wrong in (other, odd):
        with pytest.raises(RedxError, match="codes no value; train a base with --trunk sum"):
            build_bank(SHIFT, 1, wrong)


def test_a_base_that_was_kept_in_half_precision_still_codes_values() -> None:
    base = value_base()
    for dtype in (torch.float16, torch.bfloat16):
        rounded = Base(base.encoder, base.weight.to(dtype).float(), base.bias, base.mean, base.scale)
        assert isinstance(build_bank(SHIFT, 1, rounded), ValueBank)


def test_new_classes_have_no_value() -> None:
    with pytest.raises(RedxError, match="bring no classes of their own"):
        build_bank(SHIFT, 1, extend_base(value_base(), 2))


@pytest.mark.parametrize("setting", [{"dropout": 0.1}, {"standardise": True}, {"smoothing": 0.1}])
def test_settings_that_a_value_cannot_have_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no dropout, no smoothing and no standardised inputs"):
        BankConfig.model_validate({"shape": "value", **setting})
