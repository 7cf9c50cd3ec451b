"""Several runs on one page, in the same form as the report of one run: rules × runs, paired where examples agree."""

from __future__ import annotations

from dataclasses import replace

from redx.report import efficiency
from redx.report.colours import label_of
from redx.report.content import Figure, Line, Panel, Table
from redx.report.document import Report, RunFigures, Section, Source, Summary, Tile
from redx.report.efficiency import experts_size, passes
from redx.report.headline import four_figures
from redx.report.modularity import QUESTION as MODULARITY
from redx.report.modularity import growth_panels
from redx.report.performance import QUESTION as PERFORMANCE
from redx.report.performance import RULES
from redx.report.short import COLUMN, from_statistics, on_shared, with_sharing
from redx.report.stability import QUESTION as STABILITY
from redx.report.stability import worst_domain
from redx.report.tables import name_banks
from redx.report.words import LEVEL, chance, joined, signed

Pairs = dict[str, dict[str, Summary]]  # by run and rule, the paired difference to the first run


def compare_runs(runs: list[RunFigures], sources: list[Source], pairs: Pairs) -> Report:
    """Return the page that compares several runs.

    Parameters
    ----------
    runs
        The figures of two or more runs.
    sources
        Facts and command of every run.
    pairs
        Paired differences of rules to the first run, for the runs that have the same test examples.
    """
    sections = (_performance(runs, pairs), _stability(runs), _modularity(runs), _efficiency(runs))
    return Report(
        title=f"{len(runs)} runs compared",
        verdict=_verdict(runs),
        tiles=_tiles(runs),
        sections=tuple(section for section in sections if not section.is_empty),
        appendix=(_every_bank(runs),),
        sources=tuple(sources),
    )


def _verdict(runs: list[RunFigures]) -> str:
    clean = {run.label: run.accuracy(run.main) for run in runs if run.main}
    worst = {run.label: run.certified(run.main) for run in runs if run.main}
    sentences = []
    for figures, words in ((clean, "on clean examples"), (worst, "under the worst router")):
        known = {label: value for label, value in figures.items() if value is not None}
        if known:
            best = max(known, key=lambda label: known[label])
            rest = ", ".join(f"{label} {value:.4f}" for label, value in known.items() if label != best)
            sentences.append(f"{words} `{best}` answers most, {known[best]:.4f}" + (f" ({rest})" if rest else ""))
    text = "; ".join(sentences) or "these runs have no composed model to compare"
    return f"{text[0].upper()}{text[1:]}."


def _tiles(runs: list[RunFigures]) -> tuple[Tile, ...]:
    columns = [(run.label, four_figures(run)) for run in runs if run.main]
    if not columns:
        return ()
    names = ("clean", "always a wrong expert", "any router", "harm of the worst router")
    return tuple(
        Tile(name, tuple((label, tiles[index].values[0][1]) for label, tiles in columns))
        for index, name in enumerate(names)
    )


def _performance(runs: list[RunFigures], pairs: Pairs) -> Section:
    compared = dict.fromkeys((*RULES, *(name for run in runs for name in on_shared(run.rules))))
    rules = [name for name in compared if any(name in run.rules for run in runs)]
    lines = []
    for run in runs:
        present = [(row, run.rules[name]["accuracy"]) for row, name in enumerate(rules) if name in run.rules]
        if present:
            low, high = (tuple(value[key] for _, value in present) for key in ("low", "high"))
            x, y = tuple(value["mean"] for _, value in present), tuple(float(row) for row, _ in present)
            lines.append(Line(run.label, x, y, low=low, high=high))
    labels = tuple(label_of(name) for name in rules)
    panel = Panel(_leader(runs, rules), "accuracy", "", tuple(lines), rows=labels)
    rows = tuple((name, *(_with_interval(run, name) for run in runs)) for name in rules)
    note = "Where owners share other things in the runs, these stand in the order of the runs."
    accuracies = with_sharing(Table("Accuracy", ("rule", *(run.label for run in runs)), rows), _sharing(runs))
    told = any("/" in str(row[1]) for row in accuracies.rows)
    tables = [replace(accuracies, note=note if told else "")]
    if pairs:
        tables.append(_paired_table(runs, pairs))
    figures = (Figure("performance", "Accuracies with 95 % intervals.", (panel,)),) if lines else ()
    answer = f"{_told_bases(runs)} {_paired_answer(runs, pairs)}".strip()
    return Section("What is gained, and from whose data (RQ1)", PERFORMANCE, answer, figures, (), (), tuple(tables))


