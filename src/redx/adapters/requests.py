"""RED by request: its prompt decides once which adapters are active in a text, and how they are mixed.

A request is a test or calibration document whose first tokens are the prompt. The mean hidden state of the prompt gives
the gates of the router and the ownership scores of the adapters, which stay the same for all tokens after it. The risk
of a request (`redx.composition.request_risk`) is controlled on these tokens. Documents that are no longer than the
prompt are left out.

SEED/requests.json, requests.safetensors  the risk control of requests, as risk.json and its thresholds
SEED/request-figures.json                 what the test documents show
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from redx.adapters.streaming import Positions
from redx.composition.parts import Parts
from redx.composition.request_risk import RequestExcess
from redx.composition.risk import RiskControl
from redx.composition.rules import compose
from redx.config import AdapterConfig

REQUESTS = ("requests.json", "requests.safetensors")
FIGURES = "request-figures.json"
SCORE = "ownership"  # what the prompt alone says


def prompt_tokens(settings: AdapterConfig) -> int:
    """Return the length of prompts: at most half of the tokens that are read of a document."""
    return max(1, min(settings.prompt, settings.tokens // 2))


def new_control(settings: AdapterConfig, confidence: float | None = None) -> RiskControl:
    """Return the control of the risk of requests, before it is calibrated."""
    return RiskControl(settings.request_risk, confidence, SCORE, loss="log", bound=settings.request_bound)


@dataclass
class RequestReader:
    """Measures requests as their positions are streamed, one document after the other.

    Parameters
    ----------
    prompt
        Number of tokens of a document that are its prompt.
    control
        The calibrated control under which RED's own losses are measured; None while it is calibrated.

    Attributes
    ----------
    excess
        What every adapter costs the requests.
    owners
        The domain of every request.
    losses
        The loss of RED, summed over a request, without and with the cut-off.
    """

    prompt: int
    control: RiskControl | None = None
    excess: RequestExcess = field(default_factory=RequestExcess)
    owners: dict[int, int] = field(default_factory=dict)
    losses: dict[int, Tensor] = field(default_factory=dict)  # (2,)
    _document: int = -1
    _position: int = 0
    _chosen: tuple[Tensor, Tensor] | None = None  # gates and ownership of the prompt, (1, K)

    def update(self, positions: Positions, whole: Parts) -> None:
        """Add positions of a document and the record of them over the whole vocabulary."""
        if positions.document != self._document:
            self._document, self._position, self._chosen = positions.document, 0, None
        start, self._position = self._position, self._position + len(whole)
        last = self.prompt - 1 - start  # the row that has read the prompt, and predicts the first token after it
        if self._chosen is None and 0 <= last < len(whole):
            self._chosen = positions.gates[last : last + 1].clone(), positions.ownership[last : last + 1].clone()
        if self._chosen is None:
            return
        record = whole.only(slice(max(0, last), None))
        gates, sure = (one.expand(len(record), -1).contiguous() for one in self._chosen)
        record = record.with_gates(gates).with_confidences(sure, None)
        self.excess.update(record)
        self.owners[positions.document] = positions.domain
        if self.control is not None:
            records = record, self.control.apply(record)
            own = torch.stack([_loss(one) for one in records])
            self.losses[positions.document] = self.losses.get(positions.document, torch.zeros(2).double()) + own

    def figures(self) -> dict[str, Any]:
        """Return what requests cost a token: mean losses over requests in nats, and what is promised."""
        assert self.control is not None
        order = sorted(self.excess.tokens)
        excess, confidences, base = self.excess.means()
        tokens = torch.tensor([self.excess.tokens[one] for one in order])
        plain, cut = (torch.stack([self.losses[one] for one in order]) / tokens[:, None]).mean(0).tolist()
        owners = torch.tensor([self.owners[one] for one in order])
        own = base + excess.gather(1, owners[:, None])[:, 0]
        report = self.control.report_excess(self.excess)
        losses = {"base": float(base.mean()), "own": float(own.mean()), "plain": plain}
        losses |= {
            "plain, worst": report["before"]["worst"],
            "request": cut,
            "request, worst": report["after"]["worst"],
        }
        active = confidences > float(self.control.cutoffs.simplex)
        return {
            "prompt": self.prompt,
            "requests": len(order),
            "losses": losses,
            "active": float(active.double().mean()),
            **{name: report["after"][name] for name in ("excess", "low", "high")},
        }


def _loss(record: Parts) -> Tensor:
    """Return the summed loss of RED with the record's gates."""
    return cross_entropy(compose("red", record), record.true_labels(), reduction="none").double().sum()
