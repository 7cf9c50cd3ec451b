"""The summary of a run of adapters: perplexity and next-token accuracy by domain for every way of composing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from redx.adapters.measuring import Measured
from redx.adapters.settings import AdaptersConfig
from redx.composition.certificate import EPSILONS
from redx.io.reading import guarded, parse_json, read_text
from redx.report.content import Table

Row = dict[str, Any]
LABELS = {  # what is shown, with a word on each
    "base": "the base alone",
    "own adapter": "the adapter of the document's own domain: perfect routing",
    "router": "RED with the trained router",
    "keys": "RED with keys, one per adapter",
    "uniform": "RED with equal weights",
    "wrong adapter": "always an adapter of another domain (mean over them)",
    "any router": "the worst router for every token",
    "router at risk": "RED with the trained router and the risk cut-off",
    "wrong adapter at risk": "always an adapter of another domain, with the cut-off",
    "any router at risk": "the worst router for every token, with the cut-off",
}

HARM = {"harmed": "any router", "harmed at risk": "any router at risk"}  # tokens that the base has right and it not


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of results.jsonl of a run folder."""
    results = folder / "results.jsonl"
    with guarded(results, "is damaged", "move it away and repeat the command"):
        return [parse_json(line) for line in read_text(results).splitlines()]


def result_rows(measured: Measured, names: Sequence[str]) -> Iterator[Row]:
    """Yield one row per document and way of composing, for results.jsonl."""
    for document, (domain, tokens) in enumerate(zip(measured.domains, measured.tokens, strict=True)):
        for way, right in measured.right.items():
            row = {"document": document, "domain": names[domain], "way": way, "tokens": tokens}
            row["right"] = right[document]
            if way in measured.loss:
                row["loss"] = measured.loss[way][document]
            yield row


def summarise(
    config: AdaptersConfig,
    names: Sequence[str],
    rows: Sequence[Row],
    calibration: dict[str, Any],
    merges: dict[str, Any],
    hashes: dict[str, str],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """Return the content of summary.json.

    Parameters
    ----------
    config
        Settings of the run.
    names
        Names of the domains.
    rows
        Rows of results.jsonl.
    calibration, merges
        The cut-off, and the chosen weights of merges.
    hashes
        Hashes of the adapters by name.
    seconds
        Seconds of every stage.
    """
    sums: dict[str, dict[str, list[float]]] = {}  # way → domain → loss, right, tokens
    for row in rows:
        total = sums.setdefault(row["way"], {}).setdefault(row["domain"], [0.0, 0.0, 0.0])
        for position, value in enumerate((row.get("loss", math.nan), row["right"], row["tokens"])):
            total[position] += value
    for name, pattern in (("", "adapter {}"), (" at risk", "adapter {} at risk")):
        own, wrong = f"own adapter{name}", f"wrong adapter{name}"
        sums[own], sums[wrong] = {}, {}
        for domain in names:
            others = [sums[pattern.format(other)][domain] for other in names if other != domain]
            sums[own][domain] = sums[pattern.format(domain)][domain]
            if others:
                sums[wrong][domain] = [sum(values) / len(others) for values in zip(*others, strict=True)]
    ways = {way: _figures(by_domain, names) for way, by_domain in sums.items() if by_domain}
    curves = {
        kind: {f"{epsilon:g}": ways.pop(f"{kind} {epsilon:g}")["accuracy"]["mean"] for epsilon in EPSILONS}
        for kind in ("certified", "certified at risk")
    }
    documents = {domain: len({row["document"] for row in rows if row["domain"] == domain}) for domain in names}
    return {
        "task": "adapters",
        "preset": config.preset,
        "backbone": config.backbone,
        "seed": config.seed,
        "adapters": hashes,
        "documents": documents,
        "tokens": int(sum(total[2] for total in sums["base"].values())),
        "ways": ways,
        "certified": curves,
        "risk": calibration | {"active": ways.pop("active at risk")["accuracy"]["mean"]},
        "harm": {way: ways.pop(name)["accuracy"] for name, way in HARM.items() if name in ways},
        "merges": merges,
        "targets": _targets(config, ways, curves, names),
        "seconds": seconds,
    }


def _figures(by_domain: dict[str, list[float]], names: Sequence[str]) -> dict[str, Any]:
    """Return perplexity and accuracy by domain and their mean over domains."""
    perplexity = {name: math.exp(by_domain[name][0] / by_domain[name][2]) for name in names}
    accuracy = {name: by_domain[name][1] / by_domain[name][2] for name in names}
    figures = {"accuracy": accuracy | {"mean": sum(accuracy.values()) / len(names)}}
    if all(map(math.isfinite, perplexity.values())):
        figures["perplexity"] = perplexity | {"mean": sum(perplexity.values()) / len(names)}
    return figures


def _targets(
    config: AdaptersConfig, ways: dict[str, Any], curves: dict[str, Any], names: Sequence[str]
) -> dict[str, float | None]:
    """Return the ratios that say whether composing is worth it."""
    base, own, red = (ways[way]["perplexity"] for way in ("base", "own adapter", "router"))
    merges = [ways[way]["perplexity"]["mean"] for way in ways if way.startswith("merge ")]
    return {
        "own adapter against base, smallest gain of a domain": 1 - max(own[name] / base[name] for name in names),
        "RED with router against best merge": 1 - red["mean"] / min(merges) if merges else None,
        "RED with router against own adapter": red["mean"] / own["mean"] - 1,
        "certified at risk less base": curves["certified at risk"]["1"] - ways["base"]["accuracy"]["mean"],
    }


def table(summary: dict[str, Any], figure: str) -> Table:
    """Return perplexity or accuracy by domain as a table."""
    domains = list(summary["documents"])
    ways = summary["ways"]
    order = [way for way in LABELS if way in ways]
    order += [way for way in ways if way.startswith("merge ")]
    order += [f"adapter {name}" for name in domains]
    decimals = 2 if figure == "perplexity" else 4
    rows = []
    for way in order:
        if figure in ways[way]:
            values = ways[way][figure]
            rows.append((way, *(f"{values[name]:.{decimals}f}" for name in (*domains, "mean"))))
    return Table("", (figure, *domains, "mean"), tuple(rows))
