"""The study of what each expert brings agrees with a model from which the expert was removed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import redx
from helpers.parts import draw_parts
from redx.cli.common import show_brief, show_main_rules
from redx.composition.evaluation import predict
from redx.composition.rules import get_rule
from redx.report.short import WITHOUT_OWN, WITHOUT_OWN_HINT, without_own
from redx.runs.parts import read_parts
from redx.tasks.studies import leave_one_out

RED = get_rule("red")
NAMES = ["a", "b", "c"]


def test_the_figures_are_those_of_a_record_without_the_expert() -> None:
    parts = draw_parts(60, 3)
    facts = leave_one_out.study(RED, [parts], NAMES, shared=True)
    right = predict(RED, parts) == parts.labels
    own_left_out = torch.zeros(60, dtype=torch.bool)
    for index, name in enumerate(NAMES):
        now = predict(RED, parts.keep([k for k in range(3) if k != index])) == parts.labels
        mine = parts.domains == index
        own_left_out[mine] = now[mine]
        for key, rows in {"own": mine, "others": ~mine}.items():
            figures = facts["without"][name][key]
            assert figures["before"] == pytest.approx(float(right[rows].double().mean()))
            assert figures["after"] == pytest.approx(float(now[rows].double().mean()))
            assert figures["difference"] == pytest.approx(figures["before"] - figures["after"])
            assert figures["low"] <= figures["difference"] <= figures["high"]
    assert facts["without_own"]["after"] == pytest.approx(float(own_left_out.double().mean()))
    assert facts["without_own"]["before"] == facts["one_by_one"][-1]


def test_figures_are_means_over_the_seeds() -> None:
    records = [draw_parts(40, 3, seed=seed) for seed in (0, 1)]
    facts = leave_one_out.study(RED, records, NAMES, shared=False)
    alone = [leave_one_out.study(RED, [record], NAMES, shared=True) for record in records]
    assert facts["without_own"]["after"] == pytest.approx(sum(one["without_own"]["after"] for one in alone) / 2)
    assert facts["without"]["b"]["flips"] == sum(one["without"]["b"]["flips"] for one in alone) / 2


def test_a_domain_without_an_expert_or_without_examples_changes_nothing() -> None:
    parts = draw_parts(40, 3)
    strange = replace(parts, domains=torch.full((40,), 3))
    facts = leave_one_out.study(RED, [strange], NAMES, shared=True)
    assert facts["without_own"]["after"] == facts["without_own"]["before"]
    assert facts["without"]["a"]["own"] is None


def test_groups_are_the_unit_of_the_differences() -> None:
    parts = replace(draw_parts(40, 3), domains=torch.zeros(40, dtype=torch.int64), groups=torch.arange(40) // 4)
    own = leave_one_out.study(RED, [parts], NAMES, shared=True)["without"]["a"]["own"]
    assert own["better"] + own["worse"] <= 10


def test_a_run_shows_what_its_experts_bring(clouds: redx.Run, capsys: pytest.CaptureFixture[str]) -> None:
    left_out = without_own(clouds.summary)
    assert left_out is not None
    assert left_out[0] == "red"
    parts = next(parts for bank, parts in read_parts(clouds.folder, 0).banks.items() if str(bank) == "residual/risk")
    wanted = leave_one_out.study(RED, [parts], clouds.summary["modularity"]["experts"], shared=True)
    assert left_out[1] == pytest.approx(wanted["without_own"]["after"])
    for show, words in ((show_brief, WITHOUT_OWN), (show_main_rules, WITHOUT_OWN_HINT)):
        show(clouds.summary)
        printed = " ".join(capsys.readouterr().out.split())
        assert words in printed
        assert f"{left_out[1]:.4f}" in printed
    text = (clouds.folder / "report.md").read_text()
    assert text.count("What each expert brings") == 1
    assert f"answered {WITHOUT_OWN}, it is {left_out[1]:.4f}" in text
