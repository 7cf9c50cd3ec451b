"""The files of a model's risk control.

SEED/risk.json          risk, confidence, score, budget, number of calibration examples, cut-offs, names of the experts,
                        trials: what every expert does on choice examples, and which ones are in quarantine
                        by domain: what each domain is promised
SEED/thresholds.safetensors  the threshold of every calibration example, from which any other risk can be set; groups;
                        domains and class_domains: the domain of every calibration example and of every class;
                        amounts: with the loss `log`, by how much the excess of a request rises at each threshold;
                        domain_head: where domains share classes, the head of the base that names a domain instead;
                        mistakes: 1 where an expert's own mistake harms a calibration example;
                        BANK:REGION: those of another bank that is compared at the same risk;
                        BANK:domains: the domains of its examples, where those of the model itself are their owners'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from redx.composition.quarantine import Trial
from redx.composition.request_risk import BOUND
from redx.composition.risk import REGIONS, RiskControl
from redx.config import BankId, ScoreName, StrictConfig
from redx.io.files import write_json, write_tensors
from redx.io.manifest import is_expected
from redx.io.reading import guarded, read_json
from redx.io.safetensors_files import read_tensors

FILES = ("risk.json", "thresholds.safetensors")
Number = Annotated[float, Field(allow_inf_nan=True)]


class CutoffFile(StrictConfig):
    """Cut-offs as risk.json holds them; infinity is written as text, since JSON has none."""

    simplex: Number
    box: Number


class DomainFile(StrictConfig):
    """What risk.json says of a domain, where the risk can be controlled by domain."""

    name: str
    calibration: int = Field(ge=0)
    together: list[str]
    cutoffs: CutoffFile


class TrialFile(StrictConfig):
    """What risk.json says of an expert on the choice examples."""

    examples: int = Field(ge=0)
    helped: int = Field(ge=0)
    harmed: int = Field(ge=0)
    p: float = Field(ge=0, le=1)
    quarantined: bool
    admitted: bool
    claimed: int = Field(default=0, ge=0)
    misclaimed: int = Field(default=0, ge=0)
    p_claims: float = Field(default=1.0, ge=0, le=1)


class RiskFile(StrictConfig):
    """The content of risk.json."""

    risk: float = Field(ge=0, allow_inf_nan=False)
    confidence: float | None = Field(default=None, gt=0, lt=1)
    score: ScoreName
    answers: bool = False
    calibration: int = Field(ge=0)
    cutoffs: CutoffFile
    experts: list[str]
    by: Literal["all", "domain"] = "all"
    small: Literal["merge", "silent"] = "merge"
    budget: Literal["harm", "routing"] = "harm"
    loss: Literal["harm", "log"] = "harm"
    bound: float = Field(default=BOUND, gt=0, allow_inf_nan=False)
    trials: list[TrialFile] = []
    domains: list[DomainFile] = []
    owners: list[str] = []


def write_calibration(
    risk_file: Path, thresholds_file: Path, control: RiskControl, compared: Mapping[BankId, RiskControl] | None = None
) -> None:
    """Write a calibrated control to its two files, with the controls of banks that are compared at the same risk."""
    write_json(risk_file, control.to_json())
    groups = {} if control.groups is None else {"groups": control.groups}
    named = {"domains": control.domains, "class_domains": control.class_domains, "domain_head": control.head}
    groups |= {name: tensor for name, tensor in named.items() if tensor is not None and control.domains is not None}
    if control.amounts is not None:
        groups["amounts"] = control.amounts
    if control.mistakes is not None:
        groups["mistakes"] = control.mistakes.to(torch.uint8)
    others = {
        f"{bank_id}:{region}": values
        for bank_id, other in (compared or {}).items()
        for region, values in other.thresholds.items()
    }
    for bank_id, other in (compared or {}).items():
        if other.mistakes is not None:
            others[f"{bank_id}:mistakes"] = other.mistakes.to(torch.uint8)
        if control.owners and other.domains is not None:
            others[f"{bank_id}:domains"] = other.domains.clone()  # a file holds no views
    write_tensors(thresholds_file, control.thresholds | groups | others)


def read_calibration(folder: Path, experts: Sequence[Any] = (), files: tuple[str, str] = FILES) -> RiskControl | None:
    """Return the risk control of a seed, or None where it has none.

    Parameters
    ----------
    folder
        Folder of the seed, RUN/seed-N.
    experts
        The experts of the seed, in order.
    files
        The names of the two files, where they are not the usual ones.
    """
    return _read(folder, experts, files).get(None)


def read_compared(folder: Path, experts: Sequence[Any] = ()) -> dict[BankId, RiskControl]:
    """Return the controls of banks that are compared at the same risk; arguments as for `read_calibration`."""
    return {bank_id: control for bank_id, control in _read(folder, experts).items() if bank_id is not None}


def _read(folder: Path, experts: Sequence[Any], files: tuple[str, str] = FILES) -> dict[BankId | None, RiskControl]:
    """Return every control of a seed by its bank; that of the model itself has None."""
    path, thresholds_file = (folder / name for name in files)
    if not is_expected(path):
        return {}
    about: RiskFile = read_json(path, RiskFile, misfit="does not hold a calibration", advice="repeat the run")
    tensors = read_tensors(thresholds_file)
    names = ("groups", "domains", "class_domains", "domain_head", "amounts")
    groups, domains, class_domains, head, amounts = (tensors.pop(name, None) for name in names)
    by_bank: dict[BankId | None, dict[str, Tensor]] = {None: {}}
    with guarded(thresholds_file, "does not belong to risk.json", "repeat the run"):
        for name, values in tensors.items():
            bank, colon, region = name.rpartition(":")
            by_bank.setdefault(BankId.parse(bank) if colon else None, {})[region] = values
        own = {bank_id: thresholds.pop("domains", None) for bank_id, thresholds in by_bank.items()}
        rows = _check_amounts(amounts, groups, about)
        counts = {bank_id: rows if one is None else len(one) for bank_id, one in own.items()}
        mistakes = {one: _pop_mistakes(thresholds, counts[one]) for one, thresholds in by_bank.items()}
        right = all(
            set(thresholds) == set(REGIONS)
            and all(_are_thresholds(values, counts[bank_id]) for values in thresholds.values())
            for bank_id, thresholds in by_bank.items()
        )
        right &= all(one is None or _are_indices(one, about) for one in own.values())
        right &= _are_owners(about) and (not about.owners or class_domains is not None)
        right &= groups is None or (groups.shape == (rows,) and groups.dtype == torch.int64)
        right &= _are_domains(domains, class_domains, head, about) and (domains is None or len(domains) == rows)
        right &= about.budget == "harm" or mistakes[None] is not None
        right &= not about.trials or len(about.trials) == len(about.experts)
        if not right or (experts and about.experts != [expert.name for expert in experts]):
            raise ValueError("other thresholds")
    settings = {"groups": groups, "experts": experts, "names": about.experts, "answers": about.answers}
    settings |= {"by": about.by, "small": about.small, "class_domains": class_domains, "head": head}
    settings |= {"domain_names": [domain.name for domain in about.domains]}
    settings |= {"loss": about.loss, "bound": about.bound, "amounts": amounts}
    settings |= {"trials": [Trial(**trial.model_dump()) for trial in about.trials], "budget": about.budget}
    return {
        bank_id: RiskControl.from_thresholds(
            thresholds,
            about.risk,
            about.confidence,
            about.score,
            mistakes=mistakes[bank_id],
            domains=domains if own[bank_id] is None else own[bank_id],
            owners=about.owners if bank_id is None else (),
            **settings,
        )
        for bank_id, thresholds in by_bank.items()
    }


def _check_amounts(amounts: Tensor | None, groups: Tensor | None, about: RiskFile) -> int:
    """Return the number of thresholds, or raise `ValueError` where the steps are not those of a log-loss."""
    if about.risk > (about.bound if about.loss == "log" else 1) or (amounts is None) != (about.loss == "harm"):
        raise ValueError("another loss")
    if amounts is None:
        return about.calibration
    fits = amounts.ndim == 1 and amounts.dtype == torch.float64 and bool(((amounts >= 0) & (amounts <= 1)).all())
    if not fits or groups is None or groups.shape != amounts.shape or groups.dtype != torch.int64:
        raise ValueError("other amounts")
    names, index = groups.unique(return_inverse=True)
    sums = torch.zeros(len(names), dtype=torch.float64).index_add_(0, index, amounts)
    if len(names) != about.calibration or bool((sums > 1 + 1e-9).any()) or about.budget != "harm":
        raise ValueError("other requests")
    return len(amounts)


def _pop_mistakes(tensors: dict[str, Tensor], count: int) -> Tensor | None:
    """Take the mistakes out of the tensors of a bank, (n,), or raise `ValueError` where they are none."""
    values = tensors.pop("mistakes", None)
    if values is None:
        return None
    if values.shape != (count,) or values.dtype != torch.uint8 or bool((values > 1).any()):
        raise ValueError("other mistakes")
    return values.bool()


def _are_thresholds(values: Tensor, count: int) -> bool:
    fits = values.shape == (count,) and values.is_floating_point()
    return fits and not bool(values.isnan().any())


def _are_domains(domains: Tensor | None, class_domains: Tensor | None, head: Tensor | None, about: RiskFile) -> bool:
    """Return whether the domains of examples, and of classes or the head, are those that risk.json names, or none is.

    Where there is no head, every class has a domain.
    """
    if domains is None:
        return class_domains is None and head is None and about.by == "all" and not about.domains
    named = about.loss == "log" and class_domains is None and head is None  # whoever asks names the domain of a request
    if (class_domains is None) == (head is None) and not named:
        return False
    if head is not None and (head.ndim != 2 or head.shape[1] != len(about.domains) or not _is_finite(head)):
        return False
    indices = (domains,) if class_domains is None else (domains, class_domains)
    return all(_are_indices(index, about) for index in indices)


def _are_indices(domains: Tensor, about: RiskFile) -> bool:
    """Return whether these are indices of domains that risk.json names."""
    fits = domains.dtype == torch.int64 and domains.ndim == 1
    return fits and bool(((domains >= 0) & (domains < len(about.domains))).all())


def _are_owners(about: RiskFile) -> bool:
    """Return whether risk.json names no owners, or domains that keep the risk each by itself."""
    known = {domain.name for domain in about.domains}
    return not about.owners or (set(about.owners) <= known and (about.by, about.small) == ("domain", "silent"))


def _is_finite(head: Tensor) -> bool:
    return head.dtype == torch.float32 and bool(head.isfinite().all())


def read_controls(folder: Path) -> dict[BankId | None, RiskControl]:
    """Return the controls of a seed by bank, that of the model itself under None; nothing where it has none."""
    return _read(folder, ())
