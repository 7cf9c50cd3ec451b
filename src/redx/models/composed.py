"""A composed model: base, experts and router, put together by a rule at the moment of asking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redx.composition import rules
from redx.composition.evaluation import certify, predict
from redx.composition.parts import Parts
from redx.composition.rules import Rule
from redx.config import RunConfig
from redx.errors import RedxError
from redx.io import files
from redx.models import card
from redx.models.banks import Bank, run_bank
from redx.models.base import Base
from redx.models.library import CLOSED_GATE, ExpertLibrary
from redx.models.router import NetworkRouter

Key = tuple[str, str]  # form and name of a bank


@dataclass(frozen=True)
class ModelInfo:
    """What a model knows of its task."""

    domains: tuple[str, ...]  # of the data
    classes: tuple[str, ...]  # empty for a regression
    belongs: tuple[int, ...]  # the domain of each class; -1 where several have it
    unit: float = 1.0
    shape: tuple[int, ...] = ()  # of one input
    routed: tuple[str, ...] = ()  # the experts that the trained router has gates for, in its order


@dataclass
class Model:
    """What `redx.load` gives: ask it with `predict`, look inside with `explain`, change it for a while with `using`."""

    facts: ModelInfo
    config: RunConfig
    read: Callable[[Sequence[Any] | Tensor], Tensor]
    base: Base
    experts: ExpertLibrary
    router: NetworkRouter | None  # None: the experts' own scores are the gates
    fixed: dict[Key, Bank] = field(default_factory=dict)  # what does not go by expert: pooled, averaged, joint
    own_router: dict[Key, NetworkRouter] = field(default_factory=dict)  # of banks that were trained with one
    rule: str = "red"
    routing: str = "router"  # who gives the gates: the trained router, or `keys`
    decomposer: Callable[[], Any] | None = None  # loads what turns a sentence into steps
    figures: dict[str, Any] = field(default_factory=dict)  # what was measured, for the model card
    home: Path | None = None  # the seed's folder that it was read from

    def __post_init__(self) -> None:
        if self.router is None:
            self.routing = "keys"
        if rules.get_rule(self.rule.split("/")[0]).form not in {form for form, _ in self.banks}:
            self.rule = "moe"

    @property
    def domains(self) -> tuple[str, ...]:
        """The experts' names, in order."""
        return self.experts.names

    def name_domains(self) -> tuple[str, ...]:
        """The experts, then domains of the data that have none here."""
        return (*self.domains, *(name for name in self.facts.domains if name not in self.experts))

    def places(self, domains: Tensor) -> Tensor:
        """Domains counted as in the data, (N,), counted as in `name_domains`."""
        names = self.name_domains()
        return torch.tensor([names.index(name) for name in self.facts.domains])[domains]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.facts.classes

    @property
    def banks(self) -> list[Key]:
        """The banks that can be asked; joint and averaged ones only while the experts are those they were made of."""
        by_expert = [(form, name) for form, name in (key.split("/") for key in self.experts.banks)]
        whole = set(self.domains) == set(self.facts.domains)
        return by_expert + [key for key in self.fixed if whole or key[0] == "pooled"]

    def bank(self, key: Key) -> Bank:
        """A bank as one stack."""
        return self.fixed[key] if key in self.fixed else self.experts.stack("/".join(key))

    def parts(self, inputs: Sequence[Any] | Tensor) -> Parts:
        """The record of these inputs for the model's rule; labels and domains are unknown, so -1."""
        h = self.base.embed(self.read(inputs))
        unknown = torch.full((len(h),), -1)
        return self.describe(h, self.chosen()[1], unknown, unknown)

    def describe(self, h: Tensor, bank: Key, labels: Tensor, domains: Tensor) -> Parts:
        """The record of examples given as features, for one bank; domains count as in `domains`."""
        said = self._speak(bank, h) / self.facts.unit  # (N, K, C)
        with torch.no_grad():
            logits = self.base.classify(h) / self.facts.unit
        return Parts(logits, said, self.gates(h, bank)[:, : said.shape[1]], labels, domains)

    def _speak(self, bank: Key, h: Tensor, chosen: Tensor | None = None) -> Tensor:
        if bank in self.fixed:
            return run_bank(self.fixed[bank], h)
        return self.experts.speak("/".join(bank), h, chosen)

    def gates(self, h: Tensor, bank: Key | None = None) -> Tensor:
        """A gate for every expert, (N, E) to (N, K): the router's, or (keys) the experts' own scores."""
        if self.routing == "keys" or self.router is None:
            return self.experts.scores(h)
        lacking = [name for name in self.domains if name not in self.facts.routed]
        if lacking:
            raise RedxError(
                f"The router has no gate for the expert {lacking[0]!r}, for its width is fixed; retrain it with "
                "`redx router train RUN`, or route by the experts' own scores (--router keys)."
            )
        router = self.own_router.get(bank, self.router) if bank else self.router
        with torch.no_grad():
            return router(h)[:, [self.facts.routed.index(name) for name in self.domains]]

    def predict(self, inputs: Sequence[Any] | Tensor, top: int | None = None) -> list[Any]:
        """The answer to each input: the label, or the number of a regression; `top` asks only so many experts each."""
        rule, bank = self.chosen()
        if top is None or not rule.routed:
            said = certify(rule, self.parts(inputs)).predicted
        else:
            said = self._sparse(self.base.embed(self.read(inputs)), rule, bank, top)
        return [self._label(int(each)) for each in said]

    def _sparse(self, h: Tensor, rule: Rule, bank: Key, top: int) -> Tensor:
        """Answers by the first experts of each example alone; the others are not even read: (N,)."""
        if not 1 <= top <= len(self.experts):
            raise RedxError(f"There are {len(self.experts)} experts; ask the first 1 to {len(self.experts)} of them.")
        gates = self.gates(h, bank)
        first = gates.topk(top, -1).indices  # (N, top)
        used = first.unique()  # columns that anybody needs
        names = [self.domains[place] for place in used.tolist()]
        chosen = torch.zeros_like(gates, dtype=torch.bool).scatter_(1, first, True)[:, used]
        some = Parts(
            self.base.classify(h) / self.facts.unit,
            self.experts.only(names).speak("/".join(bank), h, chosen) / self.facts.unit,
            gates[:, used].masked_fill(~chosen, CLOSED_GATE),
            *[torch.full((len(h),), -1)] * 2,
        )
        return predict(rule, some, rule.weights(some))

    def explain(self, inputs: Sequence[Any] | Tensor) -> list[dict[str, Any]]:
        """For each input: answer, its domain, the base's answer, first expert, weights, contributions and radius."""
        rule, _ = self.chosen()
        parts = self.parts(inputs)
        weights, judged = rule.weights(parts), certify(rule, parts)
        base = certify(rules.get_rule("base"), parts).predicted
        names = self.domains if weights.shape[1] == len(self.domains) else ("pooled",)
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
    def using(
        self,
        rule: str | None = None,
        without: Sequence[str] = (),
        adding: Sequence[str | Path] = (),
        router: str | None = None,
    ) -> Iterator[Model]:
        """For a while: another rule, without some experts, with others from their folders, or another router."""
        if router not in (None, "router", "keys"):
            raise RedxError(f"There is no router {router!r}; choose router (the trained one) or keys.")
        before = self.rule, self.routing
        self.rule, self.routing = rule or self.rule, router or self.routing
        try:
            with self.experts.changing() as library:
                for name in without:
                    library.remove(name)
                for folder in adding:
                    library.add(folder)
                self.chosen()
                yield self
        finally:
            self.rule, self.routing = before

    def chosen(self) -> tuple[Rule, Key]:
        """The model's rule, and the bank that it reads."""
        name, _, bank = self.rule.partition("/")
        rule = rules.get_rule(name)
        chosen = rule.form, bank or self.config.main.get(rule.form, "")
        if chosen not in self.banks:
            have = ", ".join(f"{form} bank {name}" for form, name in self.banks)
            raise RedxError(f"Rule {self.rule!r} needs a {rule.form} bank; this model has {have}.")
        return rule, chosen

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model as it stands to a folder that `redx.load` reads, with a model card."""
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise RedxError(f"{folder} is not empty; choose another folder.")
        joint = set(self.domains) == set(self.facts.domains) and self.config.integrate
        config = self.config.model_copy(update={"seeds": self.config.seeds[:1], "integrate": joint})
        place = folder / f"seed-{config.seeds[0]}"
        files.write_tensors(place / "base.safetensors", self.base.tensors())
        for expert in self.experts:
            expert.save(place / "experts" / expert.name)
        if self.router is not None:
            files.write_tensors(place / "router.safetensors", self.router.state_dict())
        for name in ("pooled", "shared", "integration", "decomposer"):
            if self.home is not None and (file := self.home / f"{name}.safetensors").exists():
                files.write_bytes(place / file.name, file.read_bytes())
        files.write_json(place / "model.json", asdict(self.facts))
        if self.figures:
            files.write_json(folder / "summary.json", self.figures)
        told = card.model_card(config, self.classes, (expert.facts for expert in self.experts), self.figures)
        files.write_bytes(folder / "README.md", told.encode())
        files.write_json(folder / "config.json", config.model_dump(mode="json"))

    def _range(self, said: int) -> str | None:
        """The domain that an answer belongs to, where it belongs to one alone."""
        place = self.facts.belongs[said] if self.classes else -1
        return self.facts.domains[place] if place >= 0 else None

    def _label(self, said: int) -> Any:
        return self.classes[said] if self.classes else said
