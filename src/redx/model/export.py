"""The composed head as one plain module of tensors, for `torch.export` and for use without the rest of redx."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from redx.composition.confidence import confidences
from redx.errors import RedxError
from redx.models.banks import load_bank
from redx.models.library import CLOSED_GATE
from redx.models.ownership import own_class_score

if TYPE_CHECKING:
    from redx.model.model import Model

RULES = ("base", "red", "fixed", "sum")  # rules whose weights follow from the gates alone


class ComposedHead(nn.Module):
    """Base, experts, router and cut-off of a model: features (N, E) to logits (N, C).

    It computes what the model computes behind its backbone, with all experts as one stack. It is a copy: later changes
    of the model do not reach it.

    Parameters
    ----------
    model
        The model, with one of the rules base, red, fixed and sum, experts of one architecture, and no new classes.

    Raises
    ------
    RedxError
        Where the model cannot be written as one stack.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        rule, bank_id = model.rule_and_bank()
        library = model.experts
        if rule.name not in RULES or bank_id in model.fixed:
            raise RedxError(f"The head of rule {model.rule!r} cannot be exported; choose one of {', '.join(RULES)}.")
        if library.new_classes:
            raise RedxError("Experts that bring classes have outputs of several widths; remove them before the export.")
        self.rule, self.unit = rule.name, model.info.unit
        base = model.base
        self.weight, self.bias = nn.Buffer(base.weight.clone()), nn.Buffer(base.bias.clone())
        self.bank = library.stacked_bank(bank_id)
        on_shared = model.config.banks[bank_id].on_shared
        self.statistics = None if on_shared else copy.deepcopy(library.head)  # the base, where statistics give it
        self.share = library.weight
        self.score: str | None = None
        controlled = model.config.banks[bank_id].controlled
        if controlled or (model.uses_keys and rule.name == "red"):
            stacked = [expert.tensors("ownership") for expert in library]
            self.scorer = load_bank(library.ownership.bank, stacked, base)
            own = [tensors["classes"].bool() for tensors in stacked if "classes" in tensors]
            self.own = nn.Buffer(torch.stack(own)) if own else None  # (K, C)
        if controlled:
            calibration = model.current_control()
            self.score = calibration.score
            answers, silent = library.own_classes(), calibration.quarantined
            self.answers = None if answers is None else nn.Buffer(answers)  # (K, C)
            self.silent = None if silent is None else nn.Buffer(silent)  # (K,)
            if calibration.by == "domain" and calibration.head is not None:
                raise RedxError(
                    "A head whose risk is kept by domain cannot be exported where domains share classes; calibrate the "
                    "model with by='all' before the export."
                )
            classes = torch.eye(base.known) if base.known > 1 else torch.zeros(1, 1)
            cutoff = getattr(calibration.cutoffs_for(classes), rule.adversary or "simplex")
            if not isinstance(cutoff, Tensor):
                cutoff = torch.full((len(classes),), cutoff)
            self.cutoff = nn.Buffer(cutoff)  # by the base's answer, (C,)
        self.router = None if model.uses_keys or model.router is None else model.router.network
        self.places: list[int] | None = None
        if self.router is not None and model.router is not None:
            if missing := model.router.missing(library.names):
                raise RedxError(f"The router has no gate for the expert {missing[0]!r}; train it anew, or use keys.")
            self.places = [model.router.experts.index(name) for name in library.names]
        self.adds_ownership = self.router is not None and model.config.router.add_ownership
        self.eval().requires_grad_(False)

    def forward(self, h: Tensor) -> Tensor:  # (N, E) -> (N, C)
        base = h[:, : len(self.weight)] @ self.weight + self.bias
        read = h.expand(self._count, *h.shape)
        residuals = self.bank(read).transpose(0, 1) / self.unit  # (N, K, C)
        ownership = self._ownership(base, read) if hasattr(self, "scorer") else residuals[..., 0]
        base = base / self.unit
        if self.statistics is not None:
            shared, base = base, self.statistics.classify(h) / self.unit
            residuals = self.share * (residuals + (shared - base)[:, None])
        if self.score is not None:
            cutoff = self.cutoff[base.argmax(-1)][:, None]  # (N, 1)
            sure = confidences(self.score, base, residuals, ownership, None, self.answers, self.silent)
            active = sure > cutoff
            residuals = residuals * active[..., None]
        return base + (self._weights(h, ownership)[..., None] * residuals).sum(1)

    @property
    def _count(self) -> int:
        return next(iter(self.bank.parameters())).shape[0]

    def _ownership(self, base: Tensor, read: Tensor) -> Tensor:
        outputs = self.scorer(read).transpose(0, 1)
        return outputs[..., 0] if self.own is None else own_class_score(base[:, None] + outputs, self.own)

    def _weights(self, h: Tensor, ownership: Tensor) -> Tensor:
        if self.rule == "red":
            gates = ownership
            if self.router is not None and self.places is not None:
                gates = self.router(h)[:, self.places]
                gates = gates + ownership if self.adds_ownership else gates
            if self.score is not None and self.silent is not None:
                gates = gates.masked_fill(self.silent, CLOSED_GATE)
            return gates.softmax(-1)
        share = {"base": 0.0, "fixed": 1 / self._count, "sum": 1.0}[self.rule]
        return torch.full_like(ownership, share)
