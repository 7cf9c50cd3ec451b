"""Whether answers keep the promise of a run, by what they and their labels say: for audit files and the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redx.composition.monitoring import Monitor
from redx.errors import RedxError
from redx.serve.loaded import LoadedRun
from redx.serve.queries import Options, Setting

ROWS = 1024  # calibration examples that are scored at once


class Watch:
    """The promise of a loaded run, with the tests of whether it still holds.

    Parameters
    ----------
    loaded
        The run.
    delta
        The probability that any test ever raises a false alarm.

    Raises
    ------
    RedxError
        Where the run has no experts under risk control, so that nothing is promised.
    """

    def __init__(self, loaded: LoadedRun, delta: float) -> None:
        if loaded.promise_hash is None:
            raise RedxError(f"{loaded.folder} promises nothing: it has no experts under risk control; monitor another.")
        model, control = loaded.model, loaded.calibration(Setting())
        self.rule, self.risk, self.by, self.budget = model.rule, control.risk, control.by, control.budget
        self.confidence = control.confidence
        if control.by == "domain" and control.class_domains is not None:
            names = control.domain_names
            domains: list[tuple[str, ...]] = [tuple(names[one] for one in group) for group in control.merged]
            places = [names[index] for index in control.class_domains.tolist()]
            self.domain_of = dict(zip(model.classes, places, strict=True))
        else:
            domains = [(name,) for name in model.domain_names]
            found = {label: model.domain_of_answer(index) for index, label in enumerate(model.classes)}
            self.domain_of = {label: name for label, name in found.items() if (name,) in domains}
        self.labels = frozenset(model.classes)
        self.domain_names = frozenset(name for group in domains for name in group)
        reference = calibration_confidences(loaded)
        self.calibration = len(reference)
        self.monitor = Monitor(control.risk, domains, control.by == "domain", delta, reference)

    def is_promised(self, setting: Setting, options: Options) -> bool:
        """Return whether the promise of the run is about an answer in this setting."""
        own = setting.rule in (None, self.rule) and not setting.without and setting.risk in (None, self.risk)
        return own and options.monitor

    def confidence_of(self, answer: Mapping[str, Any]) -> float | None:
        """Return the largest confidence of an expert on an answer; None where the answer has none.

        Raises
        ------
        ValueError
            Where it is no number.
        """
        value = answer.get("confidence")
        if value is None or "steps" in answer:
            return None
        value = float(value) if isinstance(value, str) and value in ("inf", "-inf") else value
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            raise ValueError(f"has the confidence {value!r:.40}, which is no number")
        return float(value)

    def check_label(self, label: str, domain: str | None) -> str | None:
        """Return the true domain of a label: the one that it names, or else the one that is given.

        Raises
        ------
        ValueError
            Where there is no such label or domain, or the domain is needed and not known.
        """
        if self.labels and label not in self.labels:
            raise ValueError(f"has the label {label!r:.100}, which is no class of the run")
        if not self.labels and not label.removeprefix("-").isdecimal():
            raise ValueError(f"has the label {label!r:.100}, which is no whole number")
        found = self.domain_of.get(label, domain)
        if found is not None and found not in self.domain_names:
            raise ValueError(f"has the domain {found!r:.100}, which the run does not know")
        if found is None and self.budget == "routing":
            raise ValueError("has no domain, which the harm that routers do depends on")
        return found

    def is_harmed(self, answer: Mapping[str, Any], label: str, domain: str | None) -> bool:
        """Return whether the promise counts an answer as harmed.

        It is where the base is right and some router makes the composed answer wrong. Where the risk bounds the harm
        that routers do, those do not count on which the expert of the true domain, alone and without a cut-off,
        contradicts the base.
        """
        given = answer.get("closest") if answer.get("abstained") else answer["answer"]
        right = str(answer["base"]) == label
        harmed = right and (str(given) != label or answer["radius"] < 1)
        return harmed and not (self.budget == "routing" and domain in answer["opposed"])

    def describe(self) -> dict[str, Any]:
        """Return the promise, the state of every test and the verdict as plain values."""
        monitor = self.monitor
        return {
            "risk": self.risk,
            "confidence": self.confidence,
            "by": self.by,
            "budget": self.budget,
            "delta": monitor.delta,
            "calibration": self.calibration,
            "tests": [reading.to_dict() for reading in monitor.readings()],
            "alarm": monitor.alarm,
            "verdict": monitor.verdict(),
        }


def calibration_confidences(loaded: LoadedRun) -> np.ndarray:
    """Return the largest confidence of an expert on every calibration example of a run, (n,); n is 0 without them."""
    with loaded.asking(Setting()) as model:
        bank_id = model.config.controlled_bank
        if model.calibration_set is None or bank_id is None or not len(model.experts):
            return np.zeros(0)
        features = model.calibration_set().inputs
        found: list[Tensor] = [
            sure.amax(-1)
            for rows in features.split(ROWS)
            if (sure := model.parts_of(rows, bank_id).confidences) is not None
        ]
        return torch.cat(found).double().cpu().numpy() if found else np.zeros(0)
