"""The rows `train` and `estimator`: stacked training against one by one, and the estimator against scikit-learn's."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from redx.config import BankConfig, BankId, TrainingConfig
from redx.data.dataset import Split
from redx.models.backbones import hub
from redx.models.backbones.base import IdentityEncoder
from redx.models.backbones.language import FrozenLM
from redx.models.banks import split_bank
from redx.models.base import Base
from redx.seeding import generator
from redx.training.banks import train_bank
from redx.training.datasets import ExpertData
from speed_rows.texts import short_texts
from speed_rows.timing import BenchRow, BenchSettings, alternate, compare

EXPERTS, SEEDS, CLASSES = 5, 3, 10
BANK = BankId("residual", "plain")
PAPER_BATCH = 16  # texts that the papers' loop encodes at once
ONE_BY_ONE = "one by one"


def bench_train(settings: BenchSettings) -> Iterator[BenchRow]:
    """Yield the row: 5 experts of 3 seeds, trained as one stack and one by one, on stored features."""
    examples, epochs = (40, 2) if settings.quick else (600, 20)
    frozen = FrozenLM(hub.model_folder(settings.backbone), (-1,), "mean")
    texts, source = short_texts(min(examples * EXPERTS, 15_000))
    list(frozen.encode(texts[:1]))  # loads the model, which neither side counts
    start = time.perf_counter()
    encoded = {text: rows[0] for batch in frozen.encode(texts) for text, rows in batch}
    encoding = time.perf_counter() - start
    base, datasets = make_data(torch.stack([encoded[text] for text in texts]), examples)
    training = TrainingConfig(epochs=epochs, batch=64, virtual_batch=64, lr=2e-3)
    bank = BankConfig(shape="mlp", hidden=32, depth=1, training=training)
    jobs = [(seed, data) for seed in range(SEEDS) for data in datasets]

    def stacked() -> list[dict[str, torch.Tensor]]:
        return split_bank(train_bank(BANK, bank, [data for _, data in jobs], base, [seed for seed, _ in jobs], 1.0))

    def one_by_one() -> list[dict[str, torch.Tensor]]:
        return [split_bank(train_bank(BANK, bank, [data], base, seed, 1.0))[0] for seed, data in jobs]

    seconds = alternate({"ours": stacked, ONE_BY_ONE: one_by_one}, settings.repeat)
    about = (
        f"{EXPERTS} experts x {SEEDS} seeds, {examples} texts each ({source}), {epochs} epochs; ratio: seconds one by "
        "one over stacked"
    )
    row = compare("train", seconds, ONE_BY_ONE, about)
    gaps = [(a[name] - b[name]).abs().max() for a, b in zip(stacked(), one_by_one(), strict=True) for name in a]
    step = paper_step(frozen, texts, settings.repeat)
    steps = len(jobs) * epochs * math.ceil(examples / PAPER_BATCH)
    row.details.update(
        {
            "largest difference of weights": float(max(gaps)),
            "seconds of encoding once": encoding,
            "papers' loop: seconds of a step (measured)": step,
            "papers' loop: steps": steps,
            "papers' loop: seconds in all (extrapolated)": step * steps,
            "papers' loop over ours, encoding included (extrapolated)": step * steps / (encoding + row.ours),
        }
    )
    yield row


def paper_step(frozen: FrozenLM, texts: list[str], repeat: int) -> float:
    """Return the median seconds of encoding one batch, which the papers' loop repeats at every step."""
    seconds = []
    for number in range(repeat + 1):
        batch = texts[number * PAPER_BATCH % len(texts) :][:PAPER_BATCH]
        start = time.perf_counter()
        list(frozen.encode(batch))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def make_data(features: torch.Tensor, examples: int) -> tuple[Base, list[ExpertData]]:
    """Return a random frozen base on features, (N, D), and the data of every expert."""
    draw, width = generator(0, "bench base"), features.shape[1]
    weight = torch.randn(width, CLASSES, generator=draw) * width**-0.5
    base = Base(IdentityEncoder(), weight, torch.zeros(CLASSES), features.mean(0), features.std(0) + 1e-3)
    h = (features - base.mean) / base.scale
    labels = torch.randint(CLASSES, (len(h),), generator=draw)
    everything = Split(h, labels, torch.arange(len(h)) % EXPERTS)
    splits = [everything.only(torch.arange(index, len(h), EXPERTS)[:examples]) for index in range(EXPERTS)]
    return base, [ExpertData(f"e{index}", split, everything, split) for index, split in enumerate(splits)]


def bench_estimator(settings: BenchSettings) -> Iterator[BenchRow]:
    """Yield the row: fit and predict on the digits of scikit-learn, with the accuracy of every side."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import VotingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    from redx.estimator import RedClassifier

    x, y = load_digits(return_X_y=True)
    if settings.quick:
        x, y = x[:300], y[:300]
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    epochs = 200  # ours trains to the end as well, so a quick run has fewer digits and not fewer epochs

    def voting() -> VotingClassifier:
        members = [
            ("linear", LogisticRegression(max_iter=epochs)),
            ("mlp", MLPClassifier(max_iter=epochs, random_state=0)),
        ]
        return VotingClassifier(members, voting="soft")

    makers: dict[str, Callable[[], object]] = {
        "ours": lambda: RedClassifier(random_state=0),
        "LogisticRegression": lambda: LogisticRegression(max_iter=epochs),
        "MLPClassifier": lambda: MLPClassifier(max_iter=epochs, random_state=0),
        "VotingClassifier": voting,
    }
    accuracy: dict[str, float] = {}

    def side(name: str) -> None:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an opponent that has not converged says so at every fit
            answers = makers[name]().fit(train_x, train_y).predict(test_x)  # type: ignore[attr-defined]
        accuracy[name] = float((answers == test_y).mean())

    seconds = alternate({name: lambda name=name: side(name) for name in makers}, settings.repeat)
    about = f"fit on {len(train_x)} digits and predict {len(test_x)}; ratio: seconds of MLPClassifier over ours"
    yield compare("estimator", seconds, "MLPClassifier", about, details={"accuracy": accuracy})
