"""The toy experiments: five experts learn to add, each on numbers of its own segment, and are then mixed.

With a, b in 1..100 the input is x = (a/100, b/100) and the target y = (a+b)/200. Expert i is trained on the pairs with
both numbers in segment i. An answer is correct when round(200 ŷ) = a + b.

    A   linear experts share one optimum, so any mixture is correct
    B   MLP experts disagree outside their segments, so mixtures collapse
    C   residual experts on the base 0.5 x1 + 0.5 x2 stay near zero, so any mixture is correct again
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redx.config import BankConfig, BankId, RouterConfig, RunConfig, TrainingConfig
from redx.data.dataset import Data, Split
from redx.data.inputs import LARGEST_NUMBER, read_pairs
from redx.tasks import Task
from redx.tasks.options import TOY

if TYPE_CHECKING:
    from torch import Tensor

TOP = LARGEST_NUMBER
UNIT = 1 / (2 * TOP)  # size of one unit of the sum in y
LINEAR, MLP, RESIDUAL = BankId("standalone", "linear"), BankId("standalone", "mlp"), BankId("residual", "residual")


def all_pairs(low: int, high: int) -> Tensor:
    """Return all pairs (a, b) with both numbers in low..high: (N, 2)."""
    import torch

    numbers = torch.arange(low, high + 1)
    return torch.cartesian_prod(numbers, numbers)


def segments(count: int) -> list[tuple[int, int]]:
    """Return the first and last number of `count` equal segments of 1..100."""
    width = TOP // count
    return [(1 + i * width, (i + 1) * width) for i in range(count)]


def segment_pairs(count: int) -> Split:
    """Return all pairs of every segment, with their sums as labels and their segments as domains."""
    import torch

    by_segment = [all_pairs(low, high) for low, high in segments(count)]
    domains = torch.cat([torch.full((len(pairs),), index) for index, pairs in enumerate(by_segment)])
    numbers = torch.cat(by_segment)
    return Split(read_pairs(numbers), numbers.sum(1), domains)


def load(config: RunConfig, seed: int, count: int = 5) -> Data:
    """Return data of `count` segments whose splits are all the same.

    The toy is about interference between experts, not about generalisation, so it trains and tests on all pairs.
    """
    import torch

    every = segment_pairs(count)
    names = tuple(f"{low}-{high}" for low, high in segments(count))
    base = (torch.full((2, 1), 0.5), torch.zeros(1))
    return Data(every, every, every, names, (), "random", seen_in_train=1.0, unit=UNIT, given_base=base)


def preset_config(task: str, banks: Sequence[BankId], preset: str, epochs: int) -> RunConfig:
    """Return the settings of a preset; a batch is all 400 pairs of a segment."""
    training = TrainingConfig(epochs=epochs, batch=400, virtual_batch=400, lr=1e-2, weight_decay=0.0)
    fast = training.model_copy(update={"lr": 5e-2})
    decayed = training.model_copy(update={"weight_decay": 0.1})
    mlp = {"shape": "mlp", "hidden": 64, "depth": 2, "activation": "relu"}
    every = {
        LINEAR: BankConfig(shape="linear", standardise=True, training=fast),
        MLP: BankConfig(training=training, **mlp),
        RESIDUAL: BankConfig(scale=0.1, training=decayed, **mlp),
    }
    chosen = {key: every[key] for key in banks}
    pooled = {BankId("pooled", key.name): pooled_head(bank) for key, bank in chosen.items() if key.form == "standalone"}
    main = {key.form: key.name for key in chosen | pooled}
    return RunConfig(
        task=task,
        preset=preset,
        threads=1,
        banks=chosen | pooled,
        main=main | ({"averaged": main["standalone"]} if pooled else {}),
        average=True,
        router=RouterConfig(
            training=TrainingConfig(epochs=max(1, epochs // 20), batch=400, virtual_batch=400, lr=1e-2)
        ),
        study="full" if preset == "default" else "quick",
    )


def pooled_head(bank: BankConfig) -> BankConfig:
    """Return the settings of a head for all segments; a batch is all 2,000 pairs, so it takes as many steps."""
    return bank.model_copy(update={"training": bank.training.model_copy(update={"batch": 2000, "virtual_batch": 2000})})


def build_task(name: str, about: str, *banks: BankId) -> Task:
    """Return a task that trains these banks."""
    presets = {
        # redx run toy --preset quick: seconds; linear and residual mixtures 1.00, mlp mixtures near 0.
        "quick": preset_config(name, banks, "quick", 1000),
        # redx run toy: a minute and a half; the same, with every mlp expert at 0.95 or more in its own segment.
        "default": preset_config(name, banks, "default", 3000),
    }
    takes = {"quick": "under a minute", "default": "about 2 minutes"}
    return Task(name, about, presets, load, read_pairs, study="redx.tasks.toy.study", options=TOY, takes=takes)


A = "Experiment A: linear experts share one optimum and mix perfectly."
B = "Experiment B: MLP experts collapse when mixed."
C = "Experiment C: residual experts on a base mix safely."
TASKS = {
    "toy": build_task("toy", "All three toy experiments: which experts survive mixing?", LINEAR, MLP, RESIDUAL),
    "toy-linear": build_task("toy-linear", A, LINEAR),
    "toy-mlp": build_task("toy-mlp", B, MLP),
    "toy-residual": build_task("toy-residual", C, RESIDUAL),
}
