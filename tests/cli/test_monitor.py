"""The verb monitor: harm by audit lines and labels, exit code 1 on an alarm, one sentence for whatever is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

import redx
from helpers.commands import Ask, refused, succeeded
from helpers.own_data import write_arrays
from helpers.serving import asking
from redx.composition.risk import harm_figures, own_mistakes
from redx.runs.calibration import calibrate_run
from redx.runs.editing import remove_expert
from redx.serve.monitor import monitor_file
from redx.training.datasets import read_features

Lines = list[dict[str, Any]]


def rows_of(folder: Path, copies: int = 1) -> tuple[list[Any], list[str], list[str]]:
    """Return the test examples of a run on clouds as inputs, labels and domains."""
    model = redx.load(folder)
    test = read_features(folder / "seed-0" / "features.safetensors").test
    with asking(folder) as client:
        table = client.get("/api/examples?filter=all&sort=row&limit=200").json()["rows"]
    assert len(table) <= len(test)
    inputs = [row["input"] for row in table]
    assert model.classes
    return inputs * copies, [row["label"] for row in table] * copies, [row["domain"] for row in table] * copies


def answer(folder: Path, audit: Path, inputs: list[Any], **body: Any) -> Lines:
    """Ask a served run and return all lines of its audit file."""
    with asking(folder, audit=audit) as client:
        for start in range(0, len(inputs), 1_000):
            response = client.post("/api/predict", json={"inputs": inputs[start : start + 1_000], **body})
            assert response.status_code == 200, response.text
    return [json.loads(line) for line in audit.read_text().splitlines()]


def write(file: Path, lines: Lines) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def label_rows(lines: Lines, labels: list[str], **more: list[str]) -> Lines:
    extra = [dict(zip(more, values, strict=True)) for values in zip(*more.values(), strict=True)] or [{}] * len(lines)
    return [{"id": line["id"], "label": label, **one} for line, label, one in zip(lines, labels, extra, strict=True)]


@pytest.fixture(scope="module")
def recorded(clouds: redx.Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An audit file of test examples of the run on clouds, with the file of their labels."""
    folder = tmp_path_factory.mktemp("monitored")
    inputs, labels, domains = rows_of(clouds.folder)
    lines = answer(clouds.folder, folder / "a.jsonl", inputs)
    return folder / "a.jsonl", write(folder / "labels.jsonl", label_rows(lines, labels, domain=domains))


def test_harm_is_counted_as_risk_control_counts_it(ask: Ask, clouds: redx.Run, recorded: tuple[Path, Path]) -> None:
    audit, labels = recorded
    report = json.loads(succeeded(ask("monitor", clouds.folder, audit, "--labels", labels, "--json")))
    model = redx.load(clouds.folder)
    lines, rows = ([json.loads(line) for line in file.read_text().splitlines()] for file in (audit, labels))
    _, bank_id = model.rule_and_bank()
    parts = model.parts_of(model.embed([line["input"] for line in lines]), bank_id)
    truth = torch.tensor([model.classes.index(row["label"]) for row in rows])
    known = redx.Parts(parts.base, parts.residuals, parts.gates, truth, None, parts.confidences, parts.cutoffs)
    overall, *domains, confidences = report["tests"]
    assert overall["lines"] == len(rows) == report["labels"]
    assert overall["harm"] == pytest.approx(harm_figures("red", known)["harm"])
    assert sum(one["lines"] for one in domains) == len(rows)
    assert confidences["lines"] == len(lines) == report["lines"]
    assert report["calibration"] > 0
    assert report["alarm"] is False


def test_the_table_fits_and_the_verdict_is_one_sentence(
    ask: Ask, clouds: redx.Run, recorded: tuple[Path, Path]
) -> None:
    audit, labels = recorded
    text = succeeded(ask("monitor", clouds.folder, audit, "--labels", labels))
    table = [line for line in text.splitlines() if line[:1] in "┏┃┡│└"]
    assert max(map(len, table)) <= 80
    assert [word for word in ("lines", "harmed", "harm", "at least", "e-value", "alarm") if word not in table[1]] == []
    assert text.splitlines()[-1].startswith("No alarm: ")
    text = succeeded(ask("monitor", clouds.folder, audit))
    assert "no line is labelled" in text