def _told_bases(runs: list[RunFigures]) -> str:
    """Return a sentence that names the runs whose base is the sum of owners' statistics; empty where there is none."""
    labels = [f"`{run.label}`" for run in runs if from_statistics(run.rules)]
    return f"The base of {joined(labels)} is the sum of the owners' statistics." if labels else ""


def _sharing(runs: list[RunFigures]) -> Summary:
    """Return what owners share under every rule, as figures: once, or in the order of the runs where these differ."""
    by_run = [{**name_banks(run.config, run.rules), **run.rules} for run in runs]
    found = {}
    for name in dict.fromkeys(name for rules in by_run for name in rules):
        words = [rules.get(name, {}).get("shares") for rules in by_run]
        known = sorted({word for word in words if word})
        found[name] = {"shares": known[0] if len(known) == 1 else " / ".join(word or "—" for word in words)}
    return found


def _leader(runs: list[RunFigures], rules: list[str]) -> str:
    """Return which run has the highest accuracy of most rules."""
    wins = {run.label: 0 for run in runs}
    rules = [rule for rule in rules if sum(rule in run.rules for run in runs) > 1]  # others have no rival
    for rule in rules:
        known = {run.label: run.accuracy(rule) or 0.0 for run in runs if rule in run.rules}
        wins[max(known, key=lambda label: known[label])] += 1
    best = max(wins, key=lambda label: wins[label])
    return f"{best} has the highest accuracy of {wins[best]} of {len(rules)} rules" if rules else ""


def _ends(lines: list[Line]) -> str:
    return ", ".join(f"{line.name} {line.y[-1]:.3f}" for line in lines)


def _paired_answer(runs: list[RunFigures], pairs: Pairs) -> str:
    first = runs[0]
    sentences = []
    for label, rules in pairs.items():
        main = first.main or ""
        if main in rules:
            gap, p = rules[main]["difference"], rules[main]["p"]
            told = "is not measurably different" if p >= LEVEL else "answers more" if gap > 0 else "answers fewer"
            sentences.append(f"{label_of(main)} of `{label}` {told} ({signed(gap)}, {chance(p)})")
    if sentences:
        return f"Against `{first.label}` on the same test examples: {'; '.join(sentences)}."
    return f"No other run has the test examples of `{first.label}`, so the differences are not paired."


def _paired_table(runs: list[RunFigures], pairs: Pairs) -> Table:
    rows = []
    by_label = {run.label: run.rules for run in runs}
    for label, rules in pairs.items():
        for name, pair in rules.items():
            gap = f"{signed(pair['difference'])} [{signed(pair['low'])}, {signed(pair['high'])}]"
            shared = by_label[label][name].get("shares")
            rows.append((label, name, shared, gap, pair["better"], pair["worse"], pair["p"]))
    note = (
        f"Accuracy of a rule in the run less that in `{runs[0].label}`, over the same test examples, with 95 % "
        "bootstrap intervals; p: exact sign test, which for one seed is McNemar's test."
    )
    columns = ("run", "rule", COLUMN, "difference", "better", "worse", "p")
    return Table(f"Paired differences to {runs[0].label}", columns, tuple(rows), note)


def _with_interval(run: RunFigures, name: str) -> str | None:
    if name not in run.rules:
        return None
    mean, low, high = (run.rules[name]["accuracy"][key] for key in ("mean", "low", "high"))
    return f"{mean:.4f} [{low:.4f}, {high:.4f}]"


