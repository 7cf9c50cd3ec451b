"""The base that the statistics of owners give: a ridge head on a fixed feature map, solved anew when an owner changes.

    B(x) = τ · φ(x)ᵀ (G + λ I)⁻¹ c,   G = G_shared + Σ_k G_k,   c = c_shared + Σ_k c_k

λ and τ are chosen on examples that are for choices, never on calibration examples. So everything that is added up is
the same whoever came first, and so is B, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from redx.data.dataset import Split
from redx.errors import RedxError
from redx.io.files import write_json, write_tensors
from redx.io.reading import guarded, read_json
from redx.io.safetensors_files import read_tensors
from redx.models.base import Base
from redx.models.feature_map import LARGEST, FeatureMap, MapSettings
from redx.models.statistics import ADVICE, ROWS, Statistics, add_up, collect
from redx.seeding import generator

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # λ in units of the mean diagonal entry of G
FIRST = 2  # the penalty that is tried first
TEMPERATURES = tuple(torch.logspace(-1, 3, 81).tolist())  # values of τ
DEFAULT_TEMPERATURE = 10.0  # without examples to choose on: logits of a right answer are about this
GAP = 1.0  # how far a class without examples lies below the lowest logit
ENOUGH = 200  # examples for choices beside which no shared ones are needed
CHOSEN = {"penalty", "temperature", "random"}  # what a head says of its choices
LEFT_OUT = 1000  # shared examples that are left out in turn, at most
FILE, DESCRIPTION = "head.safetensors", "head.json"  # in the folder of a model


def solve(total: Statistics, penalty: float) -> Tensor:
    """Return the weights of the ridge head, (M, C), in double precision.

    Parameters
    ----------
    total
        The sum over owners.
    penalty
        λ in units of the mean diagonal entry of G.
    """
    return torch.cholesky_solve(total.moments, _factor(total, penalty, total.map.outputs))


def _factor(total: Statistics, penalty: float, used: int) -> Tensor:
    """Return the Cholesky factor of the first rows and columns of `G + λ I`."""
    shifted = total.gram[:used, :used].clone()
    shifted.diagonal().add_(max(penalty * float(shifted.diagonal().mean()), 1e-12))
    return torch.linalg.cholesky(shifted)


class RidgeHead(nn.Module):
    """A head that statistics give: `logits = φ(h)ᵀ weight`.

    Parameters
    ----------
    map
        The feature map.
    weight
        (M, C), the temperature included.
    classes
        The classes of the columns.
    missing
        Columns of classes without examples; they lie below all others.
    owners
        Hashes of the statistics that it was solved from, by owner.
    chosen
        What was chosen on held-out examples: `penalty`, `temperature`, and whether random features are used.

    Examples
    --------
    >>> RidgeHead(FeatureMap(1, 0), torch.tensor([[1.0], [2.0]]), ("a",))(torch.tensor([[3.0]]))
    tensor([[5.]])
    """

    weight: Tensor  # (M, C)
    projection: Tensor  # (E, size)
    absent: Tensor  # (C,), which classes have no examples

    def __init__(
        self,
        map: FeatureMap,
        weight: Tensor,
        classes: Sequence[str],
        missing: Sequence[int] = (),
        owners: Mapping[str, str] | None = None,
        chosen: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.map, self.classes, self.missing = map, tuple(classes), tuple(missing)
        self.owners, self.chosen = dict(owners or {}), dict(chosen or {})
        self.register_buffer("weight", weight.float())
        self.register_buffer("projection", map.projection.clone())
        self.register_buffer("absent", torch.zeros(len(self.classes), dtype=torch.bool))
        self.absent[list(self.missing)] = True

    def forward(self, h: Tensor) -> Tensor:  # (N, E) -> (N, C)
        return self.classify(h) if len(h) <= ROWS else torch.cat([self.classify(rows) for rows in h.split(ROWS)])

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits of all examples at once, (N, E) to (N, C)."""
        logits = self.map(h, self.projection) @ self.weight.to(h.device, h.dtype)
        if not self.missing:
            return logits
        absent = self.absent.to(h.device)
        floor = logits.masked_fill(absent, torch.inf).amin(-1, keepdim=True) - GAP
        return torch.where(absent, floor, logits)

    def save(self, tensors: Path, description: Path) -> None:
        """Write two files that `read_head` reads; the projection follows from its seed and the base."""
        about = {**self.map.settings(), "classes": self.classes, "missing": self.missing}
        write_tensors(tensors, {"weight": self.weight.float().cpu().contiguous()})
        write_json(description, about | {"owners": self.owners, "chosen": self.chosen})