def test_harm_is_an_alarm_with_exit_code_1(
    ask: Ask, clouds: redx.Run, recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in recorded[0].read_text().splitlines()]
    for line in lines:
        line["radius"] = 0.5  # some router changes every answer
    rows = label_rows(lines, [line["base"] for line in lines])
    code, out, err = ask(
        "monitor", clouds.folder, write(tmp_path / "a.jsonl", lines), "--labels", write(tmp_path / "l.jsonl", rows)
    )
    assert (code, err) == (1, "")
    assert out.splitlines()[-1].startswith("Alarm: the harm is at least 0.")


def test_changed_confidences_are_an_alarm(
    ask: Ask, clouds: redx.Run, recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in recorded[0].read_text().splitlines()]
    for line in lines:
        line["confidence"] = -50.0
    code, out, _ = ask("monitor", clouds.folder, write(tmp_path / "a.jsonl", lines), "--json")
    report = json.loads(out)
    assert code == 1
    assert [test["alarm"] for test in report["tests"]][-1] is True
    assert report["verdict"].startswith("Alarm: the confidences")


def test_labels_may_come_as_csv_and_later(
    ask: Ask, clouds: redx.Run, recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in recorded[1].read_text().splitlines()][::-2]
    file = tmp_path / "l.csv"
    file.write_text("id,label\n" + "".join(f"{row['id']},{row['label']}\n" for row in rows))
    report = json.loads(succeeded(ask("monitor", clouds.folder, recorded[0], "--labels", file, "--json")))
    assert report["tests"][0]["lines"] == len(rows)


def test_answers_in_another_setting_are_left_out(ask: Ask, clouds: redx.Run, tmp_path: Path) -> None:
    audit, (inputs, labels, _) = tmp_path / "a.jsonl", rows_of(clouds.folder)
    name = redx.load(clouds.folder).experts.names[0]
    for body in ({"rule": "moe"}, {"without": [name]}, {"risk": 0.4}, {"monitor": False}):
        answer(clouds.folder, audit, inputs[:2], **body)
    for body in ({"router": "keys"}, {"weights": {name: 1.0}}, {"abstain": 0.2}, {"rule": "red"}):
        lines = answer(clouds.folder, audit, inputs[:2], **body)
    file = write(tmp_path / "l.jsonl", label_rows(lines, labels[:2] * 8))
    text = succeeded(ask("monitor", clouds.folder, audit, "--labels", file))
    assert "The promise is not about 8 of 16 lines; they were left out." in text
    assert "So were 8 of 16 labels." in text
    assert json.loads(succeeded(ask("replay", audit, clouds.folder, "--json")))["differences"] == []


def test_an_abstained_answer_counts_as_what_it_would_have_been(clouds: redx.Run, tmp_path: Path) -> None:
    audit, (inputs, _, _) = tmp_path / "a.jsonl", rows_of(clouds.folder)
    lines = answer(clouds.folder, audit, [[1e3 * value for value in row] for row in inputs], abstain=0.5)
    abstained = [line for line in lines if line["abstained"]]
    assert abstained
    assert all(line["answer"] is None and line["closest"] is not None for line in abstained)
    for line in abstained:
        line["radius"] = 1.0
    rows = label_rows(abstained, [line["base"] for line in abstained])
    report = monitor_file(clouds.folder, write(audit, lines), write(tmp_path / "l.jsonl", rows))
    changed = sum(line["closest"] != line["base"] for line in abstained)
    assert report.watch.monitor.overall.harm == changed


def test_lines_of_another_state_of_the_run_are_refused(ask: Ask, clouds_copy: Path, tmp_path: Path) -> None:
    audit, (inputs, _, _) = tmp_path / "a.jsonl", rows_of(clouds_copy)
    answer(clouds_copy, audit, inputs[:3])
    calibrate_run(clouds_copy, 0.3)
    refused(ask("monitor", clouds_copy, audit), "Line 1", "another calibration")
    remove_expert(clouds_copy, redx.load(clouds_copy).experts.names[0])
    refused(ask("monitor", clouds_copy, audit), "Line 1", "other experts")