def _stability(runs: list[RunFigures]) -> Section:
    curves: dict[str, list[Line]] = {"swap": [], "certified": []}
    for run in runs:
        figures = run.rules.get(run.main or "", {})
        for kind, curve in (
            ("swap", figures.get("noise", {}).get("swap", {})),
            ("certified", figures.get("certified")),
        ):
            points = sorted((float(at), value) for at, value in (curve or {}).items() if value is not None)
            if points:
                x, y = zip(*points, strict=True)
                curves[kind].append(Line(run.label, x, y))
    words = {
        "swap": ("Always a wrong expert", "level of swap noise", "accuracy"),
        "certified": ("Any router", "ε", "certified accuracy"),
    }
    panels = tuple(
        Panel(f"{words[kind][0]}: {_ends(lines)}", *words[kind][1:], tuple(lines))
        for kind, lines in curves.items()
        if lines
    )
    rows = []
    for run in runs:
        worst = worst_domain(run.rules.get(run.main or "", {})) or (None, None)
        main = run.main or ""
        rows.append((run.label, *worst, run.misrouted(main), run.certified(main)))
    columns = ("run", "worst domain", "its accuracy", "always a wrong expert", "any router")
    table = Table("Stability of the composed model", columns, tuple(rows))
    kept = {row[0]: row[4] for row in rows if row[4] is not None}
    best = max(kept, key=lambda label: kept[label]) if kept else None
    answer = f"Under any router `{best}` keeps most, {kept[best]:.4f}." if best else ""
    figures = (Figure("stability", "The composed model of every run.", panels),) if panels else ()
    return Section("What a wrong router costs (RQ2)", STABILITY, answer, figures, (), (), (table,))


def _modularity(runs: list[RunFigures]) -> Section:
    facts = {run.label: run.summary.get("modularity", {}) for run in runs}
    panels = growth_panels(facts, None)
    rows = []
    for label, known in facts.items():
        without = known.get("without")
        if without:
            missed = min(without, key=lambda expert: without[expert]["accuracy"])
            curve = known["one_by_one"]
            rows.append((label, len(known["experts"]), curve[0], curve[-1], missed, without[missed]["accuracy"]))
    columns = ("run", "experts", "without experts", "with all", "most missed expert", "without it")
    gains = ", ".join(f"`{row[0]}` from {row[2]:.4f} to {row[3]:.4f}" for row in rows)
    answer = f"Experts that were trained apart take {gains}." if gains else ""
    figures = (Figure("modularity", "Experts joined in the order of the run.", panels),) if panels else ()
    return Section(
        "Can experts come and go (RQ3)", MODULARITY, answer, figures, (), (), (Table("Experts", columns, tuple(rows)),)
    )


def _efficiency(runs: list[RunFigures]) -> Section:
    rows = []
    for run in runs:
        cost = run.summary.get("cost", {})
        sizes, counts = experts_size(run) or (None, None), passes(run) or (None, None)
        share = cost.get("composing", {}).get("share")
        seconds, memory = cost.get("seconds", {}).get("total"), cost.get("peak_memory_mb")
        told = f"{share:.2%}" if share is not None else None
        rows.append((run.label, seconds, memory, *sizes, *counts, told))
    columns = (
        "run",
        "seconds",
        "MB",
        "experts and router",
        "backbone or base",
        "texts read",
        "… in a loop",
        "composing",
    )
    known = {row[0]: row[1] for row in rows if row[1] is not None}
    answer = ""
    if known:
        quickest = min(known, key=lambda label: known[label])
        answer = f"`{quickest}` took least time, {known[quickest]:,.1f} seconds."
    note = "Seconds of all stages and seeds; parameters; composing as a share of the time in the backbone."
    return Section(
        "What it costs to train and to ask (RQ4)",
        efficiency.QUESTION,
        answer,
        tables=(Table("", columns, tuple(rows), note),),
    )


def _every_bank(runs: list[RunFigures]) -> Section:
    named = {run.label: name_banks(run.config, run.rules) for run in runs}
    names, sharing = dict.fromkeys(name for rules in named.values() for name in rules), _sharing(runs)
    tables = []
    for title, read in (
        ("Accuracy", lambda figures: figures["accuracy"]["mean"]),
        ("Certified accuracy, any router", lambda figures: figures.get("certified", {}).get("1")),
    ):
        rows = tuple(
            (name, *(read(rules[name]) if name in rules else None for rules in named.values())) for name in names
        )
        tables.append(with_sharing(Table(title, ("rule", *named), rows), sharing))
    return Section("Every rule with every bank", more_tables=tuple(tables))