class HeadFile(MapSettings):
    """What the file of a head says beside its weight."""

    classes: tuple[str, ...]
    missing: tuple[int, ...]
    owners: dict[str, str]
    chosen: dict[str, float]


def read_head(folder: Path, base: Base) -> RidgeHead:
    """Return the head in a folder.

    Parameters
    ----------
    folder
        The folder of a model.
    base
        The base whose features it reads.

    Raises
    ------
    RedxError
        If a file is missing, damaged, or holds anything else.
    """
    advice = "repeat the run"
    about: HeadFile = read_json(folder / DESCRIPTION, HeadFile, misfit="describes no head", advice=advice)
    tensors = read_tensors(folder / FILE)
    with guarded(folder / FILE, "does not hold the head of this base", advice):
        map = about.on(base)
        if about.width != base.width or map.outputs > LARGEST or set(tensors) != {"weight"}:
            raise ValueError("another base, or tensors of another kind")
        weight = tensors["weight"]
        if tuple(weight.shape) != (map.outputs, len(about.classes)) or weight.dtype != torch.float32:
            raise ValueError("a weight of another shape or type")
        if not bool(weight.isfinite().all()):
            raise ValueError("a weight that is no number")
        if not set(about.missing) < set(range(len(about.classes))):
            raise ValueError("columns that it does not have")
        if set(about.chosen) != CHOSEN:
            raise ValueError("other choices than a head has")
        return RidgeHead(map, weight, about.classes, about.missing, about.owners, about.chosen)


@dataclass(frozen=True)
class Held:
    """Examples that penalty and temperature are chosen on.

    Attributes
    ----------
    choices
        Examples for choices, as features; nothing was trained on them.
    shared
        Examples that are part of the sum. Where there are few for choices, each of these is left out in turn, which
        has a closed form.
    left_out
        How many of them are left out at most.
    """

    choices: Split | None = None
    shared: Split | None = None
    left_out: int = LEFT_OUT


def fit_head(total: Statistics, held: Held, penalties: Sequence[float] = PENALTIES) -> RidgeHead:
    """Return the head with the penalty of the smallest squared error and the temperature of the smallest log-loss.

    Both are measured on held-out examples. Penalties are tried one after the other as long as the error falls, with all
    features and without the random ones. (Log-loss would choose a larger penalty than is good for accuracy: a ridge is
    calibrated best where it separates less.)

    Parameters
    ----------
    total
        The sum over owners.
    held
        Examples to choose on; without any, the first penalty that would be tried is taken.
    penalties
        Values of λ, in ascending order.
    """
    missing = (total.counts == 0).nonzero()[:, 0].tolist()
    tested = _tested_examples(total.map, held, total.counts > 0)
    first = min(FIRST, len(penalties) - 1)
    if tested is None:
        chosen = {"penalty": penalties[first], "temperature": DEFAULT_TEMPERATURE, "random": float(total.map.size)}
        weight = DEFAULT_TEMPERATURE * solve(total, penalties[first])
        return RidgeHead(total.map, weight, total.classes, missing, chosen=chosen)
    sizes = [total.map.size, 0] if total.map.linear and total.map.size else [total.map.size]
    found = [_descend(total, penalties, first, size, tested) for size in sizes]
    best = min(found, key=lambda one: one.error)  # of equals the one with all features
    temperature = _choose_temperature(best.outputs, tested.labels)
    weight = best.weight.new_zeros(total.map.outputs, best.weight.shape[1])
    weight[: len(best.weight)] = temperature * best.weight
    chosen = {"penalty": best.penalty, "temperature": temperature, "random": float(best.size)}
    return RidgeHead(total.map, weight, total.classes, missing, chosen=chosen)


@dataclass(frozen=True)
class _Tested:
    """Held-out examples of classes that some owner has."""

    features: Tensor  # φ, (N, M)
    labels: Tensor  # (N,)
    inside: Tensor  # whether each is part of the sum, (N,)


