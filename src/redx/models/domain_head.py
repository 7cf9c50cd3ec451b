"""The domain head of the base: which domain an example looks like, where its class does not say so.

It is a ridge regression from features to domains on the shared examples. No router, expert or owner takes part in it,
so the cut-off that it chooses for an example cannot be chosen by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redx.data.dataset import Split

PENALTIES = (1.0, 10.0, 100.0, 1000.0)  # of the ridge, of which leave-one-out errors choose one


@dataclass(frozen=True)
class DomainHead:
    """A linear head from features to domains.

    Attributes
    ----------
    weight
        Weights and, as last row, the bias, (E + 1, D).
    names
        The names of its domains.
    """

    weight: Tensor
    names: tuple[str, ...]


def fit_domain_head(shared: Split, names: Sequence[str]) -> DomainHead | None:
    """Return the head; None where the shared examples name less than two domains.

    Parameters
    ----------
    shared
        The shared examples as features, (N, E), with their domains, -1 where unknown.
    names
        The name of every domain.
    """
    from sklearn.linear_model import RidgeCV

    known = shared.only(shared.domains >= 0)
    domains: list[int] = known.domains.unique().tolist()
    targets = torch.searchsorted(torch.tensor(domains, dtype=torch.int64), known.domains)
    if len(domains) < 2:
        return None
    one_hot = torch.nn.functional.one_hot(targets, len(domains)).double()
    ridge = RidgeCV(alphas=PENALTIES).fit(known.inputs.double().numpy(), one_hot.numpy())
    weight, bias = torch.as_tensor(ridge.coef_), torch.as_tensor(ridge.intercept_)
    head = torch.cat([weight.T, bias[None]])
    return DomainHead(head.float().contiguous(), tuple(names[domain] for domain in domains))


def name_domains(head: Tensor, h: Tensor) -> Tensor:
    """Return the domain that the head names for features, (N, E) to (N,)."""
    return (h @ head[:-1] + head[-1]).argmax(-1)
