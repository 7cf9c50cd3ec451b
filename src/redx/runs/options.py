"""Options of `redx run TASK`: short names for settings, and any setting by its dotted name.

An option is a keyword of `redx.run`, a flag of the command line and the setting that it changes; its type, help and
default come from the setting. `redx.run` takes the name of the flag too: `data=FILE` for `--data FILE`. `*` in a path
stands for every stage of a kind: `*.training.batch` is the batch size of base, experts and router.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from redx.config import RunConfig, TrainingConfig
from redx.errors import RedxError
from redx.io.reading import parse_json
from redx.tasks import Task

STAGES = ("base", "experts", "router")


@dataclass(frozen=True)
class Option:
    """One option: a keyword of `redx.run` and the dotted name of the setting that it changes."""

    keyword: str
    path: str
    name: str = ""  # of the flag, where it differs from the keyword

    @property
    def flag(self) -> str:
        """How it is written on the command line."""
        return f"--{(self.name or self.keyword).replace('_', '-')}"


_ALL = (  # in the order of help texts; a new option is listed here, and by the tasks that read it
    Option("backbone", "backbone"),
    Option("device", "device"),
    Option("data_dir", "data_dir"),
    Option("train", "adapters.train"),
    Option("adapter", "adapters.given"),
    Option("only_domain", "adapters.domains", "domain"),
    Option("steps", "adapters.training.steps"),
    Option("rank", "adapters.training.rank"),
    Option("documents", "adapters.documents"),
    Option("request_risk", "adapters.request_risk"),
    Option("file", "table.file", "data"),
    Option("questions_file", "questions.file", "data"),
    Option("text", "table.text"),
    Option("label", "table.label"),
    Option("domain", "table.domain"),
    Option("split_column", "table.split"),
    Option("clusters", "table.clusters"),
    Option("total", "questions.total"),
    Option("split", "split"),
    Option("operators", "questions.operators"),
    Option("operations", "questions.operations", "operation"),
    Option("experts", "questions.experts"),
    Option("decomposer", "questions.decomposer"),
    Option("blocks", "encoding.blocks", "block"),
    Option("pooling", "encoding.pooling"),
    Option("precision", "encoding.precision"),
    Option("tokens", "encoding.tokens"),
    Option("runtime", "encoding.runtime"),
    Option("share", "base.share"),
    Option("trunk", "base.trunk.shape"),
    Option("depth", "base.trunk.depth"),
    Option("train_blocks", "base.trunk.blocks"),
    Option("limit", "limit"),
    Option("shots", "shots"),
    Option("risk", "risk"),
    Option("confidence", "confidence"),
    Option("by", "by"),
    Option("small", "small"),
    Option("budget", "budget"),
    Option("score", "score"),
    Option("routing", "router.shape", "router"),
    Option("batch", "*.training.batch", "batch_size"),
    Option("virtual_batch", "*.training.virtual_batch", "virtual_batch_size"),
    Option("epochs_base", "base.training.epochs", "max_epochs_base"),
    Option("epochs_experts", "experts.training.epochs", "max_epochs_experts"),
    Option("epochs_router", "router.training.epochs", "max_epochs_router"),
    Option("patience", "*.training.patience"),
    Option("integrate", "integrate"),
    Option("study", "study"),
)
OPTIONS = {option.keyword: option for option in _ALL}


def find_keyword(name: str, task: Task) -> str | None:
    """Return the keyword of an option that is named as a keyword or as its flag; None where there is none.

    Of two options with the same flag, such as `data`, it is the one that the task reads.
    """
    named = [option.keyword for option in _ALL if name in (option.keyword, option.name)]
    return next((keyword for keyword in named if keyword in task.options), named[0] if named else None)


def find_field(path: str) -> FieldInfo:
    """Return the field of `RunConfig` that a dotted path leads to; stages share the fields of `TrainingConfig`."""
    head, _, rest = path.partition(".")
    if head in ("*", "experts"):
        return TrainingConfig.model_fields[rest.removeprefix("training.")]
    model: type[BaseModel] = RunConfig
    *sections, leaf = path.split(".")
    for section in sections:
        model = _model_of(model.model_fields[section].annotation)
    return model.model_fields[leaf]


def _model_of(annotation: Any) -> type[BaseModel]:
    """Return the settings class in an annotation such as `TableConfig | None`."""
    options = typing.get_args(annotation) or (annotation,)
    return next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))


def value_type(field: FieldInfo) -> tuple[Any, bool]:
    """Return the Python type of a setting's values for the command line, and whether the option can be repeated."""
    annotation = field.annotation
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(option for option in typing.get_args(annotation) if option is not type(None))
    repeated = typing.get_origin(annotation) is tuple
    if repeated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is typing.Literal:
        return str, repeated
    return annotation, repeated


def choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the words that a setting can have, where it has a fixed list of them."""
    literals = [field.annotation, *typing.get_args(field.annotation)]
    return next((typing.get_args(one) for one in literals if typing.get_origin(one) is typing.Literal), ())


# --- values in the settings, as `model_dump` returns them


def get_setting(settings: dict[str, Any], path: str) -> Any:
    """Return the value at a dotted path; of several stages, the first."""
    section, leaf = next(iter(_sections(settings, path)))
    return section[leaf]


def set_setting(settings: dict[str, Any], path: str, value: Any, flag: str) -> None:
    """Set the value at a dotted path, or refuse it where the task has no such section."""
    for section, leaf in _sections(settings, path):
        if section is None:
            raise RedxError(f"Task '{settings['task']}' does not read the setting '{path}'; leave out {flag}.")
        section[leaf] = value


def _sections(settings: dict[str, Any], path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the section and the name of the leaf for every setting that a path stands for."""
    head, _, rest = path.partition(".")
    if head == "*":
        for stage in STAGES:
            yield from _sections(settings, f"{stage}.{rest}")
    elif head == "experts":
        for bank in [*settings["banks"].values(), settings["ownership"]["bank"]]:
            yield from _sections(bank, rest)
    else:
        *sections, leaf = path.split(".")
        for section in sections:
            settings = settings[section]
        yield settings, leaf


def apply_assignment(settings: dict[str, Any], assignment: str) -> None:
    """Apply `--set PATH=VALUE`: the path must exist; the value is JSON, or else text.

    Parameters
    ----------
    settings
        Settings as `RunConfig.model_dump` returns them; changed in place.
    assignment
        Such as `base.trunk.depth=3`, `banks.residual/plain.hidden=32` or `encoding.blocks=[2, 4]`.
    """
    path, separator, text = assignment.partition("=")
    path = path.strip()
    if not separator or not path:
        raise RedxError(f"{assignment!r} sets nothing; write --set NAME=VALUE, such as --set base.trunk.depth=3.")
    known = dict(leaf_settings(settings))
    if path not in known:
        near = difflib.get_close_matches(path, known, n=1, cutoff=0.0)
        raise RedxError(f"There is no setting '{path}'; did you mean '{near[0]}'?")
    section, leaf = next(iter(_sections(settings, path)))
    section[leaf] = parse_value(text)


def parse_value(text: str) -> Any:
    """Return a value that is written as JSON, or the text itself."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text.strip()


def leaf_settings(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every single setting by its dotted name."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from leaf_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