AUDITS: dict[str, tuple[Callable[[Lines], object], tuple[str, ...]]] = {
    "backwards": (lambda lines: lines.insert(0, lines.pop()), ("line 2 is older than the line before",)),
    "twice": (lambda lines: lines.insert(1, lines[0]), ("Line 2", "as a line before it has")),
    "nan": (lambda lines: lines[2].update(confidence=float("nan")), ("Line 3", "NaN")),
    "nan as text": (lambda lines: lines[2].update(confidence="nan"), ("Line 3", "confidence 'nan'")),
    "another base": (lambda lines: lines[3].update(base_hash="0"), ("Line 4", "another base")),
    "no id": (lambda lines: lines[0].pop("id"), ("Line 1", "older redx")),
    "no time": (lambda lines: lines[0].update(time="today"), ("Line 1", "no time")),
    "no radius": (lambda lines: lines[0].pop("radius"), ("Line 1", "radius")),
    "kind": (lambda lines: lines[1].update(kind="x"), ("Line 2", "no answer of")),
    "setting": (lambda lines: lines[1].update(setting={"risk": "x"}), ("Line 2", "setting")),
}


@pytest.mark.parametrize("name", AUDITS)
def test_damaged_audit_files_are_one_sentence(
    ask: Ask, clouds: redx.Run, recorded: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    change, words = AUDITS[name]
    lines = [json.loads(line) for line in recorded[0].read_text().splitlines()]
    lines[-1]["time"] = "2999-01-01T00:00:00+00:00"
    change(lines)
    refused(ask("monitor", clouds.folder, write(tmp_path / "a.jsonl", lines)), *words)


LABELS: dict[str, tuple[Callable[[Lines], object], tuple[str, ...]]] = {
    "unknown label": (lambda rows: rows[4].update(label="nonsense"), ("Line 5", "no class of the run")),
    "unknown id": (lambda rows: rows[0].update(id="nobody"), ("Line 1", "which no line of")),
    "twice": (lambda rows: rows.append(rows[0]), ("has the id", "again")),
    "no label": (lambda rows: rows[1].pop("label"), ("Line 2", "no column 'label'")),
    "no id": (lambda rows: rows[1].pop("id"), ("Line 2", "no column 'id'")),
    "unknown domain": (lambda rows: rows[1].update(domain="nowhere"), ("Line 2", "nowhere")),
}


@pytest.mark.parametrize("name", LABELS)
def test_damaged_labels_are_one_sentence(
    ask: Ask, clouds: redx.Run, recorded: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    change, words = LABELS[name]
    rows = [json.loads(line) for line in recorded[1].read_text().splitlines()]
    change(rows)
    refused(ask("monitor", clouds.folder, recorded[0], "--labels", write(tmp_path / "l.jsonl", rows)), *words)


def test_files_that_cannot_be_used_are_one_sentence(
    ask: Ask, clouds: redx.Run, recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    audit, labels = recorded
    empty, text = tmp_path / "empty.jsonl", tmp_path / "text.jsonl"
    empty.touch()
    text.write_text("not json\n")
    refused(ask("monitor", clouds.folder, empty), "is empty")
    refused(ask("monitor", clouds.folder, text), "not JSON")
    refused(ask("monitor", clouds.folder, tmp_path / "none.jsonl"), "There is no file")
    refused(ask("monitor", clouds.folder, audit, "--labels", empty), "is empty")
    refused(ask("monitor", clouds.folder, audit, "--labels", text), "not JSON")
    refused(ask("monitor", clouds.folder, audit, "--labels", tmp_path / "none.csv"), "--labels FILE")
    refused(ask("monitor", clouds.folder, audit, "--labels", audit), "'label'")
    refused(ask("monitor", clouds.folder, audit, "--labels", labels, "--delta", "0"), "0.05")
    refused(ask("monitor", tmp_path, audit), "config.json")


def test_harm_of_routers_leaves_out_an_experts_own_mistakes(ask: Ask, clouds_copy: Path, tmp_path: Path) -> None:
    calibrate_run(clouds_copy, 0.3, budget="routing")
    audit, (inputs, labels, domains) = tmp_path / "a.jsonl", rows_of(clouds_copy)
    lines = answer(clouds_copy, audit, inputs)
    for line in lines:
        line["radius"] = 0.5
    rows = label_rows(lines, labels, domain=domains)
    file = write(tmp_path / "l.jsonl", rows)
    report = json.loads(ask("monitor", clouds_copy, write(audit, lines), "--labels", file, "--json")[1])
    model = redx.load(clouds_copy)
    parts = model.parts_of(model.embed(inputs), model.rule_and_bank()[1])
    truth = torch.tensor([model.classes.index(label) for label in labels])
    places = torch.tensor([model.domain_names.index(domain) for domain in domains])
    known = redx.Parts(parts.base, parts.residuals, parts.gates, truth, places, parts.confidences)
    right = parts.base.argmax(-1) == truth
    assert report["budget"] == "routing"
    assert report["tests"][0]["harmed"] == int((right & ~own_mistakes(known)).sum())
    without = write(tmp_path / "l.jsonl", label_rows(lines, labels))
    refused(ask("monitor", clouds_copy, audit, "--labels", without), "no domain")


def test_every_domain_with_a_promise_is_tested(ask: Ask, tmp_path: Path) -> None:
    x, y = load_digits(return_X_y=True)
    file = write_arrays(tmp_path / "digits.npz", x=x, y=y, domain=[f"pair {label // 2}" for label in y])
    epochs = {"base": 3, "experts": 2, "router": 1}
    settings = {"study": "none", "epochs": epochs, "statistics": {"use": True, "size": 50}}
    folder = redx.run("features", "quick", out=tmp_path / "run", file=str(file), risk=0.05, **settings).folder
    succeeded(ask("calibrate", folder, "--risk", 0.05, "--by", "domain"))
    lines = answer(folder, tmp_path / "a.jsonl", x[:600].tolist())
    rows = label_rows(lines, [str(label) for label in y[:600]])
    labels = write(tmp_path / "l.jsonl", rows)
    code, out, _ = ask("monitor", folder, tmp_path / "a.jsonl", "--labels", labels, "--json")
    overall, *domains, confidences = json.loads(out)["tests"]
    assert [overall["threshold"], confidences["threshold"]] == [pytest.approx(80), pytest.approx(40)]
    assert [one["threshold"] for one in domains] == pytest.approx([80 * len(domains)] * len(domains))
    assert sum(one["lines"] for one in domains) == 600

    model = redx.load(folder)
    parts = model.parts_of(model.embed(x[:600].tolist()), model.rule_and_bank()[1])
    known = redx.Parts(
        parts.base, parts.residuals, parts.gates, torch.from_numpy(y[:600]), None, parts.confidences, parts.cutoffs
    )
    assert model.control is not None
    expected = model.control.by_domain(known)
    found = {one["name"]: one["harm"] for one in domains if " + " not in one["name"]}
    assert found
    assert found == {name: pytest.approx(expected[name]["harm"]) for name in found}

    for line, label in zip(lines, y[:600], strict=True):
        line["radius"] = 0.5 if label // 2 == 3 else 1.0
        line["answer"] = line["base"]
    code, out, _ = ask("monitor", folder, write(tmp_path / "a.jsonl", lines), "--labels", labels)
    assert code == 1
    bad = next(row for row in out.splitlines() if row.startswith("│ pair 3") or " + pair 3" in row)
    assert bad.rstrip(" │").endswith("yes")
    good = [row for row in out.splitlines() if row.startswith("│ pair") and row != bad]
    assert all(row.rstrip(" │").endswith("no") for row in good)
    assert "An alarm is an e-value of 80 of all lines, " in out
    assert out.splitlines()[-1].startswith("Alarm: the harm in pair ")
