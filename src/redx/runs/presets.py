"""From a preset and a user's changes to the settings of a run, and back to the command that repeats it."""

from __future__ import annotations

import difflib
import json
import os
import shlex
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from redx.config import RunConfig
from redx.errors import RedxError
from redx.models.backbones.hub import CHOICE
from redx.runs.options import OPTIONS, apply_assignment, find_keyword, get_setting, leaf_settings, set_setting
from redx.tasks import Task, get_preset, get_task

FEATURES = "features"  # the backbone of inputs that are features already; `models.encoder` imports torch
NO_TEXT = (FEATURES, "none", "cnn", "cnn-small")  # backbones that read no text
BANK_FORMS = {  # what `run` chooses: forms of banks
    "red": ("residual", "pooled"),
    "moe": ("standalone", "averaged", "pooled"),
    "all": ("residual", "standalone", "averaged", "pooled"),
}


def configure(task: str, preset: str = "default", assignments: Sequence[str] = (), **changes: Any) -> RunConfig:
    """Return the settings of a preset with some changes.

    Parameters
    ----------
    task
        Name of a task.
    preset
        Named settings of the task.
    assignments
        Settings by their dotted names, such as `base.trunk.depth=3`; they are applied last.
    **changes
        Settings by name; None leaves a setting as it is. These are the options of `redx run TASK` by their names on
        the command line (`data`, `text`, `label`, `domain`, …) or by the keywords of `redx.runs.options.OPTIONS`, the
        fields of `RunConfig`, `run`, which chooses the banks (red, moe or all), and `epochs`, a mapping from base,
        experts and router.

    Returns
    -------
    RunConfig
        The checked settings.

    Examples
    --------
    >>> configure("toy", "quick", ["router.hidden=32"], patience=3).router.hidden
    32
    """
    config = settle(task, preset, assignments, **changes)
    from redx.composition.noise import get_noise  # torch takes seconds, which a list of settings need not
    from redx.models.router import check_router

    for kind in config.noise or ():
        get_noise(kind)  # a plugin may bring it
    check_router(config.router)
    return config


def settle(task: str, preset: str = "default", assignments: Sequence[str] = (), **changes: Any) -> RunConfig:
    """Return settings as `configure` does, before the names of routers and noise are looked up; torch is not needed.

    Parameters
    ----------
    task, preset, assignments, **changes
        As `configure` takes them.

    Returns
    -------
    RunConfig
        The settings; a router or noise in them may be unknown.
    """
    settings = get_preset(task, preset).model_dump() | {"task": task}
    wanted = _keywords({key: value for key, value in changes.items() if value is not None}, get_task(task))
    _apply_changes(settings, wanted)
    for assignment in assignments:
        apply_assignment(settings, assignment)
    _check_combination(settings)
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise RedxError(f"Setting '{path}' is not usable: {message}; see `redx run {task} --help`.") from error


def _keywords(wanted: dict[str, Any], task: Task) -> dict[str, Any]:
    """Return changes by keyword or field, where a user may have named an option as the command line does."""
    changes = {}
    for name, value in wanted.items():
        value = str(value) if isinstance(value, os.PathLike) else value
        is_section = name in RunConfig.model_fields and not isinstance(value, str)  # router=RouterConfig(…)
        keyword = None if is_section else find_keyword(name, task)
        known = name in RunConfig.model_fields or name in ("run", "epochs")
        if keyword is None and not known:
            flags = [OPTIONS[one].name or one for one in task.options]
            near = difflib.get_close_matches(name, [*flags, *RunConfig.model_fields], n=1, cutoff=0.0)
            raise RedxError(f"Task '{task.name}' has no option '{name}'; did you mean '{near[0]}'?")
        changes[keyword or name] = value
    return changes


