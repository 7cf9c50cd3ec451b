"""RQ3: can experts that were trained apart be recombined, added, removed and replaced without retraining?"""

from __future__ import annotations

import itertools

from redx.report.content import Figure, Line, Panel, Table
from redx.report.document import RunFigures, Section, Summary
from redx.report.short import WITHOUT_OWN
from redx.report.words import capital, name_of, signed

QUESTION = "Can experts trained apart be recombined without retraining the backbone?"
MOST = 16  # rows and columns of the heat map


def describe(run: RunFigures) -> Section:
    """Return the section of a run."""
    facts = run.summary.get("modularity", {})
    numbers = run.rules.get(facts.get("rule", ""), {}).get("ece") is None  # a regression has no calibration error
    panels = (*_heat_map(facts, numbers), *growth_panels({run.main or "": facts}, run.accuracy("base")))
    added = "the answer" if numbers else "the logit of the true class, less its mean over the classes"
    caption = (
        f"The heat map shows what an expert adds to {added}, as a mean over the test examples of a domain. In the "
        "curve experts join in the order of the run, with nothing trained or calibrated anew."
    )
    figures = (Figure("modularity", caption, panels),) if panels else ()
    tables = (_experts_table(run, facts), *run.study_tables("modularity"))
    return Section(
        "Can experts come and go (RQ3)", QUESTION, answer(run), figures, (), run.study_figures("modularity"), tables
    )


def answer(run: RunFigures) -> str:
    """Return what joining and leaving experts does to the accuracy."""
    facts = run.summary.get("modularity")
    if not facts:
        return "Every expert was trained without the others; this run holds no figures of experts that come and go."
    curve, without = facts["one_by_one"], facts["without"]
    name, count = name_of(facts["rule"]), len(facts["experts"])
    drops = [before - after for before, after in itertools.pairwise(curve)]
    worst = max(drops, default=0.0)
    missed = min(without, key=lambda expert: without[expert]["accuracy"])
    lowest = f"{without[missed]['accuracy']:.4f}"
    step = "no expert lowers the accuracy when it joins" if worst <= 0 else f"the largest loss at a step is {worst:.4f}"
    words = (
        f"{capital(name)} goes from {curve[0]:.4f} without experts to {curve[-1]:.4f} with all {count}, trained apart"
    )
    sentence = f"{words}; {step}, and without any one of them at least {lowest} remains (without `{missed}`)."
    own = facts.get("without_own")
    if own is None:
        return sentence
    return f"{sentence} With every example answered {WITHOUT_OWN}, it is {own['after']:.4f}."


def growth_panels(by_name: dict[str, Summary], base: float | None) -> tuple[Panel, ...]:
    """Return the panel of accuracy by the number of experts; `by_name` maps names of lines to the facts of runs."""
    curves = {name: facts["one_by_one"] for name, facts in by_name.items() if facts.get("one_by_one")}
    lines = [Line(name, tuple(map(float, range(len(curve)))), tuple(curve)) for name, curve in curves.items()]
    if not lines:
        return ()
    longest = max(len(line.x) for line in lines)
    if base is not None:
        lines.append(Line("base", (0.0, longest - 1.0), (base, base), dashed=True))
    first = next(iter(curves.values()))
    ups = sum(after > before for before, after in itertools.pairwise(first))
    title = f"{ups} of {len(first) - 1} experts raise the accuracy when they join"
    if len(curves) > 1:
        gains = ", ".join(f"{name} {signed(curve[-1] - curve[0], 3)}" for name, curve in curves.items())
        title = f"What all experts add: {gains}"
    return (Panel(title, "number of experts", "accuracy", tuple(lines)),)


def _heat_map(facts: Summary, numbers: bool) -> tuple[Panel, ...]:
    rows, experts = facts.get("contributions", {}), facts.get("experts", [])[:MOST]
    if not rows or not experts:
        return ()
    domains = [name for name in (*experts, *(name for name in rows if name not in experts)) if name in rows][:MOST]
    grid = tuple(tuple(rows[domain][: len(experts)]) for domain in domains)
    whole = [name for name in facts["experts"] if name in rows]
    at_home = sum(
        max(range(len(rows[name])), key=lambda column, name=name: rows[name][column]) == facts["experts"].index(name)
        for name in whole
    )
    title = f"{at_home} of {len(whole)} domains get most from their own expert"
    if numbers:
        largest = max(abs(value) for row in rows.values() for value in row)
        title = f"No expert moves the answers of a domain by more than {largest:.2g} on average"
    few = f" (the first {MOST})" if len(facts["experts"]) > MOST else ""
    return (Panel(title, f"expert{few}", "domain", grid=grid, rows=tuple(domains), columns=tuple(experts)),)


def _experts_table(run: RunFigures, facts: Summary) -> Table:
    described, without = run.summary.get("experts", {}), facts.get("without", {})
    base = run.rules.get("base", {}).get("per_domain", {})
    composed = run.rules.get(facts.get("rule", ""), {}).get("per_domain", {})
    rows = []
    for name in dict.fromkeys((*without, *described)):
        about, left = described.get(name, {}), without.get(name, {})
        own, others = left.get("own") or {}, left.get("others") or {}
        of_own = (base.get(name), composed.get(name), own.get("after"), _brings(own))
        of_others = (others.get("before"), others.get("after"), _brings(others))
        rows.append((name, about.get("dtype"), about.get("examples"), *of_own, *of_others, _whole(left.get("flips"))))
    columns = (
        "expert",
        "stored as",
        "trained on",
        "own domain: base",
        "composed",
        "without it",
        "it brings",
        "other domains: composed",
        "without it",
        "it brings",
        "flips",
    )
    note = (
        "Without it: this expert leaves, all others stay, and the router chooses among them; cut-offs are those of all "
        "experts together. It brings: accuracy with it less accuracy without it, over the same test examples, with its "
        "95 % bootstrap interval. Flips count test answers that change, means over the seeds. `redx experts diff RUN "
        "--remove NAME` calibrates anew and lists the examples."
    )
    return Table("What each expert brings", columns, tuple(rows), note)


def _brings(figures: Summary) -> str | None:
    """Return the paired difference of accuracies with and without an expert, with its interval."""
    if not figures:
        return None
    return f"{signed(figures['difference'])} [{signed(figures['low'])}, {signed(figures['high'])}]"


def _whole(value: float | None) -> float | int | None:
    """Return a count as an integer; a mean over seeds may be none and stays as it is."""
    return value if value is None or value != int(value) else int(value)
