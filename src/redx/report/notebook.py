"""What notebooks show of answers, models and runs: small tables of HTML in which all text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from redx.composition.rules import RULES
from redx.errors import printable
from redx.report.colours import NEUTRAL
from redx.report.short import hint_of, short_rules

WIDTH = 120  # pixels of the longest bar
NAMES = 20  # experts that a model names
LONGEST = 200  # characters of a name or label


def answers_html(answers: Sequence[Mapping[str, Any]], count: int) -> str:
    """Return answers with a bar for what the base and every expert add to the score of the answer.

    Parameters
    ----------
    answers
        Descriptions, as `Explanation.as_dict` returns them.
    count
        How many answers there are, of which these are the first.
    """
    more = f"<p>and {count - len(answers):,} more answers</p>" if count > len(answers) else ""
    return "".join(map(_answer, answers)) + more


def _answer(facts: Mapping[str, Any]) -> str:
    added = {} if facts["base_score"] is None else {"base": facts["base_score"]}
    added |= facts["contributions"]
    largest = max((abs(value) for value in added.values()), default=0.0) or 1.0
    rows = []
    for name, value in added.items():
        weight = facts["weights"].get(name) if name in facts["contributions"] else None
        shown = "" if weight is None else f"{weight:.3f}"
        colour = RULES["red"].colour if value >= 0 else NEUTRAL
        bar = f"<div style='width:{abs(value) / largest * WIDTH:.0f}px;height:0.8em;background:{colour}'></div>"
        rows.append(_row(_text(name), shown, f"{value:+.3f}", bar))
    answer = "none of the known classes" if facts["answer"] is None else facts["answer"]
    head = f"<b>{_text(answer)}</b>, certified radius {facts['radius']:.4g}, base alone: {_text(facts['base'])}"
    return f"<p>{head}</p><table>{_row('', 'weight', 'adds', '', cell='th')}{''.join(rows)}</table>"


def model_html(facts: Mapping[str, str], experts: Sequence[str], home: str | None) -> str:
    """Return what a model is: settings by name, its experts, and the folder that it is from."""
    rows = [_row(_text(name), _text(value)) for name, value in facts.items()]
    names = ", ".join(_text(name) for name in experts[:NAMES]) + (" …" if len(experts) > NAMES else "")
    rows.append(_row(f"{len(experts)} experts", names))
    rows += [_row("folder", _text(home))] if home else []
    return f"<p><b>redx.Model</b></p><table>{''.join(rows)}</table>"


def run_html(summary: Mapping[str, Any], folder: str, report: str) -> str:
    """Return the figures of the main rules of a run, and a link to its report."""
    rows = [_row("rule", "", "clean", "wrong expert", "any router", cell="th")]
    rules = summary["rules"]
    for name in short_rules(rules):
        entry = rules[name]
        wrong, worst = entry["noise"].get("swap", {}).get("1"), entry["certified"].get("1")
        figures = ("—" if value is None else f"{value:.4f}" for value in (entry["accuracy"]["mean"], wrong, worst))
        rows.append(_row(_text(name), _text(hint_of(name, rules)), *figures))
    seeds = ", ".join(map(str, summary["seeds"]))
    title = f"<b>{_text(summary['task'])}</b>, seeds {_text(seeds)}: accuracy on the test split"
    link = f"<a href='{_text(report)}'>report</a> in {_text(folder)}"
    return f"<p>{title}</p><table>{''.join(rows)}</table><p>{link}</p>"


def _row(*cells: str, cell: str = "td") -> str:
    return f"<tr>{''.join(f'<{cell}>{text}</{cell}>' for text in cells)}</tr>"


def _text(value: Any) -> str:
    """Return a value as text in which nothing is markup, and no control character is left."""
    return escape(printable(str(value)[:LONGEST]))