@dataclass(frozen=True)
class _Candidate:
    error: float
    penalty: float
    size: int  # random features
    weight: Tensor  # (M', C)
    outputs: Tensor  # on held-out examples, (N, C)


def _descend(total: Statistics, penalties: Sequence[float], first: int, size: int, tested: _Tested) -> _Candidate:
    """Return the best of the penalties around the first, followed in the direction in which the error falls."""

    def fit(place: int) -> _Candidate:
        factor = _factor(total, penalties[place], total.map.plain + size)
        weight = torch.cholesky_solve(total.moments[: len(factor)], factor)
        outputs = _held_out_outputs(tested, weight, factor)
        error = float((outputs - one_hot(tested.labels, outputs.shape[1])).square().sum(1).mean())
        return _Candidate(error, penalties[place], size, weight, outputs)

    best = start = fit(first)
    for step in (1, -1):
        place = first + step
        while 0 <= place < len(penalties) and (next_one := fit(place)).error < best.error:
            best, place = next_one, place + step
        if best is not start:
            break
    return best


def _tested_examples(map: FeatureMap, held: Held, known: Tensor | None = None) -> _Tested | None:
    """Return the examples to choose on, where classes are given, (C,), those of these alone; None: there are none."""
    found = [(held.choices, False)] if held.choices is not None else []
    if held.shared is not None and sum(len(split) for split, _ in found) < ENOUGH:
        rows = torch.randperm(len(held.shared), generator=generator(0, "left out"))[: held.left_out]
        found.append((held.shared.only(rows.sort().values), True))
    if known is not None:
        found = [(split.only(known[split.labels].nonzero()[:, 0]), inside) for split, inside in found]
    found = [(split, inside) for split, inside in found if len(split)]
    if not found:
        return None
    features = torch.cat([map(split.inputs).double() for split, _ in found])
    labels = torch.cat([split.labels for split, _ in found])
    return _Tested(features, labels, torch.cat([torch.full((len(split),), inside) for split, inside in found]))


def _held_out_outputs(tested: _Tested, weight: Tensor, factor: Tensor) -> Tensor:
    """Return the ridge's outputs, (N, C); on an example that is part of the sum those without this example.

    They are `(o - h y) / (1 - h)` with the leverage `h = φᵀ (G + λ I)⁻¹ φ`.
    """
    features, inside = tested.features[:, : len(weight)], tested.inside
    outputs = features @ weight
    if bool(inside.any()):
        own = torch.linalg.solve_triangular(factor, features[inside].T, upper=False)
        leverage = own.square().sum(0).clamp(0, 0.999)[:, None]
        targets = one_hot(tested.labels[inside], outputs.shape[1]).double()
        outputs[inside] = (outputs[inside] - leverage * targets) / (1 - leverage)
    return outputs


def _choose_temperature(outputs: Tensor, labels: Tensor) -> float:
    """Return the temperature of the smallest log-loss; labels count as uncertain by one example, which bounds it."""
    outputs, smoothing = outputs.float(), 1 / (1 + len(labels))

    def loss(factor: float) -> float:
        return float(cross_entropy(factor * outputs, labels, label_smoothing=smoothing))

    return min(TEMPERATURES, key=loss)


def held_answers(head: RidgeHead, held: Held, total: Callable[[], Statistics]) -> tuple[Tensor, Tensor]:
    """Return the answers of a head to held-out examples, (N,), and their labels, (N,).

    Parameters
    ----------
    head
        A head that was solved from statistics.
    held
        The examples; a shared one gets the answer that the head would give if it were not in the sum.
    total
        Returns the sum that the head was solved from; it is asked only where shared examples are among the held ones.
    """
    tested = _tested_examples(head.map, held)
    if tested is None:
        return torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    outputs = tested.features @ head.weight.double()
    if bool(tested.inside.any()):
        used = head.map.plain + int(head.chosen["random"])
        factor, weight = _factor(total(), head.chosen["penalty"], used), head.weight[:used].double()
        outputs = _held_out_outputs(tested, weight / head.chosen["temperature"], factor)
    return outputs.masked_fill(head.absent, -torch.inf).argmax(-1), tested.labels


