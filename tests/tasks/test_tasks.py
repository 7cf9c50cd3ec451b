"""All tasks: presets, the order of domains, and tasks from outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import redx
from helpers.commands import Ask
from helpers.runs import few_epochs
from redx import registry
from redx.config import BankId
from redx.errors import RedxError
from redx.io.files import natural_order
from redx.runs.presets import configure
from redx.tasks import TASKS, Task, get_preset, get_task
from redx.tasks.arithmetic.task import TASKS as ARITHMETIC

GIVEN = ("jsonl", "features", "intents", "adapters")  # tasks that need files, which their own tests make


@pytest.mark.parametrize("name", [name for name in TASKS if name not in GIVEN])
def test_the_domains_of_every_task_are_in_the_order_of_a_library(name: str) -> None:
    changes = {"operations": ["sub", "add"]} if name in ARITHMETIC else {}
    config = configure(name, "quick", limit=100, **changes)
    domains = get_task(name).load(config, 0).domains
    assert list(domains) == sorted(domains, key=natural_order)


@pytest.mark.parametrize("name", list(TASKS))
def test_every_task_has_presets_that_name_it(name: str) -> None:
    for key in TASKS[name].presets:
        config = get_preset(name, key)
        assert (config.task, config.preset) == (name, key)
        main = {BankId(form, name) for form, name in config.main.items() if form != "averaged"}
        assert main <= set(config.banks)


@pytest.mark.parametrize("name", list(TASKS))
def test_every_preset_fixes_the_number_of_threads_so_that_figures_do_not_depend_on_the_machine(name: str) -> None:
    assert all(preset.threads > 0 for preset in TASKS[name].presets.values())


# --- tasks from outside


@pytest.fixture
def mine() -> Iterator[Task]:
    """A task of a user, which starts from the settings of another."""
    preset = configure("toy", "quick", **few_epochs()).model_copy(update={"task": "mine", "preset": "default"})
    yield Task("mine", "My own data.", {"default": preset}, get_task("toy").load, get_task("toy").read)
    if "mine" in TASKS:
        TASKS.unregister("mine")


@pytest.mark.slow
def test_a_task_that_is_given_as_an_object_runs_and_its_run_is_loaded_by_name(mine: Task, ask: Ask) -> None:
    finished = redx.run(mine)
    assert finished.folder == Path("runs/mine")
    assert finished.summary["task"] == "mine"
    assert redx.load("runs/mine").predict([[12, 5]])
    assert "My own data." in ask("list")[1]
    again = dataclasses.replace(mine, about="My own data, again.")  # as a notebook that is run twice does
    redx.run(again)
    assert TASKS["mine"] is again
    TASKS.unregister("mine")
    with pytest.raises(RedxError, match="task 'mine', which is not registered here; install the package"):
        redx.load("runs/mine")


def test_a_task_with_the_name_of_another_and_no_task_at_all_are_refused(mine: Task) -> None:
    with pytest.raises(RedxError, match="There is a task 'toy' already"):
        redx.run(dataclasses.replace(mine, name="toy"))
    with pytest.raises(RedxError, match="is no task"):
        redx.run(3)  # type: ignore[arg-type]
    with pytest.raises(RedxError, match="There is no task 'nothing'; choose one of"):
        redx.run("nothing")
    with pytest.raises(RedxError, match="know tasks by name"):
        redx.run(mine, engine="ray")


def test_a_plugin_brings_a_task_to_the_command_line(mine: Task, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load_plugins", lambda: TASKS.register("mine", mine))
    assert "mine" in ask("run", "--help")[1]
    assert "My own data." in ask("list")[1]
    assert "My own data." in ask("run", "mine", "--help")[1]


def test_options_have_the_same_names_in_python_as_on_the_command_line() -> None:
    names = {"data": "a.csv", "text": "t", "label": "l", "domain": "d", "split_column": "s", "clusters": 3}
    table = configure("jsonl", **names).table
    assert table is not None
    assert (table.file, table.text, table.label, table.domain, table.split, table.clusters) == tuple(names.values())
    assert configure("jsonl", split="random").split == "random"
    assert configure("addition", data=Path("q.jsonl")).questions.file == "q.jsonl"
    changed = configure("mnist", router="linear", batch_size=7, max_epochs_base=3)
    assert (changed.router.shape, changed.router.training.batch, changed.base.training.epochs) == ("linear", 7, 3)
    with pytest.raises(RedxError, match="Task 'jsonl' has no option 'domian'; did you mean 'domain'"):
        configure("jsonl", domian="l")
