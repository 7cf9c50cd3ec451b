"""The examples of a served run: test examples show the run as it stands, choice examples compare it with others."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from redx.composition.evaluation import certify
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import Rule
from redx.config import BankId
from redx.data.dataset import Split
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.runs.diff import SplitAnswers, compare_answers
from redx.runs.parts import read_parts
from redx.serve.loaded import LoadedRun
from redx.serve.queries import Setting
from redx.training.datasets import read_choices, read_feature_split, read_inputs

KEPT = 8  # settings whose table or comparison stays in memory
FILTERS = ("all", "fragile", "helped", "harmed", "wrong")
MAX_ROWS = 200  # of one page of the table
Part = Literal["test", "choice"]
PARTS: tuple[Part, ...] = ("test", "choice")
Value = TypeVar("Value")


class Recent:
    """The last few values of a function, so that memory stays bounded."""

    def __init__(self, size: int = KEPT) -> None:
        self.size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value of a key, which is computed where it is not among the last."""
        with self._lock:
            if key not in self._values:
                self._values[key] = compute()
                while len(self._values) > self.size:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return self._values[key]


@dataclass(frozen=True)
class Table:
    """The answers of one setting on the test split; every column has N entries."""

    rule: Rule
    predicted: Tensor
    radius: Tensor
    base: Tensor
    labels: Tensor
    domains: Tensor
    domain_names: tuple[str, ...]

    def rows(self, filter: str, domain: str | None, sort: str, descending: bool) -> Tensor:
        """Return the rows that pass a filter, in order."""
        if filter not in FILTERS:
            raise RedxError(f"There is no filter {filter!r}; choose one of {', '.join(FILTERS)}.")
        right, base_right = self.predicted == self.labels, self.base == self.labels
        passes = {
            "all": torch.ones_like(right),
            "fragile": right & (self.radius < 1),
            "helped": right & ~base_right,
            "harmed": base_right & ~right,
            "wrong": ~right,
        }[filter]
        if domain is not None:
            if domain not in self.domain_names:
                raise RedxError(f"There is no domain {domain!r}; choose one of {', '.join(self.domain_names)}.")
            passes = passes & (self.domains == self.domain_names.index(domain))
        rows = passes.nonzero()[:, 0]
        columns = {"radius": self.radius, "row": torch.arange(len(right)), "domain": self.domains, "label": self.labels}
        if sort not in columns:
            raise RedxError(f"The table cannot be sorted by {sort!r}; choose one of {', '.join(columns)}.")
        return rows[columns[sort][rows].argsort(stable=True, descending=descending)]


class ExampleSet:
    """The test and choice examples of one loaded run; what needs the model is computed in the model's thread.

    Parameters
    ----------
    loaded
        The run.
    """

    def __init__(self, loaded: LoadedRun) -> None:
        self.loaded = loaded
        self._file = loaded.folder / f"seed-{loaded.seed}" / "features.safetensors"
        self._raw: dict[Part, Tensor | RedxError] = {}
        self._lock = threading.Lock()
        self._features: dict[Part, Split] = {}
        self._parts, self._tables, self._answers, self._diffs = Recent(2), Recent(), Recent(3), Recent()

    # --- inputs, in any thread

    def load(self) -> None:
        """Read the inputs once; where they cannot be read, keep the reason."""
        with self._lock:
            for part in PARTS[len(self._raw) :]:
                try:
                    self._raw[part] = read_inputs(self._file, part, len(self._split(part)))
                except RedxError as error:
                    self._raw[part] = error

    @property
    def problem(self) -> str | None:
        """Why there are no inputs of test examples; None where there are."""
        self.load()
        raw = self._raw["test"]
        return str(raw) if isinstance(raw, RedxError) else None

    def inputs(self, rows: list[int], part: Part = "test") -> list[Any]:
        """Return inputs as a user would give them; None where they cannot be read."""
        self.load()
        raw = self._raw[part]
        if not isinstance(raw, Tensor):
            return [None] * len(rows)
        values = raw[torch.tensor(rows, dtype=torch.long)]
        if self.loaded.kind == "text":
            return list(unpack_texts(values)) if rows else []
        if self.loaded.task.name == "toy":
            return (values * self.scale).round().long().tolist()
        return values.tolist()

    @property
    def scale(self) -> float:
        """By what the task divides a user's numbers before the network reads them."""
        return float(1 / self.loaded.task.read([[1, 1]])[0, 0])

    # --- answers, in the model's thread

    def _split(self, part: Part) -> Split:
        if part == "test":
            return read_feature_split(self._file, "test")
        return read_choices(self._file, self.loaded.config.ownership.calibration, self.loaded.seed)

    def _embedded(self, part: Part) -> Split:
        if part not in self._features:
            self._features[part] = self._split(part)
        return self._features[part]

    def parts(self, setting: Setting) -> Parts:
        """Return the parts of the test split; a setting may name another rule or router than those of the run."""
        with self.loaded.asking(setting) as model:
            _, bank_id = model.rule_and_bank()
            own_router = setting.router in (None, self.loaded.model.routing)
            if not own_router:
                return SplitAnswers.compute(model, self._embedded("test")).parts
            return self._parts.get(bank_id, lambda: self._stored(bank_id))

    def _stored(self, bank_id: BankId) -> Parts:
        return read_parts(self.loaded.folder, self.loaded.seed, bank_id).banks[bank_id]

    def on_choices(self, setting: Setting) -> SplitAnswers:
        """Return the answers of a setting on choice examples, with a cut-off that is set on them."""
        choices = self._embedded("choice")

        def compute() -> SplitAnswers:
            with self.loaded.asking(setting) as model:
                return SplitAnswers.on_choices(model, choices)

        return self._answers.get(setting, compute)

    def table(self, setting: Setting) -> Table:
        """Return the answers on the test split."""

        def compute() -> Table:
            parts = self.parts(setting)
            with self.loaded.asking(setting) as model:
                rule, names = model.rule_and_bank()[0], model.domain_names
            certified = certify(rule, parts)
            base, labels, domains = predicted_classes(parts.base), parts.true_labels(), parts.true_domains()
            return Table(rule, certified.predicted, certified.radius, base, labels, domains, names)

        return self._tables.get(setting, compute)

    def diff(self, setting: Setting) -> dict[str, Any]:
        """Return what switching experts off changes on the choice examples."""

        def compute() -> dict[str, Any]:
            everything = Setting(setting.rule, setting.router, (), setting.risk)
            before, after = self.on_choices(everything), self.on_choices(setting)
            choices, epsilons = self._embedded("choice"), self.loaded.config.epsilons
            comparison = compare_answers(before, after, self.loaded.model, choices, epsilons)
            shown = comparison["examples"][:MAX_ROWS]
            inputs = self.inputs([flip["row"] for flip in shown], "choice")
            shown = [flip | {"input": value} for flip, value in zip(shown, inputs, strict=True)]
            return comparison | {"examples": shown}

        return self._diffs.get(setting, compute)