class StatisticsPool:
    """Solves the base from the statistics of whatever experts a model has, and remembers what was solved.

    Parameters
    ----------
    map
        The feature map of all statistics.
    shared
        Returns the shared examples as features, whose statistics are always part of the sum; None where there are none.
    choices
        Returns the examples for choices; None where there are none.
    base
        Returns the hash of the base's weights, which statistics from outside must name.
    head
        A head that was solved before.
    left_out
        How many shared examples are left out in turn at most, where there are few for choices.
    """

    KEPT = 8  # heads that are remembered

    def __init__(
        self,
        map: FeatureMap,
        shared: Callable[[], Split] | None = None,
        choices: Callable[[], Split] | None = None,
        base: Callable[[], str] = str,
        head: RidgeHead | None = None,
        left_out: int = LEFT_OUT,
    ) -> None:
        self.left_out = left_out
        self.map, self.shared, self.choices, self.base = map, shared, choices, base
        self._solved = [head] if head is not None and head.map == map else []
        self._shared_sums: Statistics | None = None

    def head(self, owners: Mapping[str, str], read: Callable[[str], Statistics], classes: Sequence[str]) -> RidgeHead:
        """Return the base of these owners and the shared examples.

        Parameters
        ----------
        owners
            The hash of every owner's statistics, by name.
        read
            Returns the statistics of an owner; they are read only where the head was not solved before.
        classes
            All classes, in the order of the logits; those of shared examples come first.

        Raises
        ------
        RedxError
            Where the head must be solved anew, and there are no shared examples.
        """
        for head in self._solved:
            if head.owners == dict(owners) and head.classes == tuple(classes):
                return head
        if self.shared is None:
            raise RedxError(
                "This model holds no shared examples, so its base cannot be computed anew for other experts; load it "
                "from its run folder, or save it with shared=True."
            )
        total = self.total({name: read(name) for name in owners}, classes)
        choices = self.choices() if self.choices is not None else None
        head = fit_head(total, Held(choices, self.shared(), self.left_out))
        head.owners = dict(owners)
        self._solved = [head, *self._solved][: self.KEPT]
        return head

    def held_answers(
        self, owners: Mapping[str, str], read: Callable[[str], Statistics], classes: Sequence[str]
    ) -> tuple[Tensor, Tensor]:
        """Return what the base of these owners answers to held-out examples, (N,), and their labels, (N,).

        Parameters
        ----------
        owners, read, classes
            As for `head`.
        """
        head = self.head(owners, read, classes)
        choices, shared = (examples() if examples is not None else None for examples in (self.choices, self.shared))
        return held_answers(
            head, Held(choices, shared), lambda: self.total({name: read(name) for name in owners}, classes)
        )

    def total(self, owners: Mapping[str, Statistics], classes: Sequence[str]) -> Statistics:
        """Return the sum of the shared examples' statistics and those of owners."""
        shared = self._shared_statistics(classes)
        total = add_up({f"owner {name}": owners[name] for name in owners} | {"all owners": shared}, classes)
        return replace(total, map=self.map)  # which knows the base

    def _shared_statistics(self, classes: Sequence[str]) -> Statistics:
        if self._shared_sums is None:
            assert self.shared is not None
            shared = self.shared()
            self._shared_sums = collect(self.map, shared.inputs, shared.labels, classes)
        return self._shared_sums

    def forget(self) -> None:
        """Forget what was solved, after the shared examples or those for choices have changed."""
        self._solved, self._shared_sums = [], None

    def check(self, name: str, statistics: Statistics, classes: Sequence[str]) -> None:
        """Refuse statistics from outside that do not belong to this base.

        Parameters
        ----------
        name
            The owner, for the message.
        statistics
            The owner's statistics.
        classes
            The classes of the model, with those that the owner's expert brings.

        Raises
        ------
        RedxError
            Where they are of another feature map, another base, of unknown classes, or no sums of examples.
        """
        if statistics.map != self.map:
            raise RedxError(
                f"The statistics of {name!r} are of another feature map than this model's; {ADVICE} and this run's kit."
            )
        if (ours := self.base()) and statistics.base != ours:
            raise RedxError(f"The statistics of {name!r} were computed on another base; {ADVICE} and this run's kit.")
        if unknown := [label for label in statistics.classes if label not in classes]:
            raise RedxError(
                f"The statistics of {name!r} have the class {unknown[0]!r:.100}, which the expert does not bring; "
                f"{ADVICE}."
            )
        try:
            statistics.check_possible()
        except RedxError as error:
            raise RedxError(f"Expert {name!r}: {error}") from error
