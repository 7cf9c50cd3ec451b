"""One state of a seed of a run in memory, which answers in any setting; one thread at a time may use it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from redx.composition.listing import rules_of_run, shares
from redx.composition.risk import RiskControl
from redx.composition.rules import RULES, BaseRule, RuleId, get_rule
from redx.config import SHARED_ONLY, RunConfig
from redx.errors import RedxError
from redx.io.hashing import hash_tensors
from redx.model.model import Model
from redx.models.router import KEYS, TRAINED
from redx.report.short import hint_of
from redx.runs.folder import choose_seed, load_seed, task_of
from redx.runs.transaction import consistently, read_version
from redx.serve.queries import Kind, Setting

MAX_KEPT = 32  # calibrations of other sets of experts
ABSTAIN = 0.05  # rate of false abstentions on the page


def redx_version() -> str:
    """Return the version of redx that is installed."""
    try:
        return importlib.metadata.version("redx")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class LoadedRun:
    """A seed of a run as it was at one moment.

    Parameters
    ----------
    folder
        The run folder, as the user gave it.
    seed
        The seed.
    config
        Settings of the run.
    model
        The model of the seed.
    version
        How often the folder of the seed had been changed when the model was read.
    """

    def __init__(self, folder: Path, seed: int, config: RunConfig, model: Model, version: int) -> None:
        self.folder, self.seed, self.config, self.model, self.version = folder, seed, config, model, version
        self.task = task_of(config)
        self._calibrations: dict[tuple[str, ...], RiskControl] = {}

    @staticmethod
    def read(folder: Path, seed: int | None) -> LoadedRun:
        """Return the present state of a run."""
        config, number = choose_seed(folder, seed)
        seed_folder = folder / f"seed-{number}"

        def load() -> LoadedRun:
            model = load_seed(seed_folder, config)
            loaded = LoadedRun(folder, number, config, model, read_version(seed_folder))
            _ = loaded.hashes, loaded.promise_hash  # every tensor is read now, before the folder can change
            return loaded

        return consistently(folder, seed_folder, load)

    @property
    def seed_folder(self) -> Path:
        """The folder of the seed."""
        return self.folder / f"seed-{self.seed}"

    @property
    def kind(self) -> Kind:
        """What the model reads: texts, images, or lists of numbers."""
        if self.task.text:
            return "text"
        return "image" if tuple(self.model.info.shape) == (28, 28) else "numbers"

    @property
    def abstains(self) -> float | None:
        """The rate of false abstentions that the page uses; None where the model cannot promise it."""
        model, calibration = self.model, self.model.control
        possible = bool(model.classes) and model.anchor_data is not None and model.extension is None
        return ABSTAIN if possible and calibration and ABSTAIN * (calibration.examples + 1) >= 1 else None

    @cached_property
    def extension(self) -> Any:
        """What the task puts before the model, such as the decomposer of a run of steps; None where there is none."""
        return None if self.model.extension is None else self.model.extension.load()

    @cached_property
    def hashes(self) -> dict[str, Any]:
        """Hashes of the base, of each expert, and of what else decides an answer."""
        model = self.model
        others: dict[str, Tensor] = {}
        if model.router is not None:
            others = dict(model.router.network.state_dict())
        return {
            "base": hash_tensors(model.base.tensors(), model.base.encoder.mark),
            "experts": {expert.name: hash_tensors(expert.tensors()) for expert in model.experts},
            "router": hash_tensors(others) if others else None,
        }

    @cached_property
    def promise_hash(self) -> str | None:
        """The hash of what the run promises: risk, cut-offs, quarantine; None where nothing is under risk control."""
        if self.model.config.controlled_bank is None:
            return None
        try:
            content = self.calibration(Setting()).to_json()
        except RedxError:  # experts have changed, and there are no calibration examples
            return None
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules that can be asked, with their adversary, their risk control, and what owners share."""
        banks, config = [bank for bank in self.model.banks if bank != SHARED_ONLY], self.model.config
        listed = rules_of_run(config, banks)
        entries = []
        for name, rule in RULES.items():
            if rule.knows_domain or rule.needs_statistics:
                continue  # a question does not know the true domain, and the others equal the base
            main = config.main_bank(rule.form)
            choices = [RuleId(name)] if main in banks else []
            if not isinstance(rule, BaseRule):
                choices += [RuleId(name, bank.name) for bank in banks if bank.form == rule.form and bank != main]
            else:
                choices += [one for one in map(RuleId.parse, listed) if one.rule == name and one.bank]
            for choice in choices:
                bank = main if not choice.bank else main._replace(name=choice.bank)
                settings = config.banks.get(bank)
                entries.append(
                    {
                        "name": str(choice),
                        "about": hint_of(str(choice), listed),
                        "adversary": rule.adversary,
                        "controlled": bool(settings and settings.controlled and not isinstance(rule, BaseRule)),
                        "shares": shares(str(choice), config),
                    }
                )
        return entries

    @contextmanager
    def asking(self, setting: Setting) -> Iterator[Model]:
        """Use a setting inside a `with` block.

        Raises
        ------
        RedxError
            Where there is no such rule, router or expert, or the calibration examples do not support the risk.
        """
        model, before = self.model, self.model.control
        if setting.rule and get_rule(RuleId.parse(setting.rule).rule).knows_domain:
            raise RedxError(f"The rule {setting.rule!r} needs the true domain of an input; choose one such as red.")
        if setting.router == TRAINED and model.router is None:
            raise RedxError(f"This run has no trained router; leave out router, or give {KEYS}.")
        try:
            with model.using(setting.rule, without=setting.without, router=setting.router):
                _, bank_id = model.rule_and_bank()
                settings = model.config.banks.get(bank_id)
                if settings and settings.controlled:
                    model.control = self.calibration(setting)
                elif setting.risk is not None:
                    raise RedxError(f"The rule {model.rule!r} has no risk control; leave out risk, or choose red.")
                yield model
        finally:
            model.control = before

    def calibration(self, setting: Setting) -> RiskControl:
        """Return the calibration of the experts that the model has now, at the risk of a setting."""
        names = self.model.experts.names
        if names not in self._calibrations:
            if len(self._calibrations) >= MAX_KEPT:
                self._calibrations.pop(next(iter(self._calibrations)))
            self._calibrations[names] = self.model.current_control()
        calibration = self._calibrations[names]
        return calibration if setting.risk is None else calibration.at(setting.risk, calibration.confidence)

    def describe(self) -> dict[str, Any]:
        """Return what the page shows of the model: its task, experts, rules and risk."""
        model, hashes = self.model, self.hashes
        calibration = self.calibration(Setting()) if model.config.controlled_bank else None
        identity = hashlib.sha256(repr(sorted(hashes["experts"].items())).encode() + str(hashes["base"]).encode())
        return {
            "run": str(self.folder),
            "seed": self.seed,
            "task": self.task.name,
            "about": self.task.about,
            "kind": self.kind,
            "shape": list(model.info.shape),
            "steps": model.extension is not None,
            "abstains": self.abstains,
            "redx": redx_version(),
            "version": self.version,
            "fingerprint": identity.hexdigest()[:16],
            "base": hashes["base"],
            "classes": list(model.classes),
            "domains": list(model.info.domains),
            "rule": model.rule,
            "rules": self.rules(),
            "router": model.routing,
            "routers": [KEYS] if model.router is None else [TRAINED, KEYS],
            "risk": None if calibration is None else calibration.to_json(),
            "experts": [self._describe_expert(expert, hashes["experts"][expert.name]) for expert in model.experts],
        }

    def _describe_expert(self, expert: Any, digest: str) -> dict[str, Any]:
        info = expert.info
        return {
            "name": expert.name,
            "hash": digest,
            "classes": list(info.get("classes", [])),
            "dtype": info.get("dtype", "float32"),
            "parameters": sum(tensor.numel() for tensor in expert.tensors().values()),
            "training": info.get("training", {}),
            "accuracy": self._own_accuracy(info.get("metrics", {})),
            "trained_on": (info.get("base") or {}).get("base weights"),
        }

    def _own_accuracy(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the accuracy of base and expert in the expert's own domain, on so many validation examples."""
        config = self.model.config
        main = config.main_bank("residual")
        source = str(config.trained_as(main)) if main in config.banks else ""
        return {"examples": metrics.get("examples"), "base": metrics.get("base"), "expert": metrics.get(source)}
