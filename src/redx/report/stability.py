"""RQ2: is accuracy balanced over domains, and what happens when the router is wrong?"""

from __future__ import annotations

from redx.report.colours import label_of
from redx.report.content import Figure, Line, Panel, Table
from redx.report.document import RunFigures, Section, Summary
from redx.report.short import main_rules, with_sharing
from redx.report.tables import certified_loss_table, domains_table, noise_area_table
from redx.report.words import capital, name_of

QUESTION = "Do experts behave consistently across domains, and does a wrong router do harm?"
CURVES = ("base", "red", "sum", "moe", "uniform")  # rules with curves
DOTS = ("base", "red", "moe", "global")  # rules in the plot of domains
MAX_DOMAINS = 24  # rows in the plot of domains
PRICE = "price-of-risk"  # the study's figure that belongs beside the curves


def describe(run: RunFigures) -> Section:
    """Return the section of a run."""
    study = run.study_figures("stability")
    price = [panel for figure in study if figure.name == PRICE for panel in figure.panels]
    panels = (*domain_panels(run), *noise_panels(run.rules, ("swap",)), *certified_panels(run.rules), *price)
    caption = (
        "ε is the share of the routing weight that an adversary may move; at ε = 1 the router is arbitrary. Under swap "
        "noise a share of the examples goes to a wrong expert."
    )
    kinds = dict.fromkeys(kind for name in CURVES for kind in run.rules.get(name, {}).get("noise", {}))
    others = noise_panels(run.rules, tuple(kind for kind in kinds if kind != "swap"))
    more = [Figure("noise", "Accuracy under other routing noise, by its level.", others)] if others else []
    more += [figure for figure in study if figure.name != PRICE]
    main = {name: run.rules[name] for name in main_rules(run.rules)}
    order = run.summary.get("domains", [])
    by_rule = domains_table(main, order), noise_area_table(main), certified_table(main), certified_loss_table(main)
    tables = (*(with_sharing(table, main) for table in by_rule), *run.study_tables("stability"))
    figures = (Figure("stability", caption, panels),) if panels else ()
    return Section("What a wrong router costs (RQ2)", QUESTION, answer(run), figures, (), tuple(more), tables)


def answer(run: RunFigures) -> str:
    """Return what the worst domain, a wrong expert and the worst router cost."""
    main = run.main
    if main is None:
        return ""
    sentences = []
    if (worst := worst_domain(run.rules[main])) is not None:
        base = worst_domain(run.rules.get("base", {}))
        beside = f"; the base's is {base[1]:.4f}" if base else ""
        sentences.append(f"The worst domain is `{worst[0]}` with {worst[1]:.4f}{beside}.")
    falls = [(name, run.misrouted(name), run.certified(name)) for name in dict.fromkeys((main, "moe"))]
    parts = []
    for name, swapped, certified in falls:
        if swapped is not None and certified is not None:
            parts.append(
                f"{name_of(name)} answers {swapped:.4f} with always a wrong expert and {certified:.4f} under any router"
            )
    if parts:
        sentences.append(f"{capital('; '.join(parts))}.")
    return " ".join(sentences)


def worst_domain(figures: Summary) -> tuple[str, float] | None:
    """Return the domain with the lowest accuracy; None without domains."""
    shares = {name: share for name, share in figures.get("per_domain", {}).items() if share is not None}
    return min(shares.items(), key=lambda item: item[1]) if shares else None


def domain_panels(run: RunFigures) -> tuple[Panel, ...]:
    """Return the plot of accuracy by domain; the worst domains of the main rule where there are many."""
    main = run.main
    shares = run.rules.get(main or "", {}).get("per_domain", {})
    shares = {name: share for name, share in shares.items() if share is not None}
    if main is None or not shares:
        return ()
    names = sorted(shares, key=lambda name: -shares[name])[-MAX_DOMAINS:]
    lines = []
    for rule in (rule for rule in DOTS if rule in run.rules):
        by_domain = run.rules[rule].get("per_domain", {})
        points = [(by_domain[name], row) for row, name in enumerate(names) if by_domain.get(name) is not None]
        if points:
            x, y = zip(*points, strict=True)
            lines.append(Line(rule, x, y))
    base = run.rules.get("base", {}).get("per_domain", {})
    gained = sum(shares[name] > base.get(name, 1.0) for name in shares)
    title = f"Accuracy lies between {min(shares.values()):.3f} and {max(shares.values()):.3f} over the domains"
    if base:
        title = f"{label_of(main)} is above the base in {gained} of {len(shares)} domains"
    few = f" (the lowest {len(names)} of {len(shares)} domains)" if len(names) < len(shares) else ""
    notes = tuple(f"{shares[name]:.3f}" for name in names)
    return (Panel(title, f"accuracy{few}", "", tuple(lines), rows=tuple(names), notes=notes),)


def noise_panels(rules: Summary, kinds: tuple[str, ...]) -> tuple[Panel, ...]:
    """Return one panel of accuracy by noise level for each of these kinds."""
    panels = []
    for kind in kinds:
        lines = rule_lines({name: rules.get(name, {}).get("noise", {}).get(kind, {}) for name in CURVES})
        if lines:
            panels.append(Panel(f"{capital(kind)}: {_ends(lines)}", f"level of {kind} noise", "accuracy", lines))
    return tuple(panels)


def certified_panels(rules: Summary) -> tuple[Panel, ...]:
    """Return the panel of certified accuracy by ε; none if nothing was certified."""
    lines = rule_lines({name: rules.get(name, {}).get("certified", {}) for name in CURVES})
    return (Panel(f"Any router: {_ends(lines)}", "ε", "certified accuracy", lines),) if lines else ()


def certified_table(rules: Summary) -> Table:
    """Return the table of certified accuracy by rule and ε."""
    epsilons = sorted({epsilon for figures in rules.values() for epsilon in figures.get("certified", {})}, key=float)
    rows = ((name, *(figures.get("certified", {}).get(one) for one in epsilons)) for name, figures in rules.items())
    columns = ("rule", *(f"ε = {epsilon}" for epsilon in epsilons))
    return Table("Certified accuracy", columns, tuple(rows) if epsilons else ())


def rule_lines(curves: dict[str, dict[str, float]]) -> tuple[Line, ...]:
    """Return the curves of rules; a curve maps numbers, written as text, to values."""
    lines = []
    for name in (name for name in curves if curves[name]):
        x, y = zip(*sorted((float(at), value) for at, value in curves[name].items() if value is not None), strict=True)
        lines.append(Line(name, x, y, dashed=name == "base"))
    return tuple(lines)


def _ends(lines: tuple[Line, ...]) -> str:
    """Return where the curves of RED and of the mixture of experts end."""
    ends = {line.name: line.y[-1] for line in lines if line.name in ("red", "moe")}
    return ", ".join(f"{label_of(name)} ends at {value:.3f}" for name, value in ends.items()) or "all curves"
