"""A task, a router and a rule for redx: handwritten digits of four owners, nearest centres, and the loudest expert."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import redx
from redx.config import RouterConfig, RunConfig
from redx.data.dataset import Data, Split
from redx.data.inputs import read_features
from redx.tasks import get_preset

OWNERS = {"0-2": (0, 1, 2), "3-4": (3, 4), "5-6": (5, 6), "7-9": (7, 8, 9)}


# --- a rule: weights from gates, in one function


@redx.RULES.register(
    "loudest", label="loudest", hint="base + the residual of one expert", routed=True, adversary="simplex"
)
def loudest(parts: redx.Parts) -> Tensor:
    """The base plus the residual of the expert with the largest gate."""
    return nn.functional.one_hot(parts.gates.argmax(-1), parts.experts).to(parts.base.dtype)


# --- a router: a module from features (N, E) to gates (N, K); `solve` fits it, without it gradients do


@redx.ROUTERS.register("nearest")
class NearestCentre(nn.Module):
    """The gate of an expert is minus the squared distance to the mean of its domain."""

    def __init__(self, inputs: int, experts: int, config: RouterConfig) -> None:
        super().__init__()
        self.centres = nn.Buffer(torch.zeros(experts, inputs))

    def solve(self, h: Tensor, domains: Tensor) -> None:
        for domain in range(len(self.centres)):
            self.centres[domain] = h[domains == domain].mean(0)

    def forward(self, h: Tensor) -> Tensor:
        return -(torch.cdist(h, self.centres) ** 2)


# --- a task: settings, and data in three splits


def load(config: RunConfig, seed: int) -> Data:
    """Return the digits; the test split is the same for every seed."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32), torch.tensor(labels)
    owner_of = {digit: index for index, digits in enumerate(OWNERS.values()) for digit in digits}
    domains = torch.tensor([owner_of[digit] for digit in y.tolist()])
    every = Split(x, y, domains)
    train, validation, test = (every.only(rows) for rows in torch.arange(len(y)).split([1000, 397, 400]))
    names = tuple(str(digit) for digit in range(10))
    return Data(train, validation, test, tuple(OWNERS), names, "random", seen_in_train=0.0)


def preset(name: str) -> RunConfig:
    """Return the settings of the task `features` with the router of this package."""
    config = get_preset("features", name)
    router = config.router.model_copy(update={"shape": "nearest"})
    return config.model_copy(update={"task": "mine", "router": router})


redx.TASKS.register(
    "mine",
    redx.Task(
        name="mine",
        about="Handwritten digits of four owners.",
        presets={"quick": preset("quick"), "default": preset("default")},
        load=load,
        read=read_features,
        options=("routing", "risk", "share"),
    ),
)
