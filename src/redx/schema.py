"""What settings are made of: identifiers of banks, names of choices, and the base class of all settings."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

MAX_WIDTH, MAX_TRUNK = 2**16, 2**13  # of the layers of experts and router, and of a trunk
MAX_SEED = 2**63 - 1
Count = Annotated[int, Field(le=10_000_000)]  # of epochs, examples or questions


class BankId(NamedTuple):
    """The identifier of a bank of experts, written FORM/NAME, such as `residual/plain`.

    Attributes
    ----------
    form
        `residual`, `standalone`, `pooled` or `averaged`.
    name
        Name of the bank among the banks of its form.

    Examples
    --------
    >>> BankId.parse("residual/plain").form
    'residual'
    """

    form: str
    name: str

    @classmethod
    def parse(cls, text: str) -> BankId:
        """Return the bank id of a text such as `residual/plain`; the inverse of `str`.

        Raises
        ------
        ValueError
            If the text is not FORM/NAME.
        """
        if not re.fullmatch(r"(standalone|residual|pooled|averaged)/[a-z0-9-]+", text):
            raise ValueError(f"a bank is named FORM/NAME, such as residual/plain, not {text!r}")
        return cls(*text.split("/"))

    @property
    def corrects_base(self) -> bool:
        """Whether the experts output residuals, which are added to the logits of the base, and not logits."""
        return self.form == "residual"

    def __str__(self) -> str:
        return f"{self.form}/{self.name}"


def _to_bank_id(value: Any) -> Any:
    return BankId.parse(value) if isinstance(value, str) else value


BankKey = Annotated[BankId, BeforeValidator(_to_bank_id), PlainSerializer(str, return_type=str)]  # a string in JSON
ScoreName = Literal["ownership", "answer", "both", "gain", "all", "contest"]  # of `redx.composition.confidence`
DEFAULT_RISK = 0.01
NoiseName = Literal["swap", "blur", "jitter", "drop", "permute"]


class StrictConfig(BaseModel):
    """Base class of all settings: immutable, without unknown names, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
