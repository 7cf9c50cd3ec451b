"""RQ1: does the residual structure outperform a global model, uniform ensembles and gating?"""

from __future__ import annotations

from redx.composition import rules
from redx.report.colours import label_of
from redx.report.content import Figure, Line, Panel, Table
from redx.report.document import RunFigures, Section
from redx.report.short import CONTROL, compared_rules, on_shared, phrase_of, told_base, told_sharing, with_sharing
from redx.report.words import capital, chance, joined, name_of, outcome, signed

QUESTION = "Does the residual expert structure outperform a global model, uniform ensembles and gating?"
RULES = ("red", "base", "global", "uniform", "moe", "oracle", "red-oracle", "sum", "fixed", "average")
RIVALS = ("base", "uniform", "moe", "global", "average")  # that the answer names; others are variants, or know more


def describe(run: RunFigures) -> Section:
    """Return the section of a run."""
    names = shown_rules(run)
    figures = (Figure("performance", _caption(run), _panels(run, names)),) if run.main else ()
    tables = (_table(run, names), *run.study_tables("performance"))
    return Section(
        "What is gained, and from whose data (RQ1)",
        QUESTION,
        answer(run),
        figures,
        (),
        run.study_figures("performance"),
        tables,
    )


def shown_rules(run: RunFigures) -> list[str]:
    """Return the rules of the section, the best first.

    These are the rules of short tables, perfect routing, and pooled heads in closed form.
    """
    pooled = run.config.of_form("pooled").items()
    others = {bank_id.name: bank for bank_id, bank in pooled if bank_id.name != run.config.main.get("pooled")}
    closed = [f"global/{name}" for name, bank in others.items() if bank.fit != "gradient"]
    known = {name: rules.RULES[name] for name in run.rules if name in rules.RULES}
    outside = [name for name, rule in known.items() if name not in RULES and rule.hint is not None]
    names = [name for name in (*RULES, *compared_rules(run.rules), *outside, *closed) if name in run.rules]
    return sorted(names, key=lambda name: -(run.accuracy(name) or 0.0))


def answer(run: RunFigures) -> str:
    """Return which rules the main one beats, equals and loses to, and what the base is where statistics give it."""
    main = run.main
    if main is None:
        return "This run has no composed model to compare."
    groups: dict[str, list[str]] = {"more": [], "as many": [], "fewer": []}
    for other in (name for name in (*RIVALS, *compared_rules(run.rules)) if name in run.rules and name != main):
        word, gap = outcome(run, other)
        groups[word].append(f"{phrase_of(other, run.rules)} ({signed(gap)})")
    ends = {"more": "more than", "as many": "not measurably more or fewer than", "fewer": "fewer than"}
    gaps = [f"{ends[word]} {joined(others)}" for word, others in groups.items() if others]
    verb = f"{capital(name_of(main))} answers {run.accuracy(main):.4f} correctly"
    sentence = f"{verb}: {'; '.join(gaps)}." if gaps else f"{verb}."
    return f"{told_base(run.rules)} {sentence}".strip()


def _caption(run: RunFigures) -> str:
    interval = run.summary.get("interval", "95 %")
    text = f"Accuracy with intervals ({interval})."
    if run.summary.get("paired"):
        text += " Differences are paired over the same test examples, with 95 % bootstrap intervals."
    if on_shared(run.rules):
        text += " What is called `shared` stands on the base of the shared examples alone, without statistics."
    if CONTROL in run.rules:
        text += " `shared-only`: the same experts trained on the shared examples alone."
    return text + " `oracle` and perfect routing know the true domain, which no system does."


def _panels(run: RunFigures, names: list[str]) -> tuple[Panel, ...]:
    labels = tuple(label_of(name) for name in names)
    values = [run.rules[name]["accuracy"] for name in names]
    dots = tuple(
        Line(name, (value["mean"],), (row,), low=(value["low"],), high=(value["high"],))
        for row, (name, value) in enumerate(zip(names, values, strict=True))
    )
    fair = [name for name in names if not rules.get_rule(name.partition("/")[0]).knows_domain]
    title = f"{label_of(run.main or '')} is number {fair.index(run.main or '') + 1} of {len(fair)} rules"
    if len(fair) < len(names):
        title += " that do not know the true domain"
    notes = tuple(f"{value['mean']:.4f}" for value in values)
    panels = [Panel(title, "accuracy", "", dots, rows=labels, notes=notes)]
    pairs = {name: pair for name in names if (pair := run.paired(name)) is not None}
    if pairs:
        differences = tuple(
            Line(name, (pair["difference"],), (row,), low=(pair["low"],), high=(pair["high"],))
            for row, (name, pair) in enumerate(pairs.items())
        )
        rows = tuple(label_of(name) for name in pairs)
        notes = tuple(f"{signed(pair['difference'])}, {chance(pair['p'])}" for pair in pairs.values())
        better = sum(pair["difference"] > 0 and pair["p"] < 0.05 for pair in pairs.values())
        worse = sum(pair["difference"] < 0 and pair["p"] < 0.05 for pair in pairs.values())
        title = f"{label_of(run.main or '')} is measurably better than {better} of them and worse than {worse}"
        axis = f"accuracy of {label_of(run.main or '')} less that of the rule"
        panels.append(Panel(title, axis, "", differences, rows=rows, notes=notes))
    return tuple(panels)


def _table(run: RunFigures, names: list[str]) -> Table:
    columns = ("rule", "accuracy", "macro-F1", "ECE", "difference", "better", "worse", "p")
    rows = []
    for name in names:
        figures, pair = run.rules[name], run.paired(name) or {}
        mean, low, high = (f"{figures['accuracy'][key]:.4f}" for key in ("mean", "low", "high"))
        gap = None
        if pair:
            gap = f"{signed(pair['difference'])} [{signed(pair['low'])}, {signed(pair['high'])}]"
        clean = (figures.get("macro_f1"), figures.get("ece"))
        tested = (pair.get("better"), pair.get("worse"), pair.get("p"))
        rows.append((name, f"{mean} [{low}, {high}]", *clean, gap, *tested))
    note = (
        f"Difference: accuracy of `{run.main}` less that of the rule, over the same test examples, with its 95 % "
        "bootstrap interval; better and worse: examples that only one of the two answers correctly; p: exact sign test "
        "over these, which for one seed is McNemar's test."
    )
    if "groups" in run.summary.get("data", {}):
        note += " Examples come in groups, such as the tokens of a document; differences and tests are those of groups."
    note = f"{note} {told_sharing(run.config)}" if run.summary.get("paired") else told_sharing(run.config)
    return with_sharing(Table("Rules compared on the same examples", columns, tuple(rows), note), run.rules)
