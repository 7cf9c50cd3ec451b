"""What is asked of a served model: inputs, and the setting in which it answers them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from redx.errors import RedxError

Kind = Literal["text", "image", "numbers"]
MAX_INPUTS = 1_000  # inputs of one request
MAX_CHARACTERS = 20_000  # of one text; the model itself reads fewer
MAX_NAME = 10_000  # characters of a label or of the name of a domain
MAX_EXPERTS = 10_000  # names in one request
SLACK = 1e-5  # how far a sum of weights may be from 1, as they are sent with few digits
EXAMPLES = {"text": "['a text']", "image": "one list of 28 lists of 28 numbers", "numbers": "[[12, 5]]"}


class SettingBody(BaseModel):
    """The part of a request that says how the model is composed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rule: str | None = Field(default=None, max_length=200, description="rule, or rule/bank; the model's own by default")
    router: str | None = Field(default=None, max_length=20, description="router (the trained one) or keys")
    without: list[str] = Field(default=[], max_length=MAX_EXPERTS, description="names of experts that are switched off")
    risk: float | None = Field(
        default=None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="bound on the harm of the worst router",
    )


class PredictBody(SettingBody):
    """The body of POST /api/predict."""

    inputs: list[Any] = Field(description="texts, images of 28 × 28 values from 0 to 255, or lists of numbers")
    weights: dict[str, float] | list[float] | None = Field(
        default=None,
        description="routing weights instead of the router's: by name, or in the order of experts",
    )
    epsilon: float | None = Field(
        default=None, ge=0, le=1, allow_inf_nan=False, description="also return the worst router that moves this share"
    )
    abstain: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="answer null where an input looks like no class",
    )
    detail: bool = Field(default=False, description="also return the scores of base and experts")
    monitor: bool = Field(default=True, description="false keeps the answer out of the monitor, as the page does")
    steps: bool = Field(default=True, description="false asks the model itself, without the decomposer of its run")


class DiffBody(SettingBody):
    """The body of POST /api/diff: the experts that are switched off, against all of them."""


class LabelBody(BaseModel):
    """The true label of an earlier answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str = Field(max_length=100, description="id of the answer")
    label: str | int = Field(description="the true label")
    domain: str | None = Field(default=None, max_length=MAX_NAME, description="true domain, where labels name none")

    @field_validator("label")
    @classmethod
    def _bounded(cls, value: str | int) -> str | int:
        if len(value) > MAX_NAME if isinstance(value, str) else abs(value) > 2**63:
            raise ValueError("too long for a label")
        return value


class LabelsBody(BaseModel):
    """The body of POST /api/labels."""

    model_config = ConfigDict(extra="forbid", strict=True)

    labels: list[LabelBody] = Field(
        min_length=1, max_length=MAX_INPUTS, description="objects with id and label, and domain where labels name none"
    )


@dataclass(frozen=True)
class Setting:
    """How a model is composed for an answer; requests with equal settings are answered in one batch.

    Attributes
    ----------
    rule, router, risk
        As in a request; None for those of the run.
    without
        Names of experts that are switched off, sorted.
    """

    rule: str | None = None
    router: str | None = None
    without: tuple[str, ...] = ()
    risk: float | None = None

    @staticmethod
    def from_body(body: SettingBody) -> Setting:
        """Return the setting that a request asks for."""
        return Setting(body.rule, body.router, tuple(sorted(set(body.without))), body.risk)

    def to_dict(self) -> dict[str, Any]:
        """Return what differs from the run's own setting."""
        values = {"rule": self.rule, "router": self.router, "without": list(self.without), "risk": self.risk}
        return {name: value for name, value in values.items() if value not in (None, [])}


@dataclass(frozen=True)
class Options:
    """What else a request asks for; requests with equal options are solved together."""

    weights: tuple[float | tuple[str, float], ...] | None = None  # in order, or by name
    epsilon: float | None = None
    abstain: float | None = None
    detail: bool = False
    steps: bool = True
    monitor: bool = True


