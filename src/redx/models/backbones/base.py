"""The interface of every encoder; each method has a default for encoders without a frozen part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from redx.models.trunks import TokenSum


class Encoder(nn.Module):
    """From inputs to features: a frozen part that is computed once and cached, and a part trained with the base.

    `read` takes inputs through the frozen part, and `forward` takes what it returned to features (N, E). The first
    `width` of these, h, go to the classifier; experts and router read all of them.
    """

    reads_text: bool = False  # whether inputs are texts that a language model reads
    width: Any = None  # D, the number of features that the classifier reads; None: as many as the input has
    abstention_features: Any = slice(
        None
    )  # the features of an input that abstention compares with those of known classes
    mark: Any = "none"  # a name for what the frozen part computes, which cached features are filed under

    @property
    def value_trunk(self) -> TokenSum | None:
        """The trunk that can be trained by regression on the value of the answer, where there is one."""
        return None

    def prepare(self, inputs: Iterable[Tensor]) -> None:
        """Run the frozen part once for every distinct input and cache what it gives."""

    def read(self, inputs: Tensor) -> Tensor:
        """Return what the frozen part gives for inputs; without a frozen part, the inputs themselves."""
        return inputs

    def fit(self, features: Tensor) -> None:
        """Set what is not learned, such as standardisation, from what `read` returned for the shared subset."""


class IdentityEncoder(Encoder):
    """Returns its input: the inputs are the features."""

    def forward(self, x: Tensor) -> Tensor:  # (N, D) -> (N, D)
        return x
