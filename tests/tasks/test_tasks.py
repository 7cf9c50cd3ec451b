"""All tasks: presets, and the order of domains."""

from __future__ import annotations

import pytest

from redx.config import BankId
from redx.io.files import natural_order
from redx.runs.presets import configure
from redx.tasks import get_preset, get_task, tasks
from redx.tasks.arithmetic.task import TASKS

GIVEN = ("jsonl", "features", "intents")  # tasks that need files, which their own tests make


@pytest.mark.parametrize("name", [name for name in tasks() if name not in GIVEN])
def test_the_domains_of_every_task_are_in_the_order_of_a_library(name: str) -> None:
    changes = {"operations": ["sub", "add"]} if name in TASKS else {}
    config = configure(name, "quick", limit=100, **changes)
    domains = get_task(name).load(config, 0).domains
    assert list(domains) == sorted(domains, key=natural_order)


@pytest.mark.parametrize("name", list(tasks()))
def test_every_task_has_presets_that_name_it(name: str) -> None:
    for key in tasks()[name].presets:
        config = get_preset(name, key)
        assert (config.task, config.preset) == (name, key)
        main = {BankId(form, name) for form, name in config.main.items() if form != "averaged"}
        assert main <= set(config.banks)


@pytest.mark.parametrize("name", list(tasks()))
def test_every_preset_fixes_the_number_of_threads_so_that_figures_do_not_depend_on_the_machine(name: str) -> None:
    assert all(preset.threads > 0 for preset in tasks()[name].presets.values())
