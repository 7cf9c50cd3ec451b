"""What an expert from outside must pass before a run takes it: rows that it must not know, its statistics, its harm.

Risk control holds for every expert that was made without the calibration examples. An owner who has them can make an
expert that is silent on them and wrong elsewhere. So calibration examples never leave the run, and two checks remain:
the harm on the test split, which nobody was calibrated on, and the hashes of the rows that the expert was trained on.

The base is solved from owners' statistics, and risk control promises nothing against a worse base. So a third check
compares the base with and without a new owner on choice examples.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from redx.composition.parts import Parts
from redx.composition.risk import RiskControl
from redx.data.rows import hash_rows
from redx.errors import RedxError, RefusedError
from redx.models.contribution import Contribution
from redx.models.expert import Expert
from redx.runs.calibration import describe_risk
from redx.training.datasets import Features, split_validation

HASHES = "rows.hashes"  # the tensor of an expert that holds them
MAX_ROWS = 2**24  # hashes of one expert


def with_row_hashes(expert: Expert, features: Tensor, salt: str) -> Expert:
    """Return an expert that carries the hashes of the rows that it was trained on, (N, E), in no order."""
    return expert.changed(tensors=expert.tensors() | {HASHES: hash_rows(features, salt).unique()})


def check_rows(
    expert: Expert, features: Features, calibration: float, seed: int, salt: str, tell: Callable[[str], None]
) -> None:
    """Refuse an expert that was trained on calibration examples, and tell where it knows choice or test examples.

    Examples that occur in the training split too are left out: their repetition is a property of the data.

    Parameters
    ----------
    expert
        The expert; one without hashes passes.
    features
        The splits of the run.
    calibration, seed
        The share of validation that is for calibration, and the seed of the run.
    salt
        The salt of the hashes: the hash of the base's weights.
    tell
        Receives one sentence for each of choice and test examples, where the expert was trained on some.

    Raises
    ------
    RefusedError
        Where calibration examples are among the rows.
    """
    known = expert.tensors("rows").get("hashes")
    if known is None:
        return
    if known.dtype != torch.int64 or known.ndim != 1 or len(known) > MAX_ROWS:
        raise RedxError(f"Expert {expert.name!r} has unusable hashes of its rows; train it anew.")
    choices, held = split_validation(features, calibration, seed)
    splits = {"calibration": features.validation.only(held), "choice": features.validation.only(choices)}
    trained = hash_rows(features.train.inputs, salt)
    for name, split in (splits | {"test": features.test}).items():
        hashes = hash_rows(split.inputs, salt)
        count = int((torch.isin(hashes, known) & ~torch.isin(hashes, trained)).sum())
        if count and name == "calibration":
            raise RefusedError(
                f"Expert {expert.name!r} was trained on {count} calibration examples of this run, which voids the "
                "promise of its risk; train it without them, or take it anyway with --force."
            )
        if count:
            tell(
                f"{expert.name} was trained on {count} {name} examples of this run: figures on them are too good, so "
                "have its owner train it without them"
            )


def check_contribution(name: str, contribution: Contribution | None) -> None:
    """Refuse an owner whose statistics make the base worse.

    Parameters
    ----------
    name
        The expert of the owner.
    contribution
        What its statistics do to the base; None where it brings none.

    Raises
    ------
    RefusedError
        Where more held-out examples are harmed than chance explains.
    """
    if contribution is not None and contribution.is_harmful:
        raise RefusedError(
            f"The statistics of {name!r} make the base worse: {contribution}; have their owner train the expert anew, "
            "or without statistics by `redx experts train --no-statistics`, or take it anyway with --force."
        )


def check_harm(name: str, control: RiskControl, parts: Parts) -> None:
    """Refuse an expert with which the worst router harms more test examples than the risk allows.

    Parameters
    ----------
    name
        The expert that was added.
    control
        The calibration with this expert.
    parts
        The record of the test split with this expert.

    Raises
    ------
    RefusedError
        Where the exact lower bound of the harm is above the risk.
    """
    figures = describe_risk(control, parts)
    harm, low = ("routing_harm", "routing_low") if control.budget == "routing" else ("harm", "low")
    if figures[low] > figures["risk"]:
        raise RefusedError(
            f"With {name!r} the worst router harms {figures[harm]:.4f} of the test examples, at least "
            f"{figures[low]:.4f} with 97.5 % confidence, and the risk is {figures['risk']:g}: the calibration "
            "examples do not show what it does; have it trained anew, or take it anyway with --force."
        )
