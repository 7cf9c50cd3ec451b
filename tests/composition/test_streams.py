"""Records in pieces, without labels, and in groups: figures are those of the whole record; no label is invented."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import redx
from helpers.parts import draw_parts
from redx.composition.evaluation import certify, evaluate, predict, tally
from redx.composition.noise import noise_sweep
from redx.composition.parts import Parts, Pieces
from redx.composition.risk import RiskControl, harm_figures, harm_thresholds, risk_cutoff
from redx.composition.rules import RULES
from redx.config import BankId
from redx.errors import RedxError
from redx.seeding import generator

PLAIN = BankId("residual", "plain")


def cut(parts: Parts, sizes: tuple[int, ...] = (1, 7, 30)) -> Pieces:
    """Return a record in pieces of these sizes, and of the last size until the end."""

    def read() -> Iterator[Parts]:
        start, index = 0, 0
        while start < len(parts):
            stop = start + sizes[min(index, len(sizes) - 1)]
            yield parts.only(slice(start, stop))
            start, index = stop, index + 1

    return Pieces(read)


def unlabelled(parts: Parts) -> Parts:
    return replace(parts, labels=None, domains=None)


def harmful(examples: int = 300, seed: int = 0) -> Parts:
    """Return parts whose base is right on half of the examples, so that there is harm to control."""
    parts = draw_parts(examples, 3, 4, seed=seed)
    labels = torch.where(torch.arange(examples) % 2 == 0, parts.base.argmax(-1), parts.true_labels())
    return replace(parts, labels=labels)


@pytest.mark.parametrize("name", RULES)
def test_pieces_give_the_answers_of_the_whole(name: str) -> None:
    parts = draw_parts(100, 3, 4)
    whole, pieces = certify(name, parts), certify(name, cut(parts))
    assert torch.equal(whole.predicted, pieces.predicted)
    assert torch.equal(whole.radius, pieces.radius)
    assert torch.equal(predict(name, cut(parts)), whole.predicted)
    kinds, levels = ["swap", "jitter", "drop", "permute", "blur"], [0.0, 0.5, 1.0]
    curves = [noise_sweep(name, one, whole.predicted, kinds, levels, 3) for one in (parts, cut(parts))]
    for (kind, first), (_, second) in zip(*curves, strict=True):
        assert all(map(torch.equal, first, second)), kind.name


def test_evaluation_of_pieces_is_that_of_the_whole() -> None:
    parts = replace(draw_parts(120, 3, 4), confidences=draw_parts(120, 3, 4, seed=5).gates)
    parts = RiskControl(0.1).calibrate(parts).apply(parts)
    rules = ["base", "red", "fixed", "sum", "red-oracle"]
    settings_ = {"task": "t", "seed": 3, "domains": ("a", "b", "c"), "rules": rules}
    whole, pieces = (evaluate({PLAIN: one}, **settings_) for one in (parts, cut(parts)))
    for first, second in zip(whole, pieces, strict=True):
        value, other = first.pop("value"), second.pop("value")
        assert first == second
        if first["metric"] == "loss":  # a sum, whose rounding depends on the order
            assert other == pytest.approx(value, rel=1e-6)
        else:
            assert other == value, first


def test_a_stream_is_read_twice_for_all_rules_together() -> None:
    parts, reads = draw_parts(60, 3, 4), 0

    def read() -> Iterator[Parts]:
        nonlocal reads
        reads += 1
        yield from cut(parts, (20,))

    evaluate({PLAIN: read}, task="t", seed=0, domains=("a", "b", "c"), rules=["base", "red", "sum"])
    assert reads == 2


def test_a_vocabulary_streams_without_a_table_of_classes_by_classes() -> None:
    parts = draw_parts(6, 2, 20_000, dtype=torch.float32)
    rows = evaluate({PLAIN: cut(parts, (2,))}, task="t", seed=0, domains=("a", "b"), rules=["red"], kinds=["swap"])
    metrics = {row["metric"] for row in rows}
    assert {"accuracy", "loss", "certified@1", "worst_harm"} <= metrics
    assert not metrics & {"confusion", "recall", "macro_f1"}


def test_calibration_and_report_of_pieces_are_those_of_the_whole() -> None:
    held, test = harmful(200), harmful(100, seed=1)
    whole, pieces = RiskControl(0.05).calibrate(held), RiskControl(0.05).calibrate(cut(held))
    assert whole.cutoffs == pieces.cutoffs
    assert all(torch.equal(whole.thresholds[region], pieces.thresholds[region]) for region in whole.thresholds)
    assert whole.report(test) == pieces.report(cut(test))
    applied = Parts.concatenate(list(pieces.apply(cut(test))))
    assert all(map(torch.equal, applied.tensors().values(), whole.apply(test).tensors().values()))


def test_labels_and_domains_are_not_needed_where_nothing_depends_on_them() -> None:
    parts = harmful(50)
    bare = unlabelled(parts)
    assert torch.equal(redx.certify("red", bare).radius, redx.certify("red", parts).radius)
    control = RiskControl(0.1).calibrate(parts)
    assert torch.equal(predict("sum", control.apply(bare)), predict("sum", control.apply(parts)))
    assert tally("red", replace(parts, domains=None), ("a",)).compute()["worst_domain"] is None


@pytest.mark.parametrize("labels", [None, torch.full((40,), -1)])
def test_unknown_labels_are_refused_where_all_are_unknown(labels: torch.Tensor | None) -> None:
    parts = replace(draw_parts(40, 3, 4), labels=labels)
    for ask in (
        lambda: RiskControl(0.1).calibrate(parts),
        lambda: RiskControl(0.1).calibrate(harmful(40)).report(parts),
        lambda: harm_figures("red", parts),
        lambda: redx.certify_parts(parts),
        lambda: redx.certify_parts(parts, risk=0.1),
        lambda: evaluate({PLAIN: parts}, task="t", seed=0, domains=("a",), rules=["red"]),
        lambda: harm_thresholds("red", replace(parts, confidences=parts.gates)),
    ):
        with pytest.raises(RedxError, match="label"):
            ask()


def test_examples_of_unknown_label_are_left_out_and_counted() -> None:
    parts = harmful(100)
    some = replace(parts, labels=torch.where(torch.arange(100) < 30, -1, parts.true_labels()))
    known = parts.only(slice(30, None))
    control = RiskControl(0.1).calibrate(some)
    assert (control.unknown, control.examples) == (30, 70)
    assert control.cutoffs == RiskControl(0.1).calibrate(known).cutoffs
    assert control.report(some)["after"] == control.report(known)["after"]
    report = redx.certify_parts(some, kinds=[])
    assert report.figures["unknown"] == 30
    assert report.rows.tolist() == list(range(30, 100))
    assert report.figures["accuracy"] == redx.certify_parts(known, kinds=[]).figures["accuracy"]


def test_records_that_cannot_be_read_get_one_sentence() -> None:
    parts = draw_parts(10, 3, 4)
    with pytest.raises(RedxError, match="read several times"):
        certify("red", iter([parts]))
    with pytest.raises(RedxError, match=r"not redx\.Parts"):
        certify("red", [parts, "text"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(RedxError, match="3 and 2 experts"):
        certify("red", [parts, draw_parts(10, 2, 4)])
    with pytest.raises(RedxError, match="different types"):
        replace(parts, gates=parts.gates.float())
    with pytest.raises(RedxError, match="whole numbers"):
        replace(parts, groups=torch.zeros(10))
    with pytest.raises(RedxError, match="not calibrated"):
        RiskControl().apply(parts)
    with pytest.raises(RedxError, match="for both or for neither"):
        RiskControl(0.2).calibrate(parts).apply(replace(parts, confidences=parts.gates))
    with pytest.raises(RedxError, match="hold no domains"):
        certify("red-oracle", replace(parts, domains=None))


# --- groups


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=4), min_size=1, max_size=30),
    st.floats(0, 1),
    st.sampled_from([None, 0.8]),
)
def test_the_group_cutoff_is_the_smallest_that_keeps_the_risk(
    rows: list[list[int]], risk: float, confidence: float | None
) -> None:
    values = torch.tensor([float(value) if value > -3 else -math.inf for row in rows for value in row])
    groups = torch.tensor([index * 7 for index, row in enumerate(rows) for _ in row])
    found = risk_cutoff(values, risk, confidence, groups)

    def harm(cutoff: float) -> float:
        shares = [sum(v > cutoff and v > -3 for v in row) / len(row) for row in rows]
        return sum(shares)

    if confidence is None:
        allowed = risk * (len(rows) + 1) - 1 + 1e-9
        if allowed < 0:
            assert found == math.inf
            return
        assert harm(found) <= allowed + 1e-9
        lower = [value for value in (-math.inf, *range(-2, 4)) if value < found]
        assert all(harm(value) > allowed for value in lower)
    else:
        assert found >= risk_cutoff(values, risk, None, groups)  # a promise with confidence costs more
    order = torch.randperm(len(values), generator=generator(0, "order", len(values)))
    assert risk_cutoff(values[order], risk, confidence, groups[order]) == found


def test_groups_of_one_example_are_examples() -> None:
    values = torch.randn(200, generator=generator(0, "values"))
    for risk in (0.0, 0.01, 0.2, 1.0):
        assert risk_cutoff(values, risk, None, torch.arange(200)) == risk_cutoff(values, risk)


@pytest.mark.parametrize("confidence", [None, 0.9])
def test_the_mean_harm_of_new_groups_keeps_the_risk_although_examples_are_not_exchangeable(
    confidence: float | None,
) -> None:
    """All tokens of a document share a shift, so that tokens of one document are far from independent."""
    source = generator(0, "documents")
    count, size, risk = 80, 12, 0.15
    new = torch.randn(4000, 1, generator=source) + 0.3 * torch.randn(4000, size, generator=source)
    groups, harms = torch.arange(count).repeat_interleave(size), []
    for _ in range(300):
        held = torch.randn(count, 1, generator=source) + 0.3 * torch.randn(count, size, generator=source)
        cutoff = risk_cutoff(held.flatten(), risk, confidence, groups)
        harms.append(float((new > cutoff).double().mean()))
    if confidence is None:
        assert 0.8 * risk < sum(harms) / len(harms) <= risk * 1.05
    else:
        assert sum(harm > risk for harm in harms) / len(harms) <= 1 - confidence


def test_a_control_over_groups_counts_groups_across_pieces() -> None:
    parts = replace(harmful(300), groups=torch.arange(300) // 3)
    control, pieces = RiskControl(0.05).calibrate(parts), RiskControl(0.05).calibrate(cut(parts))
    assert (control.examples, control.units) == (300, 100)
    assert control.cutoffs == pieces.cutoffs
    report = control.report(parts)
    assert report["groups"] == 100
    assert report["after"]["harm"] <= 0.05
    assert report["after"]["low"] <= report["after"]["harm"] <= report["after"]["high"]
    with pytest.raises(RedxError, match="100 calibration groups"):
        RiskControl(0.001).calibrate(parts)
    report = redx.certify_parts(parts, risk=0.1, kinds=[])
    held = set(range(300)) - set(report.rows.tolist())
    assert not {row // 3 for row in held} & {row // 3 for row in report.rows.tolist()}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.floats(0.02, 1), st.floats(0.02, 1))
def test_a_larger_risk_never_raises_the_cutoffs(seed: int, first: float, second: float) -> None:
    control = RiskControl(1.0).calibrate(harmful(60, seed=seed))
    low, high = (control.at(risk).cutoffs for risk in sorted((first, second)))
    assert all(a >= b for a, b in zip(low, high, strict=True))
