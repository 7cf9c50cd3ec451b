"""The files of a model's risk control.

SEED/risk.json          risk, confidence, score, number of calibration examples, cut-offs, names of the experts
SEED/thresholds.safetensors  the threshold of every calibration example, from which any other risk can be set; groups
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from redx.composition.parts import Cutoffs
from redx.composition.risk import REGIONS, RiskControl
from redx.config import ScoreName, StrictConfig
from redx.io.files import write_json, write_tensors
from redx.io.manifest import is_expected
from redx.io.reading import guarded, read_json
from redx.io.safetensors_files import read_tensors

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


def write_calibration(risk_file: Path, thresholds_file: Path, control: RiskControl) -> None:
    """Write a calibrated control to its two files."""
    write_json(risk_file, control.to_json())
    groups = {} if control.groups is None else {"groups": control.groups}
    write_tensors(thresholds_file, control.thresholds | groups)


def read_calibration(folder: Path, experts: Sequence[Any] = ()) -> RiskControl | None:
    """Return the risk control of a seed, or None where it has none.

    Parameters
    ----------
    folder
        Folder of the seed, RUN/seed-N.
    experts
        The experts of the seed, in order.
    """
    path, thresholds_file = folder / "risk.json", folder / "thresholds.safetensors"
    if not is_expected(path):
        return None
    about: RiskFile = read_json(path, RiskFile, misfit="does not hold a calibration", advice="repeat the run")
    thresholds = read_tensors(thresholds_file)
    groups = thresholds.pop("groups", None)
    with guarded(thresholds_file, "does not belong to risk.json", "repeat the run"):
        right = set(thresholds) == set(REGIONS) and all(
            values.shape == (about.calibration,) and values.is_floating_point() and not bool(values.isnan().any())
            for values in thresholds.values()
        )
        right &= groups is None or (groups.shape == (about.calibration,) and groups.dtype == torch.int64)
        if not right or (experts and about.experts != [expert.name for expert in experts]):
            raise ValueError("other thresholds")
    return RiskControl.from_thresholds(
        thresholds,
        about.risk,
        about.confidence,
        about.score,
        groups=groups,
        experts=experts,
        names=about.experts,
        answers=about.answers,
    )


def read_cutoffs(folder: Path) -> Cutoffs | None:
    """Return the cut-offs of a seed, or None where it is not calibrated."""
    control = read_calibration(folder)
    return control.cutoffs if control else None
