"""What a composed model does about risk: confidences, cut-offs, and calibration whenever its experts change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from redx.composition.abstention import abstention_cutoff, class_means, familiarity
from redx.composition.confidence import confidences
from redx.composition.parts import Parts
from redx.config import BankId, RunConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.models.banks import Bank
from redx.models.base import Base
from redx.models.calibration import Calibration, calibrate
from redx.models.library import ExpertLibrary
from redx.models.ownership import own_class_score
from redx.models.router import KEYS, TrainedRouter

Inputs = Sequence[Any] | Tensor | np.ndarray  # what a user asks about: texts, images, features, pairs of numbers


class RiskControlled:
    """The part of `redx.Model` that controls risk; the model has these attributes."""

    config: RunConfig
    base: Base
    experts: ExpertLibrary
    read: Callable[[Any], Tensor]
    info: Any
    calibration: Calibration | None
    calibration_data: Callable[[], Split] | None
    anchor_data: Callable[[], Split] | None
    classes: Any  # a property of the model
    fixed: dict[BankId, Bank]
    router: TrainedRouter | None
    routing: str
    _known_examples: Any = None  # of abstention: where they come from, class means, scores of held-out ones

    def _has_control(self, bank_id: BankId) -> bool:
        return bank_id in self.config.banks and self.config.banks[bank_id].controlled

    def _controlled(self, parts: Parts, library: ExpertLibrary, claims: Tensor, columns: Tensor | None = None) -> Parts:
        """Return the record with confidences and cut-offs, given the claims of these experts, (N, K).

        Where the record holds some experts of each example alone, `columns`, (N, T), says which of the library.
        """
        calibration = self.calibrated()
        if calibration.answers and columns is None:
            claims = _all_claims(library, parts, claims)
        elif calibration.answers and columns is not None:
            claims = claims.scatter(1, columns, _all_claims(library, parts, claims.gather(1, columns), columns))
        sure = confidences(calibration.score, parts.base, parts.residuals, claims, columns)
        return parts.with_confidences(sure, calibration.cutoffs)

    def _with_gain(self, parts: Parts, bank_id: BankId, library: ExpertLibrary, columns: Tensor | None = None) -> Parts:
        """Return the record with gates of `keys` that also count what the answers of these experts say.

        Only where experts bring classes: the others have never seen examples of those, and may claim them. So a gate is
        the ownership score, the log-odds of the expert's own classes in its answer, and what it gains over the base.
        `columns` are as in `_controlled`.
        """
        by_keys = self.routing == KEYS or self.router is None
        if not self.experts.new_classes or not by_keys or not bank_id.corrects_base or bank_id in self.fixed:
            return parts
        claims = _all_claims(library, parts, parts.gates, columns)
        return replace(parts, gates=confidences("all", parts.base, parts.residuals, claims))

    def calibrated(self) -> Calibration:
        """Return the calibration for the experts that the model has now.

        It is computed anew on the model's calibration examples whenever an expert has been added, removed or replaced.

        Raises
        ------
        RedxError
            Where the experts have changed and the model has no calibration examples.
        """
        experts, before = list(self.experts), self.calibration
        if before is not None and before.covers(experts):
            return before
        if self.calibration_data is None:
            raise RedxError(
                "The experts of this model have changed, and it holds no examples to calibrate them on; "
                "give some with model.calibrate(inputs, labels, risk=…)."
            )
        risk, confidence = (before.risk, before.confidence) if before else (self.config.risk, self.config.confidence)
        self.calibration = self._calibrate(self.calibration_data(), risk, confidence)
        return self.calibration

    def calibrate(
        self,
        inputs: Inputs | None = None,
        labels: Sequence[Any] | None = None,
        *,
        risk: float | None = None,
        confidence: float | None = None,
    ) -> Calibration:
        """Set the risk that the model keeps, on its own calibration examples or on these.

        Parameters
        ----------
        inputs, labels
            Examples that nothing was trained or chosen on; by default the calibration examples of the run.
        risk
            Bound on the harm of the worst router, from 0 to 1; by default 0.01, or the smallest that the examples
            support.
        confidence
            None: the bound holds on average over calibration sets. Otherwise it holds with this probability.

        Returns
        -------
        Calibration
            The risk, the cut-offs and the thresholds of the examples.

        Examples
        --------
        >>> import redx
        >>> model = redx.load("runs/intents")  # doctest: +SKIP
        >>> model.calibrate(risk=0.005).cutoffs.simplex  # doctest: +SKIP
        """
        if self.config.controlled_bank is None:
            raise RedxError("This model has no experts under risk control; make a run with the bank residual/risk.")
        if inputs is None:
            self.calibration = self.calibrated().at(risk, confidence)
            return self.calibration
        if labels is None or len(labels) != len(inputs):
            raise RedxError("Calibration needs the true label of every example; give as many labels as inputs.")
        known = {name: index for index, name in enumerate(self.classes)}
        indices = [known.get(str(label), -1) if known else int(label) for label in labels]
        split = Split(self.base.embed(self.read(inputs)), torch.tensor(indices), torch.full((len(indices),), -1))
        self.calibration_data = lambda: split
        self.calibration = self._calibrate(split, risk, confidence)
        return self.calibration

    def _calibrate(self, split: Split, risk: float | None, confidence: float | None) -> Calibration:
        """Return the calibration of the present experts on features with labels."""
        bank_id = self.config.controlled_bank
        assert bank_id is not None
        with torch.no_grad():
            base = self.experts.extended_base.classify(split.inputs) / self.info.unit
        residuals = self.experts.outputs(bank_id, split.inputs) / self.info.unit
        claims, domains = self.experts.claims(split.inputs), torch.full_like(split.labels, -1)
        parts = Parts(base, residuals, torch.zeros_like(claims), split.labels, domains)
        sure = confidences(self.config.score, base, residuals, _all_claims(self.experts, parts, claims))
        answers = bool(self.experts.new_classes) and self.experts.own_classes() is not None
        parts = replace(parts, confidences=sure)
        return calibrate(parts, risk, confidence, self.config.score, list(self.experts), answers)

    # --- abstention

    def is_strange(self, inputs: Inputs, rate: float = 0.05) -> Tensor:
        """Return which inputs look like none of the known classes, (N,).

        Parameters
        ----------
        inputs
            What the task reads.
        rate
            Largest share of inputs of known classes that may be taken for strangers.
        """
        return self.are_strange(self.base.embed(self.read(inputs)), rate)

    def are_strange(self, h: Tensor, rate: float = 0.05) -> Tensor:
        """Return what `is_strange` returns, for features, (N, E) to (N,)."""
        score, cutoff = self._familiarity(rate)
        return score(h) < cutoff

    def _familiarity(self, rate: float) -> tuple[Callable[[Tensor], Tensor], float]:
        """Return the score of features, and the cut-off that keeps the rate of false abstentions."""
        if not self.info.classes:
            raise RedxError("This model answers with numbers and knows no classes; leave out abstain.")
        if self.anchor_data is None or self.calibration_data is None:
            raise RedxError("This model has no shared examples to compare with; load it from its run folder.")
        known, compared = self._known_examples, self.base.encoder.compared
        now = self.anchor_data, self.calibration_data, tuple(self.experts)  # experts may bring classes
        if known is None or known[0] != now:
            anchors, held = self.anchor_data(), self.calibration_data()
            means = class_means(anchors.inputs[:, compared], anchors.labels)
            means = torch.cat([means, *self._new_class_means(anchors.inputs)])
            known = self._known_examples = now, means, familiarity(held.inputs[:, compared], means)
        _, means, scores = known
        return lambda h: familiarity(h[:, compared], means), abstention_cutoff(scores, rate)

    def _new_class_means(self, like: Tensor) -> list[Tensor]:
        """Return the mean features of the classes that each expert brings, as compared, with the dtype of features."""
        means = [expert.tensors("new_classes").get("means", like[:0]) for expert in self.experts if expert.new_classes]
        means = [mean.to(like.dtype) for mean in means if mean.shape[1:] == like.shape[1:]]
        compared = self.base.encoder.compared
        return means if compared == slice(None) else [normalize(mean[:, compared], dim=-1) for mean in means]


def _all_claims(library: ExpertLibrary, parts: Parts, claims: Tensor, columns: Tensor | None = None) -> Tensor:
    """Return the ownership scores, (N, K), which count twice what an expert knows where experts bring classes.

    An ownership score has never seen the new classes of other experts and may claim them. The expert's own answer is a
    second opinion: the log-odds of its own classes, from another network that was trained on the same examples. Where
    record and scores hold some experts alone, (N, T), `columns` says which of the library.
    """
    own = library.own_classes() if library.new_classes else None
    if own is None:
        return claims
    own = own.to(claims.device)
    return claims + own_class_score(parts.base[:, None] + parts.residuals, own if columns is None else own[columns])
