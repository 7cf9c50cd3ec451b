"""The calibration of a composed model: how much risk it takes, and the cut-offs that follow from held-out examples.

SEED/risk.json          risk, confidence, score, number of calibration examples, cut-offs, names of the experts
SEED/thresholds.safetensors  the threshold of every calibration example, from which any other risk can be set
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from redx.composition.parts import Cutoffs, Parts
from redx.composition.risk import check_risk, harm_thresholds, risk_cutoff, smallest_risk
from redx.composition.rules import get_rule
from redx.config import DEFAULT_RISK, ScoreName, StrictConfig
from redx.io.files import write_json, write_tensors
from redx.io.reading import exists, guarded, read_json
from redx.io.safetensors_files import read_tensors

log = logging.getLogger("redx")

REGIONS = {"simplex": "red", "box": "sum"}  # where wrong weights could lie, with a rule that allows them
Number = Annotated[float, Field(allow_inf_nan=True)]


class CutoffFile(StrictConfig):
    """Cut-offs as risk.json holds them; infinity is written as text, since JSON has none."""

    simplex: Number
    box: Number


class RiskFile(StrictConfig):
    """The content of risk.json."""

    risk: float = Field(ge=0, le=1)
    confidence: float | None = Field(default=None, gt=0, lt=1)
    score: ScoreName
    answers: bool = False
    calibration: int = Field(ge=0)
    cutoffs: CutoffFile
    experts: list[str]


@dataclass(frozen=True)
class Calibration:
    """What risk control measured on the calibration examples, and the risk that the user chose.

    Attributes
    ----------
    risk
        Bound on the harm of the worst router: the share of examples that the base answers correctly and the composed
        model, with some router, does not.
    confidence
        None: the bound holds on average over calibration sets. Otherwise it holds with this probability.
    score
        How an expert's confidence is computed.
    thresholds
        The threshold of every calibration example, (n,), by region of the adversary: simplex and box.
    names
        Names of the experts that were calibrated together.
    experts
        These experts themselves, where they are at hand.
    answers
        Whether the experts' answers were added to their ownership scores, as is done where experts bring classes;
        earlier versions did not.
    """

    risk: float
    confidence: float | None
    score: ScoreName
    thresholds: dict[str, Tensor]
    names: tuple[str, ...] = ()
    experts: tuple[Any, ...] = ()
    answers: bool = False

    @property
    def examples(self) -> int:
        """The number of calibration examples."""
        return len(self.thresholds["simplex"])

    @cached_property
    def cutoffs(self) -> Cutoffs:
        """The cut-offs that keep the risk."""
        return Cutoffs(
            *(risk_cutoff(self.thresholds[region], self.risk, self.confidence) for region in Cutoffs._fields)
        )

    def at(self, risk: float | None, confidence: float | None = None) -> Calibration:
        """Return the same measurements with another risk.

        Parameters
        ----------
        risk
            The new risk; None for 0.01, or the smallest that the calibration examples support.
        confidence
            None for the bound on average, otherwise the probability with which it has to hold.

        Raises
        ------
        RedxError
            Where there are too few calibration examples for this risk.
        """
        return dataclasses.replace(self, risk=supported_risk(risk, self.examples, confidence), confidence=confidence)

    def covers(self, experts: Sequence[Any]) -> bool:
        """Return whether these are the very experts that were calibrated together."""
        return len(experts) == len(self.experts) and all(a is b for a, b in zip(experts, self.experts, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the content of risk.json."""
        cutoffs = self.cutoffs._asdict().items()
        return {
            "risk": self.risk,
            "confidence": self.confidence,
            "score": self.score,
            **({"answers": True} if self.answers else {}),
            "calibration": self.examples,
            "cutoffs": {region: value if math.isfinite(value) else str(value) for region, value in cutoffs},
            "experts": list(self.names),
        }


def supported_risk(risk: float | None, examples: int, confidence: float | None = None, tell: bool = True) -> float:
    """Return the risk to use with so many calibration examples.

    Parameters
    ----------
    risk
        The risk that the user chose; None for 0.01, or the smallest that the examples support, which is logged.
    examples
        Number of calibration examples.
    confidence
        None for the bound on average, otherwise the probability with which it has to hold.
    tell
        Whether a risk above 0.01 that was not chosen is logged.

    Raises
    ------
    RedxError
        Where the examples do not support the risk that the user chose.
    """
    if risk is None:
        smallest = smallest_risk(examples, confidence)
        if tell and smallest > DEFAULT_RISK:
            log.warning(
                "%d calibration examples support no risk below %.4f, so this is used instead of %g",
                examples,
                smallest,
                DEFAULT_RISK,
            )
        return max(DEFAULT_RISK, smallest)
    return check_risk(risk, examples, confidence)


def calibrate(
    parts: Parts,
    risk: float | None,
    confidence: float | None = None,
    score: ScoreName = "contest",
    experts: Sequence[Any] = (),
    answers: bool = False,
) -> Calibration:
    """Return the calibration that held-out examples give.

    Parameters
    ----------
    parts
        The record of the calibration examples with confidences; nothing was trained or chosen on them.
    risk, confidence
        The risk, and how it holds; see `Calibration`.
    score
        How the confidences were computed.
    experts
        The experts of the record.
    answers
        Whether the experts' answers were added to their ownership scores.
    """
    thresholds = {region: harm_thresholds(get_rule(rule), parts) for region, rule in REGIONS.items()}
    chosen = supported_risk(risk, len(parts), confidence)
    names = tuple(expert.name for expert in experts)
    return Calibration(chosen, confidence, score, thresholds, names, tuple(experts), answers)


def write_calibration(risk_file: Path, thresholds_file: Path, calibration: Calibration) -> None:
    """Write a calibration to its two files."""
    write_json(risk_file, calibration.to_json())
    write_tensors(thresholds_file, calibration.thresholds)


def read_calibration(folder: Path, experts: Sequence[Any] = ()) -> Calibration | None:
    """Return the calibration of a seed, or None where it has none.

    Parameters
    ----------
    folder
        Folder of the seed, RUN/seed-N.
    experts
        The experts of the seed, in order.
    """
    path, thresholds_file = folder / "risk.json", folder / "thresholds.safetensors"
    if not exists(path):
        return None
    about: RiskFile = read_json(path, RiskFile, misfit="does not hold a calibration", advice="repeat the run")
    thresholds = read_tensors(thresholds_file)
    with guarded(thresholds_file, "does not belong to risk.json", "repeat the run"):
        right = set(thresholds) == set(REGIONS) and all(
            values.shape == (about.calibration,) and values.is_floating_point() and not bool(values.isnan().any())
            for values in thresholds.values()
        )
        if not right or (experts and about.experts != [expert.name for expert in experts]):
            raise ValueError("other thresholds")
    names = tuple(about.experts)
    return Calibration(about.risk, about.confidence, about.score, thresholds, names, tuple(experts), about.answers)


def read_cutoffs(folder: Path) -> Cutoffs | None:
    """Return the cut-offs of a seed, or None where it is not calibrated."""
    calibration = read_calibration(folder)
    return calibration.cutoffs if calibration else None
