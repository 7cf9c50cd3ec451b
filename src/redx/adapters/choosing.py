"""The choice of one adapter for a prompt, or of none: ownership scores of what the base reads, and a cut-off.

An ownership score is linear, so that the scores of K adapters are one matrix product. The base reads the prompt once,
and no adapter runs. Who serves adapters elsewhere needs nothing more: the name of an adapter, or none for the base.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from redx.adapters.base import BaseLM
from redx.adapters.documents import tokenise
from redx.adapters.library import library_folder, open_base, read_library, read_scores
from redx.composition.confidence import LARGEST
from redx.composition.risk import RiskControl
from redx.errors import RedxError
from redx.models.calibration import read_calibration
from redx.models.router import NetworkRouter

READ = 512  # tokens of a prompt that are read
LONGEST = 64  # characters of a token at most, so that the end of a long prompt need not be tokenised
EVEN = 0.0  # cut-off without a calibration of its own: the prompt is as likely of other texts as of the adapter's


@dataclass(frozen=True)
class Choice:
    """The adapter for a prompt.

    Attributes
    ----------
    adapter
        Its name; None where no adapter is sure, so that the base answers alone.
    weights
        What the router `keys` gives to every adapter: a softmax of the scores.
    scores
        The log-odds that the prompt is of an adapter's domain, for all adapters that have an ownership score.
    cutoff
        What a score must exceed.
    risk
        The risk that the cut-off was calibrated for; None where it was not calibrated.
    """

    adapter: str | None
    weights: dict[str, float]
    scores: dict[str, float]
    cutoff: float
    risk: float | None

    @property
    def abstain(self) -> bool:
        """Whether no adapter is sure."""
        return self.adapter is None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; an infinite cut-off is text."""
        cutoff = self.cutoff if abs(self.cutoff) < float("inf") else str(self.cutoff)
        return {
            "adapter": self.adapter,
            "weights": self.weights,
            "abstain": self.abstain,
            "risk": self.risk,
            "cutoff": cutoff,
            "scores": self.scores,
        }


class StackedScores:
    """The ownership scores of K adapters as one matrix.

    Parameters
    ----------
    scores
        The linear ownership scores of the adapters.
    width
        Number of values D of a state.
    """

    def __init__(self, scores: Sequence[nn.Module], width: int) -> None:
        self.matrix, self.bias = torch.zeros(len(scores), width), torch.zeros(len(scores))
        for row, score in enumerate(scores):
            assert isinstance(score, NetworkRouter)  # as `restore_score` builds them
            (layer,) = (part for part in score.layers if isinstance(part, nn.Linear))
            slope = (layer.weight[0] - layer.weight[1]).detach().double() / score.deviation.double()
            offset = (layer.bias[0] - layer.bias[1]).detach().double() - slope @ score.mean.double()
            self.matrix[row], self.bias[row] = slope.float(), offset.float()

    def __call__(self, states: Tensor) -> Tensor:
        """Return the log-odds that texts are of each adapter's domain, (N, D) to (N, K)."""
        return torch.addmm(self.bias, states, self.matrix.T)


class PromptRouter:
    """Chooses an adapter for a prompt; it holds the base and the ownership scores, and no adapter.

    Parameters
    ----------
    base
        The frozen model.
    names
        Names of the adapters.
    scores
        The ownership scores of those adapters that have one.
    cutoff
        What a score must exceed; by default the calibrated cut-off, or 0 where there is none.
    control
        The calibrated risk control of the adapters; it counts where it was calibrated on ownership scores alone.

    Examples
    --------
    >>> from redx.adapters.choosing import PromptRouter
    >>> router = PromptRouter.from_pretrained("runs/adapters")  # doctest: +SKIP
    >>> router.route("def add(a, b):").adapter  # doctest: +SKIP
    'python'
    """

    def __init__(
        self,
        base: BaseLM,
        names: Sequence[str],
        scores: dict[str, nn.Module],
        cutoff: float | None = None,
        control: RiskControl | None = None,
    ) -> None:
        if not scores:
            raise RedxError(
                "These adapters have no ownership scores, so that no prompt can be told theirs; "
                "make a run of them with `redx run adapters`."
            )
        if cutoff is not None and cutoff != cutoff:
            raise RedxError("A cut-off is a number, not NaN; change --cutoff.")
        self.base, self.names = base, tuple(names)
        self.scored = tuple(name for name in self.names if name in scores)
        self.stacked = StackedScores([scores[name] for name in self.scored], base.width)
        known = control if control is not None and (control.score, control.by) == ("ownership", "all") else None
        calibrated = None if known is None else float(known.cutoffs.simplex)
        self.cutoff = cutoff if cutoff is not None else EVEN if calibrated is None else calibrated
        covered = known is not None and calibrated is not None and self.cutoff >= calibrated
        self.risk = known.risk if known is not None and covered and set(self.scored) <= set(known.names) else None

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        cutoff: float | None = None,
        backbone: str | None = None,
        device: str = "cpu",
        seed: int | None = None,
    ) -> PromptRouter:
        """Return the router of a run of adapters, or of a folder with library.json.

        Parameters
        ----------
        folder
            The folder of a run, or one with library.json.
        cutoff
            As for the class.
        backbone
            The base, where it is not to be found under its own name.
        device
            Where the base runs.
        seed
            Which seed of a run; the first by default.
        """
        run = library_folder(Path(folder), seed)
        return cls.from_library(run, open_base(read_library(run), backbone, device), cutoff)

    @classmethod
    def from_library(cls, run: Path, base: BaseLM, cutoff: float | None = None) -> PromptRouter:
        """Return the router of a folder with library.json, with a base that is loaded already."""
        names = read_library(run).names
        return cls(base, names, read_scores(run, names, base.width), cutoff, read_calibration(run))

    def route(self, prompt: str) -> Choice:
        """Return the adapter for a prompt.

        Parameters
        ----------
        prompt
            The text to continue; its first 512 tokens are read.
        """
        if not isinstance(prompt, str) or not prompt.strip():
            raise RedxError("The prompt is empty; write something to route.")
        (tokens,) = tokenise([prompt[: READ * LONGEST]], self.base.tokenizer)
        if not tokens:
            raise RedxError("The prompt has no tokens; write something to route.")
        return self.choose(self.read(torch.tensor(tokens)))

    @torch.inference_mode()
    def read(self, tokens: Tensor) -> Tensor:
        """Return the mean state of the base over the first tokens of a prompt, (T,) to (D,)."""
        kept = tokens[: min(READ, self.base.context)][None].to(self.base.model.device)
        output = self.base.model(input_ids=kept, output_hidden_states=True, use_cache=False, logits_to_keep=1)
        middle = self.base.model.config.num_hidden_layers // 2
        return output.hidden_states[middle][0].float().mean(0).cpu()

    def choose(self, state: Tensor) -> Choice:
        """Return the adapter for the mean state of a prompt, (D,)."""
        scores = self.stacked(state[None])[0].nan_to_num(-LARGEST).clamp(-LARGEST, LARGEST)  # (K,)
        best = int(scores.argmax())
        sure = float(scores[best]) > self.cutoff
        softmax = dict(zip(self.scored, scores.softmax(-1).tolist(), strict=True))
        return Choice(
            adapter=self.scored[best] if sure else None,
            weights={name: softmax.get(name, 0.0) for name in self.names},
            scores=dict(zip(self.scored, scores.tolist(), strict=True)),
            cutoff=float(self.cutoff),
            risk=self.risk,
        )
