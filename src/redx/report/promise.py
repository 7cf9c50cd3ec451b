"""Is the promise kept: harm of the worst router against the risk, in every domain, and which experts are out."""

from __future__ import annotations

from redx.report.content import Figure, Line, Panel, Table
from redx.report.document import RunFigures, Section, Summary
from redx.report.headline import told_promise, told_quarantine
from redx.report.words import capital, joined

QUESTION = "Does the worst router cost more than the risk that was chosen, and does it anywhere?"
MAX_DOMAINS = 24  # rows in the plot, those with the largest harm


def describe(run: RunFigures) -> Section:
    """Return the section of a run."""
    promise = run.rules.get(run.main or "", {}).get("risk")
    tables = (_domains_table(promise or {}), _true_table(promise or {}), _quarantine_table(run.summary))
    panels = _panels(promise) if promise else ()
    caption = (
        "Harm: the share of test examples of a domain that the base answers correctly and RED, with some router, does "
        "not; with exact 95 % intervals. The dashed line is the risk. "
        "The risk is promised for the mean over calibration sets."
    )
    if promise and promise["confidence"]:
        caption = f"{caption[: caption.rindex(' The risk')]} The risk is promised for the expected harm."
    figures = (Figure("promise", caption, panels),) if panels else ()
    return Section("Is the promise kept", QUESTION, answer(run), figures, tables)


def answer(run: RunFigures) -> str:
    """Return whether the harm exceeds the risk, over all test examples and in any domain, and who is in quarantine."""
    promise = run.rules.get(run.main or "", {}).get("risk")
    if not promise:
        return ""
    sentences = [told_promise(promise)]
    if domains := promise.get("domains"):
        sentences.append(_told_domains(domains, promise["risk"]))
    return " ".join(filter(None, (*sentences, told_quarantine(run.summary))))


def _told_domains(domains: Summary, risk: float) -> str:
    """Return a sentence on the domain with the largest harm, and those that are promised nothing of their own."""
    known = {name: one for name, one in domains.items() if one["harm"] is not None and one["low"] is not None}
    told = []
    if known:
        name = max(known, key=lambda name: known[name]["harm"])
        one = known[name]
        above = sum(one["low"] > risk for one in known.values())
        ends = (
            f"{above} of {len(known)} domains measurably exceed the risk"
            if above
            else "no domain measurably exceeds the risk"
        )
        told.append(
            f"the largest harm is that of `{name}`, {one['harm']:.4f} ({one['low']:.4f} to {one['high']:.4f}); {ends}"
        )
    if together := [f"`{name}`" for name, one in domains.items() if one["together"]]:
        told.append(f"{joined(together)} have too few calibration examples and keep the risk together")
    if silent := [f"`{name}`" for name, one in domains.items() if one["silent"]]:
        told.append(f"experts are silent where the base names {joined(silent, 'or')}")
    return f"{capital('; '.join(told))}." if told else ""


def _panels(promise: Summary) -> tuple[Panel, ...]:
    """Return the plot of harm by domain with its interval, beside the risk."""
    domains = {name: one for name, one in promise.get("domains", {}).items() if one["harm"] is not None}
    domains = {name: one for name, one in domains.items() if one["low"] is not None}
    if not domains:
        return ()
    names = sorted(domains, key=lambda name: -domains[name]["harm"])[:MAX_DOMAINS]
    key = "routing_harm" if promise.get("budget") == "routing" else "harm"
    dots = [
        Line("red", (domains[name][key],), (row,), low=(domains[name]["low"],), high=(domains[name]["high"],))
        for row, name in enumerate(names)
    ]
    below = sum(domains[name][key] <= promise["risk"] for name in names)
    notes = tuple(f"{domains[name][key]:.4f}" for name in names)
    title = f"{below} of {len(names)} domains are at or below the risk {promise['risk']:.4g}"
    axis = "harm that routers do" if key == "routing_harm" else "harm"
    return (Panel(title, axis, "", tuple(dots), rows=tuple(names), notes=notes, bound=promise["risk"]),)


def _domains_table(promise: Summary) -> Table:
    rows = []
    for name, one in promise.get("domains", {}).items():
        interval = None if one["low"] is None else f"{one['low']:.4f}-{one['high']:.4f}"
        how = "silent" if one["silent"] else "shared" if one["together"] else "own"
        shares = (one["base"], one["clean"], one["worst"], one["harm"])
        rows.append((name, one["calibration"], how, one["examples"], *shares, interval, one["routing_harm"]))
    columns = (
        "domain",
        "calibrated on",
        "cut-off",
        "tested on",
        "base",
        "RED",
        "any router",
        "harm",
        "95 %",
        "by routers",
    )
    note = (
        f"The promise holds in every domain: at most {promise.get('risk', 0):.4g}. Domains with a shared cut-off keep "
        "it together, since each has too few calibration examples. `by routers` is the part of the harm on examples "
        "that the expert of the domain alone answers correctly. The interval is that of what the risk bounds."
    )
    return Table("The promise in every domain", columns, tuple(rows), note)


def _true_table(promise: Summary) -> Table:
    true = {name: one["true"] for name, one in promise.get("domains", {}).items() if "true" in one}
    rows = tuple(
        (name, one["examples"], one["mean"], f"{one['low']:.4f}-{one['high']:.4f}") for name, one in true.items()
    )
    note = (
        "The domains share classes. The risk is kept among the examples for which the base names a domain, as above; "
        "among those that belong to it, the harm is measured and not bounded."
    )
    return Table("Harm by true domain", ("true domain", "tested on", "harm", "95 %"), rows, note)


def _quarantine_table(summary: Summary) -> Table:
    rows = tuple(
        (
            one["expert"],
            one["seed"],
            "admitted" if one["admitted"] and not one["quarantined"] else "weight zero",
            one["examples"],
            one["helped"],
            one["harmed"],
            one["claimed"],
            one["misclaimed"],
            min(one["p"], one["p_claims"]),
        )
        for one in summary.get("quarantine", [])
    )
    note = (
        "An expert that makes more choice examples wrong than right, where it is confident, or claims more examples of "
        "others than of its own, is composed with weight zero until its owner mends it; p: the chance of so many "
        "if it did as much good as harm. `redx calibrate RUN "
        "--admit NAME` lets it take part."
    )
    return Table(
        "Experts in quarantine",
        ("expert", "seed", "state", "choice examples", "helped", "harmed", "own claimed", "others claimed", "p"),
        rows,
        note,
    )
