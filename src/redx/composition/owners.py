"""Thresholds that owners compute where their examples are, as files, and the risk control that they make together.

The cut-off of a domain follows from the thresholds of its own examples alone. So every owner measures the composed
model on examples that nobody else has seen, and sends a threshold for each, in ascending order, instead of the
examples. The cut-offs are those of a calibration on all examples in one place, in whatever order the files come.

At an example of domain d whose base is right, the cut-off is that of d. So the harm in d depends on no other owner's
file: who sends wrong thresholds, or has trained an expert on the examples that they are of, voids the promise of their
own domain and of no other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from redx.composition.risk import REGIONS, RiskControl
from redx.errors import RedxError
from redx.io.files import write_bytes
from redx.io.reading import check_path, exists, read_json
from redx.schema import DEFAULT_RISK, StrictConfig

ADVICE = "ask its owner to export it anew with `redx calibrate RUN --data FILE --export FILE`"


def _to_threshold(value: Any) -> float:
    """Return a number, or infinity where it is written as text; anything else is refused, NaN too."""
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError("no threshold")
    return float(value)


Threshold = Annotated[float, Field(allow_inf_nan=True), BeforeValidator(_to_threshold)]


class DomainThresholds(StrictConfig):
    """What an owner sends of the examples of one domain.

    Attributes
    ----------
    examples
        How many they are.
    simplex, box
        The threshold of every example, by region of the adversary, in ascending order of the first.
    mistakes
        1 where an expert's own mistake harms the example, whatever the router does; None where it is not known.
    """

    examples: int = Field(ge=1)
    simplex: tuple[Threshold, ...]
    box: tuple[Threshold, ...]
    mistakes: tuple[Literal[0, 1], ...] | None

    @model_validator(mode="after")
    def _check_sizes(self) -> DomainThresholds:
        sizes = {self.examples, len(self.simplex), len(self.box), len(self.mistakes or self.simplex)}
        if len(sizes) > 1:
            raise ValueError("other numbers of examples")
        return self


class OwnerFile(StrictConfig):
    """What an owner sends: thresholds by domain, and the model that they were computed with.

    Attributes
    ----------
    seed
        Seed of the run; None where a saved model was asked.
    base, model
        Hash of the base as it was trained, and of everything that thresholds follow from.
    experts
        Names of the experts.
    domains
        The thresholds by name of the domain.
    """

    format: Literal[1] = 1
    seed: int | None = None
    base: str = ""
    model: str = ""
    experts: tuple[str, ...] = ()
    domains: dict[str, DomainThresholds] = Field(min_length=1)


def own_thresholds(
    control: RiskControl, *, base: str = "", model: str = "", seed: int | None = None, experts: Sequence[str] = ()
) -> OwnerFile:
    """Return what an owner sends of a control that was calibrated on their own examples.

    Parameters
    ----------
    control
        The control; its risk does not matter. It knows the domain of every class.
    base, model, seed, experts
        The model that the examples were measured with, as `OwnerFile` describes it.

    Raises
    ------
    RedxError
        If there are no examples, or the classes belong to no domains.

    Examples
    --------
    >>> from redx.composition.parts import Parts
    >>> base, labels = torch.tensor([[1.0, 0.0]]).repeat(3, 1), torch.tensor([0, 0, 1])
    >>> parts = Parts(base, torch.zeros(3, 1, 2), torch.zeros(3, 1), labels)
    >>> control = RiskControl(risk=1).calibrate(parts, class_domains=(0, 1), domain_names=("here", "there"))
    >>> sent = own_thresholds(control)
    >>> {name: one.examples for name, one in sent.domains.items()}
    {'here': 2, 'there': 1}
    """
    if control.domains is None or control.class_domains is None:
        raise RedxError(
            "Some classes belong to several domains or to none, so labels do not name the domain of their owner; "
            "calibrate this model where all examples are, with by='all'."
        )
    if not control.examples:
        raise RedxError("There are no examples with labels, so there are no thresholds; give some.")
    mistakes = None if control.mistakes is None else control.mistakes.int()
    found = {}
    for index, name in enumerate(control.domain_names):
        rows = (control.domains == index).nonzero()[:, 0]
        columns = [control.thresholds[region][rows].tolist() for region in REGIONS]
        columns.append([0] * len(rows) if mistakes is None else mistakes[rows].tolist())
        simplex, box, own = zip(*sorted(zip(*columns, strict=True)), strict=True) if len(rows) else ((), (), ())
        if len(rows):
            own = None if mistakes is None else own
            found[name] = DomainThresholds(examples=len(rows), simplex=simplex, box=box, mistakes=own)
    names = tuple(experts) or control.names
    return OwnerFile(seed=seed, base=base, model=model, experts=names, domains=found)


def write_owner_file(file: Path, sent: OwnerFile) -> None:
    """Write what an owner sends; there must be no such file yet."""
    check_path(file)
    if exists(file):
        raise RedxError(f"There is a file {file} already; choose another name with --export.")
    content = sent.model_dump()
    for one in content["domains"].values():
        one |= {region: [value if math.isfinite(value) else str(value) for value in one[region]] for region in REGIONS}
    write_bytes(file, (json.dumps(content) + "\n").encode())


def read_owner_file(file: Path) -> OwnerFile:
    """Return what an owner sends, or refuse a file that is not complete."""
    return read_json(
        file,
        OwnerFile,
        misfit="does not hold an owner's thresholds",
        missing="give a file of `redx calibrate RUN --data FILE --export FILE`",
        advice=ADVICE,
    )


def join_owners(
    sent: Mapping[str, OwnerFile],
    risk: float | None = None,
    *,
    class_domains: Sequence[int] | Tensor,
    domain_names: Sequence[str],
    confidence: float | None = None,
    budget: str = "harm",
    score: str = "contest",
    **settings: Any,
) -> RiskControl:
    """Return the risk control that the thresholds of all owners make: each domain keeps the risk by its own examples.

    The experts are silent in domains without a file, and in those with too few examples for the risk.

    Parameters
    ----------
    sent
        What owners send, by the name of the file.
    risk
        Bound on the harm of the worst router in every domain; 0.01 by default.
    class_domains, domain_names
        The domain of every class as an index, (C,), and the names of the domains.
    confidence, budget, score
        As for `redx.RiskControl`.
    settings
        Further arguments of `RiskControl.from_thresholds`: experts, names, answers, trials.

    Raises
    ------
    RedxError
        If two files have the same domain, or one has a domain that the model does not know.
    """
    owners: dict[str, str] = {}
    for file, one in sent.items():
        for name in one.domains:
            if name not in domain_names:
                raise RedxError(f"{file} has thresholds of {name!r:.100}, which is no domain of this model; {ADVICE}.")
            if name in owners:
                raise RedxError(
                    f"{owners[name]} and {file} both have thresholds of {name!r:.100}; ask who owns that domain, and "
                    "give one file of it."
                )
            owners[name] = file
    if not owners:
        raise RedxError("There are no thresholds of any owner; give at least one file.")
    known = [(index, sent[owners[name]].domains[name]) for index, name in enumerate(domain_names) if name in owners]
    thresholds = {
        region: _exact(torch.tensor([value for _, one in known for value in getattr(one, region)], dtype=torch.double))
        for region in REGIONS
    }
    domains = torch.cat([torch.full((one.examples,), index) for index, one in known])
    mistakes = [one.mistakes for _, one in known if one.mistakes is not None]
    flags = torch.tensor([flag for one in mistakes for flag in one], dtype=torch.bool)
    control = RiskControl.from_thresholds(
        thresholds,
        DEFAULT_RISK if risk is None else risk,
        confidence,
        score,
        by="domain",
        small="silent",
        budget=budget,
        domains=domains,
        class_domains=torch.as_tensor(class_domains).long(),
        domain_names=domain_names,
        mistakes=flags if len(mistakes) == len(known) else None,
        owners=[name for name in domain_names if name in owners],
        **settings,
    )
    _ = control.counted("simplex")  # says so where the budget needs what is not known
    return control


def _exact(values: Tensor) -> Tensor:
    """Return numbers as float32 where that changes none of them, as models compute them, and else as they are."""
    short = values.float()
    return short if torch.equal(short.double(), values) else values
