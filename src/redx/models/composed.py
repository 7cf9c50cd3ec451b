"""A composed model: base, experts and router, put together by a rule when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redx.composition.evaluation import certify, predict
from redx.composition.parts import Parts
from redx.composition.rules import Rule, RuleId, contributing, get_rule
from redx.config import BankId, RunConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.models.banks import Bank, run_bank
from redx.models.base import Base
from redx.models.calibration import Calibration
from redx.models.classes import add_floor
from redx.models.controlled import Inputs, RiskControlled
from redx.models.explanation import Explanation as Explanation  # part of the interface of this module
from redx.models.library import ExpertLibrary, order_domains
from redx.models.router import KEYS, TRAINED, KeyRouter, Router, TrainedRouter, check_routing


@dataclass(frozen=True)
class ModelInfo:
    """What a model knows of its task; the content of `model.json`."""

    domains: tuple[str, ...]  # domains of the data
    classes: tuple[str, ...]  # empty for a regression
    belongs: tuple[int, ...]  # the domain of each class; -1 where several domains have it
    unit: float = 1.0  # what one unit of a regression's answer is in the network's output
    shape: tuple[int, ...] = ()  # shape of one input
    routed: tuple[str, ...] = ()  # experts that the trained router has gates for, in its order


@dataclass
class Model(RiskControlled):
    """A composed model, as `redx.load` returns it.

    Ask it with `predict`, look inside with `explain`, change it for a while with `using`, and change its experts with
    `model.experts`.

    Attributes
    ----------
    info, config
        What the model knows of its task, and the settings of the run that it comes from.
    read
        Turns a user's inputs into the tensor that the encoder reads.
    base, experts, router
        The frozen base, the library of experts, and the trained router; None where there is only `keys`.
    fixed
        Banks that are not made of the library's experts: pooled, averaged and jointly trained ones.
    joint_routers
        Routers that were trained together with a bank.
    rule
        The rule that `predict` and `explain` use, such as `red` or `red/anchored`.
    routing
        Which router gives the gates: `router` (the trained one) or `keys`.
    decomposer
        Loads the decomposer of a run of `steps`.
    figures
        The summary of the run, for the model card.
    home
        The folder of the seed that the model was read from.
    calibration
        The risk that the model keeps and the cut-offs that follow from it; None where no bank has risk control.
    calibration_data
        Returns the held-out examples that it is calibrated on, as features; None where the model has none.
    anchor_data
        Returns the shared examples that the base was trained on, as features; None where the model has none.

    Examples
    --------
    >>> import redx
    >>> model = redx.load("runs/toy")  # doctest: +SKIP
    >>> model.predict([[12, 5], [90, 99]])  # doctest: +SKIP
    [17, 189]
    """

    info: ModelInfo
    config: RunConfig
    read: Callable[[Any], Tensor]
    base: Base
    experts: ExpertLibrary
    router: TrainedRouter | None
    fixed: dict[BankId, Bank] = field(default_factory=dict)
    joint_routers: dict[BankId, TrainedRouter] = field(default_factory=dict)
    rule: str = "red"
    routing: str = TRAINED
    decomposer: Callable[[], Any] | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    home: Path | None = None
    calibration: Calibration | None = None
    calibration_data: Callable[[], Split] | None = None
    anchor_data: Callable[[], Split] | None = None

    def __post_init__(self) -> None:
        if self.router is None:
            self.routing = KEYS
        if get_rule(RuleId.parse(self.rule).rule).form not in {bank_id.form for bank_id in self.banks}:
            self.rule = "moe"

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, in the order of the logits: the base's, then those that experts bring; empty for a regression."""
        return self.info.classes + self.experts.new_classes

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The domains as `Parts.domains` counts them: the experts, then domains of the data without an expert."""
        return order_domains(self.experts.names, self.info.domains)

    def expert_index(self, domains: Tensor) -> Tensor:
        """Return domains that count as in the data, (N,), as indices into `domain_names`."""
        names = self.domain_names
        return torch.tensor([names.index(name) for name in self.info.domains])[domains]

    @property
    def is_complete(self) -> bool:
        """Whether the experts are those of the run, one per domain of the data, with the classes of the base."""
        return set(self.experts.names) == set(self.info.domains) and not self.experts.new_classes

    @property
    def banks(self) -> list[BankId]:
        """The banks that can be asked; joint and averaged ones only while the experts are those of the run."""
        fixed = [bank_id for bank_id in self.fixed if self.is_complete or bank_id.form == "pooled"]
        return [*self.experts.banks, *fixed]

    def bank(self, bank_id: BankId) -> Bank:
        """Return a bank as one stack."""
        return self.fixed[bank_id] if bank_id in self.fixed else self.experts.stacked_bank(bank_id)

    # --- parts

    def parts(self, inputs: Inputs) -> Parts:
        """Return the `Parts` of inputs for the model's rule; labels and domains are unknown, so -1."""
        return self._parts_of_features(self.embed(inputs))

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the standardised features of inputs, (N, E): what base, experts and router read."""
        return self.base.embed(self.read(inputs))

    def _parts_of_features(self, h: Tensor) -> Parts:
        unknown = torch.full((len(h),), -1)
        return self.parts_of(h, self.rule_and_bank()[1], unknown, unknown)

    def parts_of(self, h: Tensor, bank_id: BankId, labels: Tensor, domains: Tensor) -> Parts:
        """Return the `Parts` of features for one bank.

        Parameters
        ----------
        h
            Features of shape (N, E), as `base.embed` returns them.
        bank_id
            The bank to run.
        labels, domains
            Tensors of shape (N,); domains count as in `domain_names`, and -1 is unknown.

        Returns
        -------
        Parts
            Base logits, residuals and gates of these examples.
        """
        fixed, new = self.fixed.get(bank_id), len(self.experts.new_classes)
        outputs = add_floor(run_bank(fixed, h), new) if fixed else self.experts.outputs(bank_id, h)
        gates, claims = self._gates_and_claims(h, bank_id)
        parts = Parts(self._base_logits(h), self._in_units(outputs), gates[:, : outputs.shape[1]], labels, domains)
        parts = self._with_gain(parts, bank_id, self.experts)
        if not self._has_control(bank_id):
            return parts
        return self._controlled(parts, self.experts, self.experts.claims(h) if claims is None else claims)

    def _base_logits(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            return self._in_units(self.experts.extended_base.classify(h))

    def _in_units(self, outputs: Tensor) -> Tensor:
        """Return outputs of networks in the units of the answers."""
        return outputs if self.info.unit == 1 else outputs / self.info.unit

    def gates(self, h: Tensor, bank_id: BankId | None = None) -> Tensor:
        """Return one gate per expert, (N, E) to (N, K), from the router that is in use."""
        return self._gates_and_claims(h, bank_id)[0]

    def _gates_and_claims(self, h: Tensor, bank_id: BankId | None) -> tuple[Tensor, Tensor | None]:
        """Return the gates, and the ownership scores, (N, K) each, where the gates are made of them."""
        router = self._router_of(bank_id)
        gates = router.gates(h, self.experts)
        if isinstance(router, KeyRouter):
            return gates, gates
        if router is not self.router or not self.config.router.claims or not self.config.has_ownership:
            return gates, None
        claims = self.experts.claims(h)
        return gates + claims, claims

    def _router_of(self, bank_id: BankId | None) -> Router:
        if self.routing == KEYS or self.router is None:
            return KeyRouter()
        return self.joint_routers.get(bank_id, self.router) if bank_id else self.router

    def route_by_keys_if_needed(self) -> None:
        """Route by `keys` where the trained router lacks a gate for one of the experts."""
        if self.router is not None and self.router.missing(self.experts.names):
            self.routing = KEYS

    # --- answers

    def predict(self, inputs: Inputs, top: int | None = None, abstain: float | None = None) -> list[Any]:
        """Return the answer to each input: a label, or the number of a regression.

        Parameters
        ----------
        inputs
            What the task reads: texts, images, features or pairs of numbers.
        top
            Run only this many experts per example, those with the largest gates; others are not even read from disk.
            The score `contest` then compares the claims of the experts that some example needs, unless the gates read
            all claims, so that the risk that was calibrated for all experts is kept only approximately.
        abstain
            Answer None where an input looks like none of the known classes. This is the largest share of inputs of
            known classes on which that may happen, such as 0.05.

        Returns
        -------
        list
            One answer per input; None where the model abstains.
        """
        (rule, bank_id), h = self.rule_and_bank(), self.embed(inputs)
        if top is None or not rule.routed:
            parts = self._parts_of_features(h)
            predicted = predict(rule, parts, rule.weights(parts))
        else:
            predicted = self._predict_sparse(h, rule, bank_id, top)
        classes, answers = self.classes, predicted.tolist()
        answers = [classes[index] for index in answers] if classes else answers
        if abstain is None:
            return answers
        strange = self.are_strange(h, abstain).tolist()
        return [None if odd else answer for answer, odd in zip(answers, strange, strict=True)]

    def _predict_sparse(self, h: Tensor, rule: Rule, bank_id: BankId, top: int) -> Tensor:
        if not 1 <= top <= len(self.experts):
            raise RedxError(f"There are {len(self.experts)} experts; ask the first 1 to {len(self.experts)} of them.")
        gates, claims = self._gates_and_claims(h, bank_id)
        first = gates.topk(top, -1, sorted=False).indices.sort(-1).values  # (N, top), in the order of the experts
        used, places = first.unique(return_inverse=True)  # columns that any example needs, and each one's among them
        library = self.experts.at(used.tolist())
        outputs = self._in_units(library.first_outputs(bank_id, h, places))
        unknown = torch.full((len(h),), -1)
        parts = Parts(self._base_logits(h), outputs, gates.gather(1, first), unknown, unknown)
        parts = self._with_gain(parts, bank_id, library, places)
        if self._has_control(bank_id):
            known = (library, library.claims(h), places) if claims is None else (self.experts, claims, first)
            parts = self._controlled(parts, *known)
        return predict(rule, parts, rule.weights(parts))

    def explain(self, inputs: Inputs) -> list[Explanation]:
        """Return for each input the answer, the weights and contributions of the experts, and the exact radius."""
        return self.explain_features(self.embed(inputs))

    def explain_features(self, h: Tensor) -> list[Explanation]:
        """Return what `explain` returns, for features that `embed` returned, (N, E)."""
        rule, _ = self.rule_and_bank()
        parts = self._parts_of_features(h)
        weights, certified = rule.weights(parts), certify(rule, parts)
        parts = contributing(rule, parts)
        base = certify(get_rule("base"), parts).predicted
        names = self.experts.names if weights.shape[1] == len(self.experts) else ("pooled",)
        explanations = []
        for row, predicted in enumerate(certified.predicted.tolist()):
            column = predicted if self.classes else 0
            contributions = weights[row] * rule.read(parts.residuals[row])[:, column]
            explanation = Explanation(
                answer=self._label(predicted),
                range=self._domain_of_answer(predicted),
                expert=names[int(weights[row].argmax())],
                base=self._label(int(base[row])),
                weights=dict(zip(names, weights[row].tolist(), strict=True)),
                contributions=dict(zip(names, contributions.tolist(), strict=True)),
                radius=float(certified.radius[row]),
            )
            explanations.append(explanation)
        return explanations

    @contextmanager
    def using(
        self,
        rule: str | None = None,
        without: Sequence[str] = (),
        adding: Sequence[str | Path] = (),
        router: str | None = None,
    ) -> Iterator[Model]:
        """Use another rule, other experts or another router inside a `with` block.

        Parameters
        ----------
        rule
            A rule, or `rule/bank`.
        without
            Names of experts to leave out.
        adding
            Folders of experts to add.
        router
            `router` (the trained one) or `keys`.
        """
        before = self.rule, self.routing
        self.rule, self.routing = rule or self.rule, check_routing(router) if router else self.routing
        try:
            with self.experts.changing() as library:
                for name in without:
                    library.remove(name)
                for folder in adding:
                    library.add(folder)
                self.rule_and_bank()
                yield self
        finally:
            self.rule, self.routing = before

    def rule_and_bank(self) -> tuple[Rule, BankId]:
        """Return the model's rule and the bank that it reads."""
        name, bank = RuleId.parse(self.rule)
        rule = get_rule(name)
        bank_id = BankId(rule.form, bank) if bank else self.config.main_bank(rule.form)
        if bank_id not in self.banks:
            have = ", ".join(f"{form} bank {name}" for form, name in self.banks)
            raise RedxError(f"Rule {self.rule!r} needs a {rule.form} bank; this model has {have}.")
        return rule, bank_id

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model as it is now to a folder that `redx.load` reads, with a model card."""
        from redx.models.persistence import save_model

        save_model(self, Path(folder))

    def _domain_of_answer(self, predicted: int) -> str | None:
        if not self.classes or predicted < len(self.info.classes):
            index = self.info.belongs[predicted] if self.classes else -1
            return self.info.domains[index] if index >= 0 else None
        return self.experts.owner_of(self.classes[predicted])

    def _label(self, predicted: int) -> Any:
        return self.classes[predicted] if self.classes else predicted