def _apply_changes(settings: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Apply the keywords of `configure` to plain settings, in place."""
    forms = BANK_FORMS.get(wanted.pop("run", "all"))
    if forms is None:
        raise RedxError(f"There is no such choice of banks; choose one of {', '.join(BANK_FORMS)}.")
    if "file" in wanted and settings["table"] is None:
        wanted["questions_file"] = wanted.pop("file")
    wanted |= {f"epochs_{stage}": count for stage, count in wanted.pop("epochs", {}).items()}
    for keyword in [keyword for keyword in wanted if keyword in OPTIONS]:
        option = OPTIONS[keyword]
        set_setting(settings, option.path, wanted[keyword], option.flag)
    if "trunk" in wanted:  # another trunk reads other features and is trained otherwise
        is_sum = wanted["trunk"] == "sum"
        settings["encoding"]["pooling"] = wanted.get("pooling") or ("tokens" if is_sum else "mean")
        settings["base"]["teach"] = "value" if is_sum else "classes"
        for bank in () if is_sum else (*settings["banks"].values(), settings["ownership"]["bank"]):
            if bank["shape"] in ("shift", "value"):  # only a sum codes values
                bank |= {"shape": "mlp", "depth": 2, "fit": "gradient"}
    settings["banks"] = {name: bank for name, bank in settings["banks"].items() if name.split("/")[0] in forms}
    settings["main"] = {form: bank for form, bank in settings["main"].items() if form in forms}
    for name, value in wanted.items():
        if name not in OPTIONS:
            settings[name] = value


def _check_combination(settings: dict[str, Any]) -> None:
    """Refuse settings that are fine alone and not together."""
    task, backbone = get_task(settings["task"]), settings["backbone"]
    if task.text and backbone in NO_TEXT:
        raise RedxError(f"Task '{task.name}' reads text, which the backbone {backbone} cannot; {CHOICE}.")
    if backbone != FEATURES and task.presets["default"].backbone == FEATURES:
        raise RedxError(f"Task '{task.name}' reads features, which need no backbone; leave out --backbone.")
    if settings["integrate"] and "residual/plain" not in settings["banks"]:
        raise RedxError("Stage 4 trains the bank residual/plain, which this run lacks; leave out --integrate.")
    if settings["router"]["shape"] == "keys":
        if not any(bank["controlled"] for bank in settings["banks"].values()):
            raise RedxError("The router `keys` reads ownership scores, which the experts of this run lack; choose mlp.")
        if settings["integrate"]:
            raise RedxError("Stage 4 trains a router, and `keys` has nothing to train; leave out --integrate.")


def reproduce(config: RunConfig) -> tuple[str, list[str]]:
    """Return the command that repeats a run, and the settings that it cannot express.

    Options of the task are used as far as they bring the preset closer to the run's settings; every other setting that
    differs becomes `--set NAME=VALUE`.
    """
    words = ["redx", "run", config.task, "--preset", config.preset]
    words += [word for seed in config.seeds for word in ("--seed", str(seed))]
    target = dict(leaf_settings(config.model_dump(exclude={"seeds"})))
    try:
        task = get_task(config.task)
        task_preset = get_preset(config.task, config.preset)
    except RedxError:  # a task that is not installed here still has a report
        return shlex.join(words), []

    def differences(changes: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of the run that the preset with these changes does not have."""
        settings = task_preset.model_dump()
        _apply_changes(settings, dict(changes))
        reached = dict(leaf_settings(settings))
        different = {path: value for path, value in target.items() if reached.get(path, ...) != value}
        return different | {path: ... for path in reached if path not in target and path != "seeds"}

    changes: dict[str, Any] = {}
    left = differences(changes)
    candidates = [("run", "--run", name) for name in ("red", "moe")]
    plain = config.model_dump()
    for keyword in task.options:
        option = OPTIONS[keyword]
        candidates.append((keyword, option.flag, get_setting(plain, option.path)))
    for keyword, flag, value in candidates:
        if value is None:
            continue
        remaining = differences(changes | {keyword: value})
        if len(remaining) < len(left):
            left, changes[keyword] = remaining, value
            values = value if isinstance(value, tuple | list) else [value]
            words += [flag] if value is True else [word for one in values for word in (flag, str(one))]
    known = dict(leaf_settings(task_preset.model_dump()))
    expressible = {path: value for path, value in left.items() if path in known and value is not ...}
    for path, value in expressible.items():
        words += ["--set", f"{path}={json.dumps(value)}"]
    return shlex.join(words), sorted(set(left) - set(expressible))
