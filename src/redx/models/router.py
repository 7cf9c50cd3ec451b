"""Routers: from the features of an example to one gate (a logit) per expert.

    linear or mlp   W_r h, or two layers, hidden 256 by default
    keys            the experts' own ownership scores; nothing is trained

A trained router has a fixed number of gates. `keys` follows the experts of a library, whatever they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from redx.config import RouterConfig
from redx.errors import RedxError
from redx.registry import Registry

TRAINED, KEYS = "router", "keys"  # what `--router` takes: the trained router, or the experts' own scores


class Experts(Protocol):
    """Experts by name that a router gives gates to, such as those of a library."""

    @property
    def names(self) -> tuple[str, ...]:
        """The experts' names, in order."""
        ...


class NetworkRouter(nn.Module):
    """A linear layer or a small MLP with one output per expert, on standardised features.

    Parameters
    ----------
    inputs
        Number of features E that it reads.
    experts
        Number of gates K.
    shape
        `linear` or `mlp`.
    hidden
        Width of the hidden layer of an `mlp`.

    Examples
    --------
    >>> NetworkRouter(8, experts=3, hidden=16)(torch.zeros(5, 8)).shape
    torch.Size([5, 3])
    """

    def __init__(self, inputs: int, experts: int, shape: str = "mlp", hidden: int = 256) -> None:
        super().__init__()
        inner = [] if shape == "linear" else [nn.Linear(inputs, hidden), nn.GELU()]
        self.layers = nn.Sequential(*inner, nn.Linear(hidden if inner else inputs, experts))
        self.mean = nn.Buffer(torch.zeros(inputs))
        self.deviation = nn.Buffer(torch.ones(inputs))

    def forward(self, h: Tensor) -> Tensor:  # (N, E) -> (N, K)
        return self.layers(self.standardise(h))

    def standardise(self, h: Tensor) -> Tensor:
        """Return the features with the mean and deviation of the training data taken out."""
        return (h - self.mean) / self.deviation

    def fit(self, h: Tensor) -> None:
        """Take mean and deviation of every feature from training data, (N, E)."""
        self.mean.copy_(h.mean(0))
        self.deviation.copy_(h.std(0).clamp_min(1e-6))


class TrainedRouter(nn.Module):
    """A trained network together with the names of the experts that its outputs stand for.

    Parameters
    ----------
    network
        From features, (N, E), to gates, (N, K).
    experts
        The names, in the order of its outputs.
    """

    def __init__(self, network: nn.Module, experts: Sequence[str]) -> None:
        super().__init__()
        self.network, self.experts = network.eval(), tuple(experts)

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the experts among `names` that this router has no gate for."""
        known = set(self.experts)
        return [name for name in names if name not in known]

    def gates(self, h: Tensor, experts: Experts) -> Tensor:
        """Return the gates of features h, (N, E) to (N, K), in the order of the library."""
        in_order = experts.names == self.experts
        if not in_order and (missing := self.missing(experts.names)):
            raise RedxError(
                f"The router has no gate for the expert {missing[0]!r}, for its width is fixed; retrain it with "
                "`redx router train RUN`, or route by the experts' own scores (--router keys)."
            )
        with torch.no_grad():
            first = next(itertools.chain(self.network.parameters(), self.network.buffers()), h)
            gates = self.network(h.to(first.device)).to(h.device)
        if in_order:
            return gates
        places = {name: place for place, name in enumerate(self.experts)}
        return gates[:, [places[name] for name in experts.names]]


def _build_network(inputs: int, experts: int, config: RouterConfig) -> NetworkRouter:
    return NetworkRouter(inputs, experts, config.shape, config.hidden)


ROUTERS: Registry[Callable[[int, int, RouterConfig], nn.Module]] = Registry("router")
"""Routers that are trained, by name: each takes the number of features E, of experts K and the settings to a module
from features, (N, E), to gates, (N, K). A module may have `fit(h)`, which standardises by training data, and
`solve(h, domains)`, which fits it in closed form; without `solve` it is trained by gradient."""
ROUTERS.register("linear", _build_network)
ROUTERS.register("mlp", _build_network)


def check_router(config: RouterConfig) -> None:
    """Refuse the name of a router that does not exist."""
    if config.is_trained and config.shape not in ROUTERS:
        raise RedxError(f"There is no router {config.shape!r}; choose one of {', '.join((KEYS, *ROUTERS))}.")


def build_router(inputs: int, experts: int, config: RouterConfig) -> nn.Module:
    """Return the untrained router that the settings name."""
    return ROUTERS[config.shape](inputs, experts, config)


def check_routing(name: str) -> str:
    """Return the name of a way to route, or refuse one that does not exist."""
    if name not in (TRAINED, KEYS):
        raise RedxError(f"There is no router {name!r}; choose {TRAINED} (the trained one) or {KEYS}.")
    return name


def initialise_router(router: nn.Module, generator: Generator) -> None:
    """Draw all weights from one generator; biases start at zero."""
    with torch.no_grad():
        for parameter in router.parameters():
            bound = parameter.shape[1] ** -0.5 if parameter.ndim > 1 else 0.0
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * bound)
