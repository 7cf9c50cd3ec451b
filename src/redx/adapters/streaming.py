"""Streams of vocabulary-sized `Parts`: scores exist for a few positions of one document at a time.

Windows of documents run as mixed batches: a row for the base, one for every adapter, and one for every merge. The
router reads the mean hidden state of the tokens before the predicted one. What is kept of the test documents is a
shortlist of the vocabulary for every position, with the losses over the whole of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from redx.adapters.composed import ComposedLM
from redx.adapters.documents import Window
from redx.adapters.routing import running_mean
from redx.adapters.shortlist import shortlist
from redx.composition.confidence import confidences
from redx.composition.evaluation import Banks
from redx.composition.parts import Losses, Parts
from redx.composition.risk import RiskControl
from redx.composition.rules import RULES, compose
from redx.config import BankId
from redx.io.progress import progress

TOGETHER = 4  # windows that run through the model at once
POSITIONS = 16  # whose scores exist at once
PLAIN, KEYED, CONTROLLED = (BankId("residual", name) for name in ("plain", "keys", "risk"))
MIXED = ("red", "fixed")  # rules that mix several adapters
VERTICES = 2  # tokens of a shortlist where only single rows count: the label and the best other one


Watch: TypeAlias = "Callable[[Positions, Parts], None]"  # is given what is streamed


@dataclass(frozen=True)
class Positions:
    """Scores at some positions of one document.

    Attributes
    ----------
    logits
        Of base, adapters and merges, (1 + K + M, P, C).
    labels
        The next tokens, (P,).
    gates, ownership
        Gates of the router and ownership scores of the adapters, (P, K).
    domain, document
        Index of the document's domain, and of the document.
    """

    logits: Tensor
    labels: Tensor
    gates: Tensor
    ownership: Tensor
    domain: int
    document: int

    @property
    def experts(self) -> int:
        """The number of adapters K."""
        return self.gates.shape[1]

    def parts(self, score: str) -> Parts:
        """Return the record over the whole vocabulary, with confidences of this score."""
        base, residuals = self._base_and_residuals(self.logits[: 1 + self.experts])
        return self._record(base, residuals, self.labels, confidences(score, base, residuals, self.ownership))

    def _base_and_residuals(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return logits[0], (logits[1:] - logits[0]).transpose(0, 1).contiguous()

    def _record(self, base: Tensor, residuals: Tensor, labels: Tensor, sure: Tensor | None = None) -> Parts:
        domains, groups = (torch.full_like(labels, value) for value in (self.domain, self.document))
        return Parts(base, residuals, self.gates, labels, domains, sure, groups=groups)

    def shortlisted(self, score: str, control: RiskControl, merges: Sequence[str], watch: Watch | None = None) -> Banks:
        """Return what is kept of the positions: a record over a shortlist for every bank, with losses.

        Parameters
        ----------
        score
            Name of the confidences.
        control
            The calibrated risk control of the bank `risk`.
        merges
            Names of the merges, in the order of their rows.
        watch
            Is given the positions and the record over the whole vocabulary.
        """
        whole = self.parts(score)
        if watch is not None:
            watch(self, whole)
        losses = self._row_losses()  # (R, P)
        own = losses[1 : 1 + self.experts].T
        logits, labels = shortlist(self.logits[: 1 + self.experts], self.labels)
        base, residuals = self._base_and_residuals(logits)
        banks: Banks = {}
        for bank_id, record in (
            (PLAIN, whole.with_confidences(self.gates, None)),
            (KEYED, whole.with_gates(self.ownership)),
            (CONTROLLED, control.apply(whole)),
        ):
            mixed = {name: self._mixed_losses(name, record) for name in MIXED}
            cutoff = None if record.cutoffs is None else record.cutoffs.simplex
            assert not isinstance(cutoff, torch.Tensor)  # documents are controlled together
            sure = record.confidences if record.cutoffs is not None else None
            short = Parts(base, residuals, record.gates, labels, record.domains, sure, record.cutoffs, record.groups)
            banks[bank_id] = _with_losses(short, Losses(losses[0], own, mixed, cutoff))
        for row, name in enumerate(merges, start=1 + self.experts):
            logits, labels = shortlist(self.logits[[0, row]], self.labels, VERTICES)
            gates = torch.zeros(len(labels), 1)
            short = Parts(logits[0], logits[1][:, None], gates, labels, whole.domains, groups=whole.groups)
            banks[BankId("averaged", name)] = _with_losses(short, Losses(losses[0], losses[row][:, None], {}))
        return banks

    def _row_losses(self) -> Tensor:
        """Return the loss of every row, (R, P)."""
        rows, positions, _ = self.logits.shape
        labels = self.labels.expand(rows, -1).flatten()
        return cross_entropy(self.logits.flatten(0, 1), labels, reduction="none").view(rows, positions)

    def _mixed_losses(self, name: str, record: Parts) -> Tensor:
        scores = compose(name, record, RULES[name].weights(record))
        return cross_entropy(scores, self.labels, reduction="none")


def _with_losses(parts: Parts, losses: Losses) -> Parts:
    return Parts(**parts.tensors(), cutoffs=parts.cutoffs, losses=losses)


@torch.inference_mode()
def stream(
    composed: ComposedLM, windows: Sequence[Window], merges: Sequence[str] = (), title: str = "reading"
) -> Iterator[Positions]:
    """Yield the scores of windows, a few positions at a time.

    Parameters
    ----------
    composed
        The model with all adapters and merges.
    windows
        One window per document.
    merges
        Names of those adapters of the model that are merges and no experts.
    title
        Shown meanwhile.
    """
    experts = [name for name in composed.names if name not in merges]
    rows = [None, *experts, *merges]
    head, owners = composed.base.model.get_output_embeddings(), composed.owners(experts)
    middle, document = composed.base.model.config.num_hidden_layers // 2, 0
    with progress(title, len(windows)) as advance:
        for _, alike in itertools.groupby(windows, key=lambda window: len(window.tokens)):
            while group := list(itertools.islice(alike, TOGETHER)):
                tokens = torch.stack([window.tokens[:-1] for window in group])  # (G, T)
                output = composed.stack.forward(
                    rows * len(group),
                    tokens.repeat_interleave(len(rows), 0),
                    output_hidden_states=True,
                    use_cache=False,
                    logits_to_keep=1,
                )
                for place, window in enumerate(group):
                    own = slice(place * len(rows), (place + 1) * len(rows))
                    context = running_mean(output.hidden_states[middle][own][:1].float())[0]  # (T, D)
                    gates, ownership = composed.gates(context, experts), owners.ownership_scores(context)
                    final, last = output.hidden_states[-1][own], output.logits[own][:, -1]
                    whole = None
                    if not torch.allclose(head(final[:, -1]), last, atol=1e-3):  # the head is adapted itself
                        whole = composed.stack.forward(rows, tokens[place].expand(len(rows), -1), use_cache=False)
                    for start in range(0, tokens.shape[1], POSITIONS):
                        part = slice(start, start + POSITIONS)
                        logits = head(final[:, part]) if whole is None else whole.logits[:, part]
                        labels = window.tokens[1:][part]
                        yield Positions(logits.float(), labels, gates[part], ownership[part], window.domain, document)
                    document += 1
                    advance(1)


def shortlisted_parts(
    composed: ComposedLM,
    windows: Sequence[Window],
    score: str,
    control: RiskControl,
    merges: Sequence[str],
    watch: Watch | None = None,
) -> Banks:
    """Return the records of test windows over shortlists, by bank; see `Positions.shortlisted`."""
    pieces: dict[BankId, list[Parts]] = {}
    for positions in stream(composed, windows, merges, "testing"):
        with torch.inference_mode():
            for bank_id, parts in positions.shortlisted(score, control, merges, watch).items():
                pieces.setdefault(bank_id, []).append(parts)
    return {bank_id: Parts.concatenate(parts) for bank_id, parts in pieces.items()}
