"""The training loop: learners in a stack are trained and stopped exactly as each would be alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from redx.errors import RedxError
from redx.models import banks
from redx.models.banks import MLPBank
from redx.seeding import generator
from redx.training import loop
from redx.training.loop import fit

INPUTS, CLASSES = 5, 3


SIZES = (40, 97, 64)  # examples of each expert: their schedules differ


SHAPES = {"linear": (INPUTS, CLASSES), "mlp": (INPUTS, 8, 6, CLASSES)}


Example = tuple[Tensor, Tensor]  # inputs (N, D) and labels (N,)


def sources(which: Sequence[int], purpose: str) -> list[Generator]:
    return [generator(k, purpose) for k in which]


def bank(which: Sequence[int] = (0, 1, 2), shape: str = "mlp", **options: Any) -> MLPBank:
    """Experts of these numbers, each drawn from its own generator."""
    made = MLPBank(len(which), SHAPES[shape], **options).double()
    banks.initialise_bank(made, sources(which, "start"))
    return made


def inputs(count: int, purpose: str = "inputs") -> Tensor:
    return torch.randn(count, INPUTS, generator=generator(0, purpose), dtype=torch.float64)


def domain(k: int) -> Example:
    x = inputs(SIZES[k], f"domain {k}")
    return x, (x[:, :CLASSES] * (k + 1)).argmax(-1)


def train(learners: MLPBank, which: Sequence[int], data: Sequence[Example], **options: Any) -> list[int]:
    """Each learner on its own domain, with the generator of its number."""

    def loss(rows: Tensor) -> Tensor:  # (K, B) -> (K,)
        x = torch.stack([x[row] for (x, _), row in zip(data, rows, strict=True)])
        y = torch.stack([y[row] for (_, y), row in zip(data, rows, strict=True)])
        return cross_entropy(learners(x).transpose(1, 2), y, reduction="none").mean(-1)

    settings: dict[str, Any] = {
        "title": "experts", "epochs": 6, "batch": 16, "virtual_batch": 16, "lr": 0.02,
        "weight_decay": 0.1, "warmup": 0.1, "schedule": "cosine",
    }  # fmt: skip
    chosen = settings | options
    sizes = [len(y) for _, y in data]
    return fit(list(learners.parameters()), loss, sizes, sources(which, "batches"), **chosen)


def trained(which: Sequence[int] = (0, 1, 2), data: Sequence[Example] | None = None, **options: Any) -> MLPBank:
    learners = bank(which)
    train(learners, which, [domain(k) for k in which] if data is None else data, **options)
    return learners


def close(one: MLPBank, other: MLPBank) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs)


def slice_of(stack: MLPBank, k: int) -> MLPBank:
    alone = bank([0])
    banks.fill_bank(alone, [banks.split_bank(stack)[k]])
    return alone


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_experts_learn_in_a_stack_as_they_would_alone(schedule: str) -> None:
    together = trained(schedule=schedule)
    for k in range(3):
        assert close(slice_of(together, k), trained([k], schedule=schedule))
        assert not close(slice_of(together, k), bank([k]))


def test_experts_stop_in_a_stack_as_they_would_alone() -> None:
    def run(which: Sequence[int]) -> tuple[MLPBank, list[int]]:
        learners = bank(which)
        held_out = inputs(50, "validation")
        labels = held_out[:, :CLASSES].argmax(-1)

        def score(learner: int) -> float:
            return float((banks.run_bank(learners, held_out)[:, learner].argmax(-1) == labels).double().mean())

        data = [domain(k) for k in which]
        return learners, train(learners, which, data, epochs=30, patience=3, score=score)

    together, epochs = run([0, 1, 2])
    assert len(set(epochs)) > 1
    for k in range(3):
        alone, taken = run([k])
        assert taken == [epochs[k]]
        assert close(slice_of(together, k), alone)


def test_data_of_one_expert_leave_all_others_untouched() -> None:
    data = [domain(k) for k in range(3)]
    changed = [data[0], (-data[1][0], data[1][1]), data[2]]
    ours, theirs = banks.split_bank(trained(data=data)), banks.split_bank(trained(data=changed))
    for name in ours[0]:
        assert torch.equal(ours[0][name], theirs[0][name])
        assert torch.equal(ours[2][name], theirs[2][name])
        assert not torch.equal(ours[1][name], theirs[1][name])


def test_training_lowers_the_loss() -> None:
    x, y = domain(1)
    before, after = (cross_entropy(banks.run_bank(b, x)[:, 1], y) for b in (bank(), trained(epochs=20)))
    assert after < before / 3


def test_virtual_batches_equal_real_ones() -> None:
    big: dict[str, Any] = {"virtual_batch": 128, "epochs": 12}
    assert close(trained(batch=32, **big), trained(batch=128, **big))
    assert close(trained(batch=50, **big), trained(batch=128, **big))  # the last piece is smaller
    assert not close(trained(batch=32, virtual_batch=32, epochs=12), trained(batch=128, **big))


class Slope:
    """A single number on an endless slope, trained by the loop: what it saw, and where it stood before each step."""

    def __init__(self, size: int, epochs: int, history: Sequence[float] = (), **options: Any) -> None:
        self.number = torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.rows: list[int] = []
        self.stood: list[float] = []
        self.scored: list[float] = []
        self.history = history
        settings: dict[str, Any] = {"warmup": 0.0, "schedule": "constant", "score": self.score} | options
        self.epochs = fit(
            [self.number], self.loss, [size], [generator(0)], title="slope", epochs=epochs, batch=4, virtual_batch=4,
            lr=0.1, weight_decay=0.0, **settings,
        )  # fmt: skip
        self.final = self.number.item()

    def loss(self, rows: Tensor) -> Tensor:
        self.rows += rows[0].tolist()
        self.stood.append(self.number.item())
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


def test_the_rate_warms_up_and_falls_to_nothing() -> None:
    slope = Slope(400, 1, warmup=0.2, schedule="cosine")
    steps = -torch.tensor([*slope.stood, slope.final]).diff()
    assert len(steps) == 100
    assert (steps[:20].diff() > 0).all()
    assert (steps[20:].diff() < 0).all()
    assert float(steps.max()) == pytest.approx(0.1, rel=1e-3)
    assert float(steps[-1]) < 1e-3


def test_every_example_is_seen_once_an_epoch() -> None:
    rows = Slope(12, 2).rows
    first, second = rows[:12], rows[12:]
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_names_its_stage(value: float) -> None:
    x, y = domain(0)
    with pytest.raises(RedxError, match=r"stage 'experts' .* at step 1"):
        trained([0], [(x * value, y)])


def test_dropout_hides_its_share_and_each_learner_draws_alone() -> None:
    x = torch.ones(2, 400, 50)
    hidden = loop.dropout(x, 0.3, [generator(0, "a"), generator(0, "b")])
    assert abs(float((hidden == 0).double().mean()) - 0.3) < 0.01
    assert abs(float(hidden.mean()) - 1) < 0.02
    assert not torch.equal(hidden[0], hidden[1])
    assert torch.equal(hidden[1:], loop.dropout(x[1:], 0.3, [generator(0, "b")]))
    assert loop.dropout(x, 0.0, []) is x
