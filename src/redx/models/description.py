"""The content of expert.json and model.json, and what of it is checked before it is used."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from redx.errors import RedxError
from redx.io.reading import guarded, read_json

ADVICE = "train the expert anew"
MAX_INPUT = 2**24  # values of one input
MAX_CLASSES = 2**16  # new classes of one expert
Number = Annotated[float, Field(strict=True)]  # "1.0" is none


class _Open(BaseModel):
    """A JSON object with further entries than those that are checked."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class Fingerprint(_Open):
    """The fingerprint of a base: hashes, and the features of a probe batch."""

    probe: list[list[Number]] | None = Field(default=None, max_length=64)

    @field_validator("probe")
    @classmethod
    def check_probe(cls, probe: list[list[float]] | None) -> list[list[float]] | None:
        """Return the probe, or refuse rows of different lengths."""
        if probe is not None and len({len(row) for row in probe}) > 1:
            raise ValueError("the rows of the probe have different lengths")
        return probe


class NamedStatistics(_Open):
    """The statistics that an expert brings: how many examples they count, and their hash."""

    examples: int = Field(strict=True, ge=1)
    sha256: str = Field(pattern="^[0-9a-f]{32}$")


class ExpertDescription(_Open):
    """The content of expert.json; the settings of banks are checked when a bank is built."""

    domain: str
    classes: list[str] = []
    new_classes: list[str] = Field(default=[], max_length=MAX_CLASSES)
    dtype: str = "float32"
    banks: dict[str, Any] = {}
    training: dict[str, int | float | None] = {}
    metrics: dict[str, float | None] = {}
    base: Fingerprint | None = None
    ownership: dict[str, Any] = {}
    statistics: NamedStatistics | None = None

    @field_validator("new_classes")
    @classmethod
    def check_new_classes(cls, names: list[str]) -> list[str]:
        """Return the new classes, or refuse one that occurs twice."""
        if len(set(names)) < len(names):
            raise ValueError("a new class occurs twice")
        return names


class ModelFile(BaseModel):
    """What `model.json` must hold: the fields of `ModelInfo`, with names that fit one another."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    domains: tuple[str, ...]
    classes: tuple[str, ...]
    belongs: tuple[int, ...]
    unit: float = Field(gt=0)
    shape: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(), max_length=8)
    routed: tuple[str, ...] | None = None
    reads: str = ""
    backbone: str = ""

    @model_validator(mode="after")
    def check_names(self) -> ModelFile:
        """Return the file, or refuse names that repeat, classes without a domain, and inputs that fill the memory."""
        for names in (self.domains, self.classes, self.routed or ()):
            if len(set(names)) < len(names):
                raise ValueError("a name occurs twice")
        if len(self.belongs) != len(self.classes) or not all(-1 <= at < len(self.domains) for at in self.belongs):
            raise ValueError("the domains of the classes do not fit")
        if math.prod(self.shape) > MAX_INPUT:
            raise ValueError("far too large an input")
        return self


def read_description(path: Path) -> dict[str, Any]:
    """Return the content of an expert.json.

    Raises
    ------
    RedxError
        If there is no such file, or it does not describe an expert.
    """
    info = read_json(path, missing="give the folder of an expert, or of a finished run", advice=ADVICE)
    if not isinstance(info, dict) or not isinstance(info.get("domain"), str):
        raise RedxError(f"{path} does not describe an expert (it names no domain); {ADVICE}.")
    with guarded(path, "does not describe an expert (an entry is of the wrong kind)", ADVICE):
        ExpertDescription.model_validate(info)
    return info
