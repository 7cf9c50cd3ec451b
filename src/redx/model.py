"""A composed model: base, banks of experts and router, put together by a rule at the moment of asking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from redx import compose, experts, ownership
from redx.compose import Rule
from redx.config import Bank, Ownership
from redx.errors import RedxError
from redx.evaluate import judge
from redx.experts import LowRank, Stack
from redx.records import Parts, answers
from redx.routers import Router


@dataclass(frozen=True)
class Base:
    """The frozen base: an encoder, the bus that standardises its features, and the shared classifier W_c.

    The classifier reads the first D features, h; experts read all E of them, h and what the encoder gives beside it.
    """

    encoder: nn.Module
    weight: Tensor  # (D, C)
    bias: Tensor  # (C,)
    mean: Tensor  # (E,)
    scale: Tensor  # (E,)

    @staticmethod
    def of(tensors: dict[str, Tensor], encoder: nn.Module) -> Base:
        """The base from its file, with an untrained encoder to fill."""
        inner = {name.removeprefix("encoder."): value for name, value in tensors.items() if name.startswith("encoder.")}
        try:
            encoder.load_state_dict(inner)
            outer = (tensors[name] for name in ("classifier.weight", "classifier.bias", "bus.mean", "bus.scale"))
            return Base(encoder.eval(), *outer)
        except (KeyError, RuntimeError) as error:
            raise RedxError(
                "The file of the base does not fit the run's backbone and trunk; delete the run and repeat it."
            ) from error

    @property
    def width(self) -> int:
        """E, what an expert reads."""
        return len(self.mean)

    @property
    def outputs(self) -> int:
        return self.weight.shape[1]

    def embed(self, inputs: Tensor) -> Tensor:  # (N, ...) -> (N, E)
        with torch.no_grad():
            return (self.encoder(inputs) - self.mean) / self.scale

    def to(self, device: str) -> Base:
        """The same base elsewhere; its encoder moves along."""
        moved = (tensor.to(device) for tensor in (self.weight, self.bias, self.mean, self.scale))
        return Base(self.encoder.to(device), *moved)

    def classify(self, h: Tensor) -> Tensor:  # (..., E) -> (..., C)
        return h[..., : len(self.weight)] @ self.weight + self.bias

    def tensors(self) -> dict[str, Tensor]:
        """All that it consists of, by name."""
        inner = {f"encoder.{name}": tensor for name, tensor in self.encoder.state_dict().items()}
        outer = {"classifier.weight": self.weight, "classifier.bias": self.bias}
        return inner | outer | {"bus.mean": self.mean, "bus.scale": self.scale}


def build(settings: Bank, count: int, base: Base) -> experts.Bank:
    """An untrained bank of `count` experts."""
    hidden = settings.hidden or len(base.weight) // 4
    if settings.shape == "lowrank":
        return LowRank(count, base.width, hidden, base.weight, settings.scale, settings.activation)
    widths = experts.sizes(settings.shape, base.width, base.outputs, hidden, settings.depth)
    return Stack(count, widths, settings.scale, settings.activation)


@dataclass(frozen=True)
class Owners:
    """The experts' scores of what is their own, with the scores their cut-offs are taken from."""

    base: Base
    scorers: experts.Bank
    classes: Tensor | None  # (K, C) which classes are whose, where scores go by classes
    calibration: list[Tensor]  # (n_k,) scores of held-out examples outside domain k
    alpha: float
    contradict: bool  # speak only where the base's answer is none of the own classes

    @staticmethod
    def of(settings: Ownership, files: Sequence[dict[str, Tensor]], base: Base) -> Owners:
        """From the tensors of each expert."""
        by_class = settings.score == "classes"
        simple = Stack(len(files), [base.width, settings.bank.hidden, 1])
        scorers = build(settings.bank, len(files), base) if by_class else simple
        experts.join(scorers, files)
        classes = torch.stack([file["classes"] for file in files]).bool() if by_class else None
        calibration = [file.get("calibration", torch.empty(0)) for file in files]
        return Owners(base, scorers, classes, calibration, settings.alpha, settings.contradict)

    def cutoffs(self, alpha: float | None = None) -> Tensor:  # (K,)
        return torch.tensor([ownership.cutoff(scores, alpha or self.alpha) for scores in self.calibration])

    def scores(self, h: Tensor) -> Tensor:  # (N, E) -> (N, K)
        said = experts.speak(self.scorers, h)
        if self.classes is None:
            return said[..., 0]
        logits = self.base.classify(h)
        scores = ownership.score_classes(logits[:, None] + said, self.classes)
        return ownership.score_against(scores, answers(logits), self.classes) if self.contradict else scores

    def speaks(self, h: Tensor, alpha: float | None = None) -> Tensor:  # (N, K)
        return ownership.speaks(self.scores(h), self.cutoffs(alpha))


