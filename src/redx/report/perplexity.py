"""The perplexity of language models by domain; other runs have no such section."""

from __future__ import annotations

import math

from redx.report.content import Table
from redx.report.document import RunFigures, Section
from redx.report.tables import perplexity_table, requests_table

QUESTION = "How well is the text of every domain predicted?"


def describe(run: RunFigures) -> Section:
    """Return the section of a run, which is empty where nothing predicts text."""
    table = perplexity_table(run.rules, run.summary.get("domains", []))
    if not table.rows:
        return Section("Perplexity")
    more = (_alone(run), _merges(run))
    by_request = requests_table(run.summary.get("requests", {}))
    tables = (table, by_request) if by_request.rows else (table,)
    return Section("Perplexity", QUESTION, answer(run, table), tables=tables, more_tables=more)


def answer(run: RunFigures, table: Table) -> str:
    """Return in one sentence how RED compares with the base, with every document's own expert and with merging."""
    means = {str(row[0]): float(str(row[-1])) for row in table.rows}
    red, base, own = (means.get(name) for name in ("red/plain", "base", "red-oracle/plain"))
    if red is None or base is None:
        return ""
    words = [f"RED's mean perplexity is {_change(red / base - 1)} the base's"]
    if own is not None:
        words.append(f"{_change(red / own - 1)} that of every document's own expert")
    merged = [mean for name, mean in means.items() if name.startswith("average/")]
    if merged:
        words.append(f"{_change(red / min(merged) - 1)} that of the best merge")
    active = run.rules.get("red/risk", {}).get("risk", {}).get("active")
    silent = "" if active is None else f" With the cut-off an expert is active on {active:.1%} of the tokens."
    return f"{', '.join(words)} ({red:.3f}).{silent}".replace("%", " %").replace("  %", " %")


def _change(share: float) -> str:
    """Return a relative change in words: 12.3 % below or above."""
    return f"{abs(share):.1%} {'below' if share < 0 else 'above'}"


def _alone(run: RunFigures) -> Table:
    domains, alone = run.summary.get("domains", []), run.summary.get("alone", {})
    rows = tuple((name, *(f"{math.exp(losses[domain]):.3f}" for domain in domains)) for name, losses in alone.items())
    return Table("Perplexity of every expert alone", ("expert", *domains), rows, "First seed, without a cut-off.")


def _merges(run: RunFigures) -> Table:
    chosen = run.summary.get("merges", {})
    rows = tuple((method, choice["scale"], choice["loss"]) for method, choice in chosen.items())
    note = "The weight is the same for every expert and was chosen by the loss of a token on validation documents."
    return Table("Merges", ("merge", "chosen weight", "validation loss"), rows, note)
