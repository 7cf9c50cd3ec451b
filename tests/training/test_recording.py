"""Recorders see every learner's curves, and change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import nn

from redx.config import TrainingConfig
from redx.seeding import generator
from redx.training import recording as recordings
from redx.training.loop import train
from redx.training.recording import MAX_POINTS, Watch, recording


class Notes:
    """A recorder that keeps everything in memory."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, tuple[str, ...]]] = []
        self.points: list[tuple[int, int, dict[str, float]]] = []
        self.finished = 0

    def start(self, stage: str, learners: Sequence[str]) -> None:
        self.stages.append((stage, tuple(learners)))

    def record(self, learner: int, epoch: int, figures: Mapping[str, float]) -> None:
        self.points.append((learner, epoch, dict(figures)))

    def finish(self) -> None:
        self.finished += 1


def fit(epochs: int = 4, patience: int | None = None) -> nn.Parameter:
    """Train two numbers towards 1 and 2 on four examples each, in micro-batches of two."""
    weights = nn.Parameter(torch.zeros(2, 1))
    settings = {"epochs": epochs, "batch": 2, "virtual_batch": 4, "lr": 0.1, "patience": patience}
    config = TrainingConfig.model_validate(settings)
    target = torch.tensor([1.0, 2.0])

    def loss(_: torch.Tensor) -> torch.Tensor:
        return (weights[:, 0] - target).square()

    batches = [generator(number, "batches") for number in range(2)]
    train([weights], loss, [4, 4], batches, config, "stage", lambda k: float(weights[k, 0].detach()), ["one", "two"])
    return weights


@pytest.mark.parametrize("patience", [None, 2])
def test_a_recorded_training_gives_the_same_bits(patience: int | None) -> None:
    notes = Notes()
    with recording(notes):
        watched = fit(patience=patience)
    assert torch.equal(watched, fit(patience=patience))
    assert notes.stages == [("stage", ("one", "two"))]
    assert notes.finished == 1
    assert {(learner, epoch) for learner, epoch, _ in notes.points} == {(k, n) for k in range(2) for n in range(1, 5)}


def test_losses_are_means_over_the_epoch_and_rates_those_of_the_last_step() -> None:
    notes = Notes()
    with recording(notes):
        fit()
    first = {learner: figures for learner, epoch, figures in notes.points if epoch == 1}
    assert first[0]["train loss"] == pytest.approx(1.0)  # of the start, where the weights are zero
    assert first[1]["train loss"] == pytest.approx(4.0)
    assert all(0 < figures["learning rate"] <= 0.1 for figures in first.values())
    assert first[0]["validation score"] > 0


def test_long_trainings_have_few_points() -> None:
    notes = Notes()
    with recording(notes):
        fit(epochs=3 * MAX_POINTS)
    assert MAX_POINTS <= len([point for point in notes.points if point[0] == 0]) <= MAX_POINTS + 1


def test_without_a_recorder_there_is_no_watch() -> None:
    assert Watch.begin("stage", None, 2, 5) is None
    with recording(Notes()):
        assert Watch.begin("stage", None, 2, 5) is not None
    assert recordings._RECORDER.get() is None
