"""Experts of values in closed form: exact where the value is linear, and anchored to truth or base elsewhere."""

import pytest
import torch

from helpers.values import CLASSES, FURTHER, WAVES, features_of, value_base
from redx.config import BankConfig, BankId
from redx.data.dataset import Split
from redx.models.banks import MLPBank, run_bank
from redx.models.value_bank import ValueBank
from redx.models.values import class_distance, class_values
from redx.training.banks import train_bank
from redx.training.datasets import ExpertData

PLAIN = BankId("residual", "plain")
RIDGE = BankConfig(shape="shift", depth=0, fit="ridge", penalty=1e-8)


def draw_split(count: int, slope: float, seed: int = 0) -> Split:
    """Return examples whose true value is the base's and `slope` times the last feature, rounded to classes."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    beside = torch.rand(count, FURTHER, generator=draw) - 0.5
    x = features_of(class_values(CLASSES)[labels] - slope * beside[:, -1])
    x[:, 2 * WAVES :] = beside
    return Split(x, labels, torch.zeros(count, dtype=torch.long))


def fit(config: BankConfig, anchors: Split | None = None) -> ValueBank:
    own = draw_split(400, 0.4)
    data = ExpertData("a", own, anchors or own, own)
    bank = train_bank(PLAIN, config, [data], value_base(), 0, 1.0)
    assert isinstance(bank, ValueBank)
    return bank


def test_the_regression_finds_a_linear_correction() -> None:
    bank, test = fit(RIDGE), draw_split(300, 0.4, seed=1)
    logits = value_base().classify(test.inputs)
    assert (logits.argmax(1) == test.labels).float().mean() < 0.7
    assert torch.equal((logits + run_bank(bank, test.inputs)[:, 0]).argmax(1), test.labels)


def test_a_large_penalty_keeps_the_base() -> None:
    bank = fit(RIDGE.model_copy(update={"penalty": 1e9}))
    assert isinstance(bank.network, MLPBank)
    assert bank.network.weights[0].abs().max() < 1e-6


def test_anchors_ask_for_the_truth_or_for_the_base() -> None:
    anchors = draw_split(400, -0.4, seed=2)  # where the correction has the other sign

    def error(anchor: str, weight: float) -> float:
        bank = fit(RIDGE.model_copy(update={"anchor": anchor, "anchor_weight": weight}), anchors)
        wanted = class_values(CLASSES)[anchors.labels] if anchor == "truth" else bank.base_values(anchors.inputs)
        with torch.no_grad():
            wrong = bank.values(anchors.inputs[None])[0] - wanted
        return float(wrong.abs().mean()) / class_distance(CLASSES)

    for anchor in ("truth", "size"):
        assert error(anchor, 1000) < 0.1 < error(anchor, 0)


def test_the_experts_do_not_depend_on_each_other() -> None:
    own, other = draw_split(100, 0.4), draw_split(100, -0.2, seed=3)
    alone, beside = (
        train_bank(
            PLAIN,
            RIDGE,
            [ExpertData(str(index), one, own, own) for index, one in enumerate(splits)],
            value_base(),
            0,
            1.0,
        )
        for splits in ([own], [own, other])
    )
    for name, tensor in alone.state_dict().items():
        assert torch.equal(tensor[0], beside.state_dict()[name][0])


@pytest.mark.parametrize("wrong", [{"depth": 1}, {"anchor": "margin"}])
def test_what_has_no_closed_form_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="fit 'ridge' is for"):
        BankConfig.model_validate(RIDGE.model_dump() | wrong)


def test_gradients_teach_values_as_well() -> None:
    training = RIDGE.training.model_copy(update={"epochs": 40, "lr": 0.02, "batch": 50, "virtual_batch": 50})
    changes = {"fit": "gradient", "training": training, "anchor": "truth"}
    bank, test = fit(RIDGE.model_copy(update=changes)), draw_split(300, 0.4, seed=1)
    logits = value_base().classify(test.inputs)
    right = (logits + run_bank(bank, test.inputs)[:, 0]).argmax(1) == test.labels
    assert right.float().mean() > 0.95
