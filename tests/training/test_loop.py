"""The training loop: learners in a stack are trained and stopped exactly as each would be alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from helpers.banks import CLASSES, draw_bank, draw_inputs, generators
from redx.config import TrainingConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.models import banks
from redx.models.banks import MLPBank
from redx.seeding import generator
from redx.training import loop
from redx.training.loop import Score, train

SIZES = (40, 97, 64)  # examples of each expert: their schedules differ
SETTINGS: dict[str, Any] = {
    "epochs": 6,
    "batch": 16,
    "virtual_batch": 16,
    "lr": 0.02,
    "weight_decay": 0.1,
    "warmup": 0.1,
    "schedule": "cosine",
}
Examples = tuple[Tensor, Tensor]  # inputs (N, D) and labels (N,)


def domain(k: int) -> Examples:
    x = draw_inputs(SIZES[k], f"domain {k}")
    return x, (x[:, :CLASSES] * (k + 1)).argmax(-1)


def train_bank(
    bank: MLPBank, numbers: Sequence[int], data: Sequence[Examples], score: Score | None = None, **changes: Any
) -> list[int]:
    """Train each learner on its own data, with the generator of its number."""

    def loss(rows: Tensor) -> Tensor:  # (K, B) -> (K,)
        x = torch.stack([x[row] for (x, _), row in zip(data, rows, strict=True)])
        y = torch.stack([y[row] for (_, y), row in zip(data, rows, strict=True)])
        return cross_entropy(bank(x).transpose(1, 2), y, reduction="none").mean(-1)

    config = TrainingConfig.model_validate(SETTINGS | changes)
    sizes = [len(y) for _, y in data]
    return train(bank, loss, sizes, generators(numbers, "batches"), config, "experts", score)


def trained(numbers: Sequence[int] = (0, 1, 2), data: Sequence[Examples] | None = None, **changes: Any) -> MLPBank:
    bank = draw_bank(numbers)
    train_bank(bank, numbers, [domain(k) for k in numbers] if data is None else data, **changes)
    return bank


def close(one: MLPBank, other: MLPBank) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs)


def slice_of(stack: MLPBank, k: int) -> MLPBank:
    alone = draw_bank([0])
    banks.fill_bank(alone, [banks.split_bank(stack)[k]])
    return alone


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_experts_are_trained_in_a_stack_as_they_would_be_alone(schedule: str) -> None:
    together = trained(schedule=schedule)
    for k in range(3):
        assert close(slice_of(together, k), trained([k], schedule=schedule))
        assert not close(slice_of(together, k), draw_bank([k]))


def test_experts_stop_early_in_a_stack_as_they_would_alone() -> None:
    def run(numbers: Sequence[int]) -> tuple[MLPBank, list[int]]:
        bank = draw_bank(numbers)
        held_out = draw_inputs(50, "validation")
        labels = held_out[:, :CLASSES].argmax(-1)

        def score(learner: int) -> float:
            return float((banks.run_bank(bank, held_out)[:, learner].argmax(-1) == labels).double().mean())

        data = [domain(k) for k in numbers]
        return bank, train_bank(bank, numbers, data, score, epochs=30, patience=3)

    together, epochs = run([0, 1, 2])
    assert len(set(epochs)) > 1
    for k in range(3):
        alone, taken = run([k])
        assert taken == [epochs[k]]
        assert close(slice_of(together, k), alone)


def test_the_data_of_one_expert_do_not_affect_the_others() -> None:
    data = [domain(k) for k in range(3)]
    changed = [data[0], (-data[1][0], data[1][1]), data[2]]
    ours, theirs = banks.split_bank(trained(data=data)), banks.split_bank(trained(data=changed))
    for name in ours[0]:
        assert torch.equal(ours[0][name], theirs[0][name])
        assert torch.equal(ours[2][name], theirs[2][name])
        assert not torch.equal(ours[1][name], theirs[1][name])


def test_training_lowers_the_loss() -> None:
    x, y = domain(1)
    before, after = (cross_entropy(banks.run_bank(b, x)[:, 1], y) for b in (draw_bank(), trained(epochs=20)))
    assert after < before / 3


def test_virtual_batches_equal_real_ones() -> None:
    big: dict[str, Any] = {"virtual_batch": 128, "epochs": 12}
    assert close(trained(batch=32, **big), trained(batch=128, **big))
    assert close(trained(batch=50, **big), trained(batch=128, **big))  # the last piece is smaller
    assert not close(trained(batch=32, virtual_batch=32, epochs=12), trained(batch=128, **big))


class Slope:
    """One number on an endless slope, trained by the loop: the rows that it saw, and its value before each step."""

    def __init__(self, size: int, epochs: int, history: Sequence[float] = (), **changes: Any) -> None:
        self.number = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.rows: list[int] = []
        self.values: list[float] = []
        self.scored: list[float] = []
        self.history = history
        settings = {"batch": 4, "virtual_batch": 4, "lr": 0.1, "weight_decay": 0.0, "warmup": 0.0}
        settings |= {"schedule": "constant", "epochs": epochs} | changes
        config = TrainingConfig.model_validate(settings)
        self.epochs = train([self.number], self.loss, [size], [generator(0)], config, "slope", self.score)
        self.final = self.number.item()

    def loss(self, rows: Tensor) -> Tensor:
        self.rows += rows[0].tolist()
        self.values.append(self.number.item())
        return self.number[None] * rows.shape[1]

    def score(self, _: int) -> float:
        self.scored.append(self.number.item())
        return self.history[len(self.scored) - 1]


def test_patience_stops_and_keeps_the_best_weights() -> None:
    slope = Slope(10, 6, history=[0.5, 0.9, 0.8, 0.9, 0.7, 1.0], patience=3)
    assert slope.epochs == [5]
    assert len(slope.scored) == 5
    assert slope.final == slope.scored[1] != slope.scored[4]


def test_a_new_best_renews_patience() -> None:
    slope = Slope(10, 6, history=[0.5, 0.4, 0.6, 0.5, 0.7, 0.6], patience=2)
    assert slope.epochs == [6]
    assert slope.final == slope.scored[4]


def test_without_patience_the_last_weights_stay() -> None:
    slope = Slope(10, 4)
    assert slope.epochs == [4]
    assert slope.scored == []
    assert slope.final == pytest.approx(-0.1 * 12, rel=1e-6)  # 4 epochs of 3 steps, each of Adam's full rate


def test_the_learning_rate_warms_up_and_falls_to_zero() -> None:
    slope = Slope(400, 1, warmup=0.2, schedule="cosine")
    steps = -torch.tensor([*slope.values, slope.final]).diff()
    assert len(steps) == 100
    assert (steps[:20].diff() > 0).all()
    assert (steps[20:].diff() < 0).all()
    assert float(steps.max()) == pytest.approx(0.1, rel=1e-3)
    assert float(steps[-1]) < 1e-3


def test_every_example_is_seen_once_per_epoch() -> None:
    rows = Slope(12, 2).rows
    first, second = rows[:12], rows[12:]
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_names_its_stage(value: float) -> None:
    x, y = domain(0)
    with pytest.raises(RedxError, match=r"stage 'experts' .* at step 1"):
        trained([0], [(x * value, y)])


def test_dropout_zeroes_its_share_and_every_learner_draws_alone() -> None:
    x = torch.ones(2, 400, 50)
    dropped = loop.dropout(x, 0.3, [generator(0, "a"), generator(0, "b")])
    assert abs(float((dropped == 0).double().mean()) - 0.3) < 0.01
    assert abs(float(dropped.mean()) - 1) < 0.02
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(dropped[1:], loop.dropout(x[1:], 0.3, [generator(0, "b")]))
    assert loop.dropout(x, 0.0, []) is x


def test_clipping_bounds_the_gradient_of_each_learner_alone() -> None:
    scale = torch.tensor([[100.0], [0.1]])

    def gradient_norms(clip: float | None) -> list[float]:
        weights = torch.nn.Parameter(torch.zeros(2, 3))
        config = TrainingConfig(epochs=1, batch=1, virtual_batch=1, weight_decay=0.0, warmup=0.0, clip=clip)
        train([weights], lambda rows: (weights * scale).sum(1), [1, 1], generators([0, 1], "clip"), config, "clip")
        assert weights.grad is not None
        return weights.grad.norm(dim=1).tolist()

    assert gradient_norms(None) == pytest.approx([100 * 3**0.5, 0.1 * 3**0.5])
    assert gradient_norms(1.0) == pytest.approx([1.0, 0.1 * 3**0.5], rel=1e-4)


def test_weight_decay_spares_biases() -> None:
    matrix, bias = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    config = TrainingConfig(epochs=1, batch=1, virtual_batch=1, lr=0.1, weight_decay=0.5, warmup=0.0)
    train([matrix, bias], lambda rows: 0 * (matrix.sum() + bias.sum())[None], [1], [generator(0)], config, "decay")
    assert torch.equal(bias, torch.ones(2))
    assert torch.allclose(matrix, torch.full((2, 2), 1 - 0.1 * 0.5))


def test_a_learner_without_examples_is_refused() -> None:
    with pytest.raises(RedxError, match="Stage 'empty' has a learner without any examples"):
        train([torch.nn.Parameter(torch.zeros(1))], lambda rows: rows, [0], [generator(0)], TrainingConfig(), "empty")


def test_rows_are_drawn_and_gathered_per_learner() -> None:
    splits = [Split(torch.arange(n)[:, None] + 100 * n, torch.arange(n), torch.zeros(n)) for n in (3, 7)]
    rows = loop.draw_rows(splits, 50, generators([0, 1], "rows"))
    assert rows.shape == (2, 50)
    assert [int(row.max()) for row in rows] == [2, 6]
    x, labels = loop.gather_rows(splits, rows)
    assert torch.equal(labels, rows)
    assert torch.equal(x[..., 0], rows + torch.tensor([[300], [700]]))