@dataclass(frozen=True)
class Query:
    """Inputs with the setting and the options in which they are answered."""

    inputs: list[Any]
    setting: Setting = field(default_factory=Setting)
    options: Options = field(default_factory=Options)

    @staticmethod
    def from_body(body: PredictBody, kind: Kind, shape: Sequence[int]) -> Query:
        """Return the query of a request, after checking its inputs."""
        check_inputs(body.inputs, kind, shape)
        return Query.without_checks(body)

    @staticmethod
    def without_checks(body: PredictBody) -> Query:
        """Return the query of a request, whatever its inputs are."""
        weights = tuple(body.weights.items()) if isinstance(body.weights, dict) else body.weights
        options = Options(
            None if weights is None else tuple(weights),
            body.epsilon,
            body.abstain,
            body.detail,
            body.steps,
            body.monitor,
        )
        return Query(body.inputs, Setting.from_body(body), options)


def check_inputs(inputs: list[Any], kind: Kind, shape: Sequence[int]) -> None:
    """Refuse inputs that are too many, too long or of the wrong kind."""
    if not inputs:
        raise RedxError(f"There are no inputs; give a list such as {EXAMPLES[kind]}.")
    if len(inputs) > MAX_INPUTS:
        raise RedxError(f"{len(inputs):,} inputs are more than {MAX_INPUTS:,} at once; send them in several requests.")
    for number, value in enumerate(inputs, 1):
        if kind == "text":
            _check_text(number, value)
        elif kind == "image":
            _check_image(number, value)
        else:
            _check_numbers(number, value, shape)


def _check_text(number: int, value: Any) -> None:
    if not isinstance(value, str):
        raise RedxError(f"Input {number} is no text; give a list such as ['a text'].")
    if not value.strip():
        raise RedxError(f"Input {number} is empty; write something to read.")
    if len(value) > MAX_CHARACTERS:
        raise RedxError(f"Input {number} has {len(value):,} characters; give at most {MAX_CHARACTERS:,}.")


def _check_image(number: int, value: Any) -> None:
    rows = value if isinstance(value, list) and len(value) == 28 else []
    fits = rows and all(isinstance(row, list) and len(row) == 28 for row in rows)
    if not fits or not all(_is_number(pixel) and 0 <= pixel <= 255 for row in rows for pixel in row):
        raise RedxError(f"Input {number} is no image; give 28 rows of 28 values from 0 to 255.")


def _check_numbers(number: int, value: Any, shape: Sequence[int]) -> None:
    count = math.prod(shape) if shape else None
    if (
        not isinstance(value, list)
        or not value
        or not all(map(_is_number, value))
        or (count or len(value)) != len(value)
    ):
        raise RedxError(f"Input {number} is not a list of {count or 'some'} numbers; give one number per feature.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 3e38


def ordered_weights(given: Options, names: Sequence[str], region: str | None) -> list[float] | None:
    """Return the weights of a request in the order of the experts; None where it gives none.

    Parameters
    ----------
    given
        The options of the request.
    names
        Names of the experts that contribute.
    region
        `simplex` or `box`: where the weights of the rule lie; None where it has no weights to choose.
    """
    if given.weights is None:
        return None
    if region is None:
        raise RedxError("This rule has no routing weights; leave out weights, or choose a rule such as red.")
    pairs = [entry for entry in given.weights if isinstance(entry, tuple)]
    by_name: Mapping[str, float] = dict(pairs) if pairs else {}
    if by_name and (unknown := [name for name in by_name if name not in names]):
        raise RedxError(f"There is no expert {unknown[0]!r} to give weight to; choose from {', '.join(names)}.")
    plain = [entry for entry in given.weights if not isinstance(entry, tuple)]
    weights = [by_name.get(name, 0.0) for name in names] if by_name else plain
    if len(weights) != len(names):
        raise RedxError(f"There are {len(names)} experts, not {len(weights)}; give one weight for each.")
    if not all(math.isfinite(weight) and -SLACK <= weight <= 1 + SLACK for weight in weights):
        raise RedxError("A weight is not a number from 0 to 1; give such numbers.")
    if region == "simplex" and abs(sum(weights) - 1) > SLACK * max(1, len(weights)):
        raise RedxError(f"The weights sum to {sum(weights):.6g}, not to 1; divide each by their sum.")
    return [min(1.0, max(0.0, weight)) for weight in weights]