@dataclass
class Model:
    """What `redx.load` gives: ask it with `predict`, look inside with `explain`, change it for a while with `using`."""

    domains: tuple[str, ...]
    classes: tuple[str, ...]  # empty for a regression
    belongs: tuple[int, ...]  # the domain of each class; -1 where several have it
    unit: float
    read: Callable[[Sequence[Any] | Tensor], Tensor]
    base: Base
    banks: dict[tuple[str, str], experts.Bank]  # by form and name
    main: dict[str, str]
    router: Router
    own_router: dict[tuple[str, str], Router] = field(default_factory=dict)  # of banks that were trained with one
    owners: Owners | None = None
    owned: frozenset[tuple[str, str]] = frozenset()  # banks whose experts speak only above their cut-offs
    rule: str = "red"
    decomposer: Callable[[], Any] | None = None  # loads what turns a sentence into steps
    _left_out: frozenset[str] = field(default=frozenset())

    def __post_init__(self) -> None:
        if compose.rule(self.rule).form not in {form for form, _ in self.banks}:
            self.rule = "moe"

    def parts(self, inputs: Sequence[Any] | Tensor) -> Parts:
        """The record of these inputs for the model's rule; labels and domains are unknown, so -1."""
        h = self.base.embed(self.read(inputs))
        unknown = torch.full((len(h),), -1)
        parts = self.describe(h, self.chosen()[1], unknown, unknown)
        if parts.experts < len(self.domains):  # one head for all: nobody to leave out
            return parts
        return parts.keep([index for index, name in enumerate(self.domains) if name not in self._left_out])

    def describe(self, h: Tensor, bank: tuple[str, str], labels: Tensor, domains: Tensor) -> Parts:
        """The record of examples given as features, for one bank."""
        said = experts.speak(self.banks[bank], h) / self.unit  # (N, K, C)
        if bank in self.owned and self.owners:
            said = said * self.owners.speaks(h)[..., None]
        with torch.no_grad():
            logits, gates = self.base.classify(h) / self.unit, self.own_router.get(bank, self.router)(h)
        return Parts(logits, said, gates[:, : said.shape[1]], labels, domains)

    def predict(self, inputs: Sequence[Any] | Tensor) -> list[Any]:
        """The answer to each input: the label, or the number of a regression."""
        rule, _ = self.chosen()
        return [self._label(int(said)) for said in judge(rule, self.parts(inputs)).predicted]

    def explain(self, inputs: Sequence[Any] | Tensor) -> list[dict[str, Any]]:
        """For each input: answer, its domain, the base's answer, first expert, weights, contributions and radius."""
        rule, _ = self.chosen()
        parts = self.parts(inputs)
        weights, judged = rule.weights(parts), judge(rule, parts)
        base = judge(compose.rule("base"), parts).predicted
        names = [name for name in self.domains if name not in self._left_out]
        names = names if weights.shape[1] == len(names) else ["pooled"]
        told = []
        for row, said in enumerate(judged.predicted):
            column = int(said) if self.classes else 0
            shares = weights[row]
            contributions = shares * rule.read(parts.residuals[row])[:, column]
            told.append(
                {
                    "answer": self._label(int(said)),
                    "range": self._range(int(said)),
                    "expert": names[int(shares.argmax())],
                    "base": self._label(int(base[row])),
                    "weights": dict(zip(names, shares.tolist(), strict=True)),
                    "contributions": dict(zip(names, contributions.tolist(), strict=True)),
                    "radius": float(judged.radius[row]),
                }
            )
        return told

    @contextmanager
    def using(self, rule: str | None = None, without: Sequence[str] = ()) -> Iterator[Model]:
        """For a while: another rule, or without some experts."""
        strange = [name for name in without if name not in self.domains]
        if strange:
            raise RedxError(f"There is no expert {strange[0]!r}; choose from {', '.join(self.domains)}.")
        before = self.rule, self._left_out
        self.rule, self._left_out = rule or self.rule, self._left_out | set(without)
        try:
            self.chosen()
            yield self
        finally:
            self.rule, self._left_out = before

    def chosen(self) -> tuple[Rule, tuple[str, str]]:
        """The model's rule, and the bank that it reads."""
        name, _, bank = self.rule.partition("/")
        rule = compose.rule(name)
        chosen = rule.form, bank or self.main.get(rule.form, "")
        if chosen not in self.banks:
            have = ", ".join(f"{form} bank {name}" for form, name in self.banks)
            raise RedxError(f"Rule {self.rule!r} needs a {rule.form} bank; this model has {have}.")
        return rule, chosen

    def _range(self, said: int) -> str | None:
        """The domain that an answer belongs to, where it belongs to one alone."""
        place = self.belongs[said] if self.classes else -1
        return self.domains[place] if place >= 0 else None

    def _label(self, said: int) -> Any:
        return self.classes[said] if self.classes else said
