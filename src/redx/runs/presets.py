"""From a preset and a user's wishes to the settings of a run."""

from __future__ import annotations

import shlex
from typing import Any

from pydantic import ValidationError

from redx.config import RunConfig
from redx.errors import RedxError
from redx.tasks import get_preset
from redx.tasks import get_preset as find


def configure(name: str, preset: str = "default", **changes: Any) -> RunConfig:
    """The settings of a preset with some changes; None leaves a setting as it is.

    Besides the settings themselves: `run` (red, moe or all) chooses the banks, `alpha` the price of safety, `batch`,
    `virtual_batch` and `patience` hold for every stage, `epochs` is a mapping from base, experts and router; what is in
    PLACES sets questions, table, reading, trunk and base; `file` is the questions' or the table's, as the task reads.
    """
    wanted = {key: value for key, value in changes.items() if value is not None}
    try:
        return RunConfig.model_validate(_apply_changes(find(name, preset).model_dump(), wanted))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(place) for place in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise RedxError(f"Setting '{where}' is not usable: {message}; see `redx run --help`.") from error


def _apply_changes(settings: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Plain settings with the changes of `configure`."""
    everywhere = {key: wanted.pop(key) for key in ("batch", "virtual_batch", "patience") if key in wanted}
    epochs, forms = wanted.pop("epochs", {}), BANK_FORMS.get(wanted.pop("run", "all"))
    if forms is None:
        raise RedxError(f"There is nothing called that to run; choose one of {', '.join(BANK_FORMS)}.")
    if "alpha" in wanted:
        settings["ownership"] |= {"alpha": wanted.pop("alpha")}
    shape, pooling = wanted.get("trunk"), wanted.get("pooling")
    if "file" in wanted:
        settings["table" if settings["table"] else "questions"]["file"] = wanted.pop("file")
    target: dict[str, Any] | None
    for section, names in SHORT_NAMES.items():
        chosen = {name: wanted.pop(name) for name in names if name in wanted}
        target = settings["base"]["trunk"] if section == "trunk" else settings[section]
        if target is None and chosen:
            option = f"--{next(iter(chosen)).replace('_', '-')}"
            raise RedxError(f"Task '{settings['task']}' reads no table of yours; leave out {option}.")
        if target is not None:
            target.update({names[name]: value for name, value in chosen.items()})
    if shape:  # another trunk reads otherwise
        settings["reading"] |= {"pooling": pooling or ("tokens" if shape == "sum" else "mean")}
        settings["base"] |= {"teach": "value" if shape == "sum" else "classes"}
    stages_of = {"base": [settings["base"]], "router": [settings["router"]]}
    stages_of["experts"] = [*settings["banks"].values(), settings["ownership"]["bank"]]
    for stage, found in stages_of.items():
        for each in found:
            each["training"] |= everywhere | ({"epochs": epochs[stage]} if stage in epochs else {})
    settings["banks"] = {key: bank for key, bank in settings["banks"].items() if key.split("/")[0] in forms}
    settings["main"] = {form: bank for form, bank in settings["main"].items() if form in forms}
    if wanted.get("integrate") and "residual/plain" not in settings["banks"]:
        raise RedxError("Stage 4 trains the bank residual/plain, which this run lacks; leave out --integrate.")
    if settings["router"]["shape"] == "keys":
        if not any(bank["owned"] for bank in settings["banks"].values()):
            raise RedxError("The router `keys` reads ownership scores, which the experts of this run lack; choose mlp.")
        if wanted.get("integrate", settings["integrate"]):
            raise RedxError("Stage 4 trains a router, and `keys` has nothing to train; leave out --integrate.")
    return settings | wanted


BANK_FORMS = {
    "red": ("residual", "pooled"),
    "moe": ("standalone", "averaged", "pooled"),
    "all": ("residual", "standalone", "averaged", "pooled"),
}


def reproduce(config: RunConfig) -> tuple[str, list[str]]:
    """The command that repeats a run, and the settings it cannot say because they differ from the preset's."""
    words = ["redx", "run", config.task, "--preset", config.preset]
    words += [word for seed in config.seeds for word in ("--seed", str(seed))]
    try:
        usual = get_preset(config.task, config.preset).model_dump()
    except RedxError:  # a task that is not installed here still has a report
        return shlex.join(words), []
    left = config.model_dump(exclude={"seeds"})
    for name in ("backbone", "device", "data_dir", "limit", "study", "decomposer"):
        words += _option_words(name, left, usual)
    for section, names in SHORT_NAMES.items():
        inner, outer = (each["base"]["trunk"] if section == "trunk" else each[section] for each in (left, usual))
        if inner and outer:
            for short, name in {**names, **({"data": "file"} if "file" in inner else {})}.items():
                words += _option_words(name, inner, outer, OPTION_NAMES.get(short, short))
    return shlex.join(words), [name for name, value in left.items() if value != usual[name]]


def _option_words(name: str, settings: dict[str, Any], usual: dict[str, Any], option: str | None = None) -> list[str]:
    """A setting as a user would give it, if it is not the usual one; it then counts as usual."""
    value = settings[name]
    if value == usual[name]:
        return []
    settings[name] = usual[name]
    values = value if isinstance(value, tuple | list) else [value]
    return [word for each in values for word in (f"--{(option or name).replace('_', '-')}", str(each))]


OPTION_NAMES = {"blocks": "block", "operations": "operation", "routing": "router"}  # where they are called otherwise


SHORT_NAMES = {  # section of the settings to the short names of what stands in it
    "questions": {name: name for name in ("total", "split", "operators", "operations", "experts")},
    "table": {"text": "text", "label": "label", "domain": "domain", "split_column": "split", "clusters": "clusters"},
    "reading": {name: name for name in ("blocks", "pooling", "precision", "tokens")},
    "trunk": {"trunk": "shape", "depth": "depth", "train_blocks": "blocks"},
    "base": {"share": "share"},
    "router": {"routing": "shape"},
}
