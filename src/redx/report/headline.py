"""The headline of a report: the verdict in a few sentences, and the four figures that carry it."""

from __future__ import annotations

from redx.report.colours import label_of
from redx.report.document import RunFigures, Summary, Tile
from redx.report.short import CONTROL, from_statistics, phrase_of, shared_banks
from redx.report.words import LEVEL, capital, joined, name_of

EXPENSIVE = 0.01  # accuracy that cut-offs may cost before the verdict says so


def verdict(summary: Summary) -> str:
    """Return the verdict on a run, as `findings` returns it, as one text."""
    return " ".join(findings(summary))


def findings(summary: Summary) -> list[str]:
    """Return the verdict on a run in sentences: the gain, whose data bring it, the cost of a wrong router, pooling.

    Parameters
    ----------
    summary
        The content of summary.json, or its section `rules` as the only key.
    """
    rules = summary["rules"]
    name = next((name for name in ("red", "moe") if name in rules), None)
    if name is None or "base" not in rules:
        return ["This run has neither `red` nor `moe` beside a base, so there is nothing to compare."]
    told = (_gain(rules, name), _own_data(summary, name), _worst_router(rules, name), _pooled(summary, name))
    return [sentence for sentence in (*told, told_quarantine(summary)) if sentence]


def _gain(rules: Summary, name: str) -> str:
    """Return what the main rule answers correctly, and the bases beside it."""
    clean, base = rules[name]["accuracy"]["mean"], rules["base"]["accuracy"]["mean"]
    others = [f"base: sum of the owners' statistics {base:.4f}" if from_statistics(rules) else f"base {base:.4f}"]
    for compared in (f"base/{bank}" for bank in shared_banks(rules)):
        others.append(f"{phrase_of(compared, rules)} {rules[compared]['accuracy']['mean']:.4f}")
    return f"{capital(name_of(name))} answers {clean:.4f} of the test examples correctly ({', '.join(others)})."


def _pair(summary: Summary, name: str, other: str) -> Summary | None:
    """Return the paired difference of the main rule to another one; None where it was not measured."""
    paired = summary.get("paired", {})
    return paired.get("rules", {}).get(other) if paired.get("reference") == name else None


def _own_data(summary: Summary, name: str) -> str:
    """Return what the experts' own data bring, against the same experts trained on the shared examples alone."""
    rules, pair = summary["rules"], _pair(summary, name, CONTROL)
    if name != "red" or CONTROL not in rules:
        return ""
    control = rules[CONTROL]["accuracy"]["mean"]
    sentence = f"{capital(phrase_of(CONTROL, rules))} answer {control:.4f}"
    if pair is None:
        return f"{sentence}."
    if pair["p"] >= LEVEL or pair["difference"] <= 0:
        return f"{sentence}: the experts' own data bring nothing here."
    interval = f"{pair['low']:.4f} to {pair['high']:.4f}"
    return f"{sentence}: the experts' own data bring {pair['difference']:.4f} ({interval})."


def _worst_router(rules: Summary, name: str) -> str:
    """Return what the worst router costs, and whether the promise is kept."""
    worst, base = rules[name].get("certified", {}).get("1"), rules["base"]["accuracy"]["mean"]
    if worst is None:
        return ""
    cost = "no less than the base" if worst >= base else f"{base - worst:.4f} less than the base"
    sentence = f"Under the worst router it answers {worst:.4f}, {cost}"
    promise = rules[name].get("risk")
    if not promise:
        return f"{sentence}."
    price = price_of_risk(rules[name]["accuracy"]["mean"], promise)
    return f"{sentence}. {told_promise(promise)} {price}".strip()


def _pooled(summary: Summary, name: str) -> str:
    """Return what one model on all data pooled answers, and whether pooling is worth it."""
    rules = summary["rules"]
    if "global" not in rules:
        return ""
    pooled, clean = rules["global"]["accuracy"]["mean"], rules[name]["accuracy"]["mean"]
    pair = _pair(summary, name, "global")
    sentence = f"One model on all data pooled answers {pooled:.4f}"
    if pair is None:
        return f"{sentence}."
    if pair["p"] >= LEVEL or pooled == clean:
        return f"{sentence}, not measurably more or less: pooling brings nothing measurable here."
    if pooled < clean:
        return f"{sentence}, measurably less: pooling brings nothing here."
    return f"{sentence}, {pooled - clean:.4f} more: if you may pool the data, pool them."


def told_promise(promise: Summary) -> str:
    """Return a sentence with the harm, its interval, the risk and whether it is kept."""
    routing = promise.get("budget") == "routing"
    harm = promise["routing_harm"] if routing else promise["harm"]
    what = "Routers alone harm" if routing else "At worst"
    ends = "of the test examples" if routing else "of the test examples are harmed"
    word = risk_state(harm["mean"], harm["low"], promise["risk"])[1]
    kept = "on average" if promise["confidence"] is None else f"with probability {promise['confidence']:g}"
    where = " in every domain" if promise.get("by") == "domain" else ""
    if any(one["together"] for one in promise.get("domains", {}).values()):
        where = " in every domain, or in those that share a cut-off together"
    return (
        f"{what} {harm['mean']:.4f} {ends} (95 %: {harm['low']:.4f} to {harm['high']:.4f}); at most "
        f"{promise['risk']:.4g} is promised{where}, {kept}: {word}."
    )


def price_of_risk(clean: float, promise: Summary | None) -> str:
    """Return what the cut-offs cost and which risk or budget keeps the accuracy; empty where they cost little.

    Parameters
    ----------
    clean
        Accuracy of RED at its risk.
    promise
        The section `risk` of its figures; None where it has none.

    Examples
    --------
    >>> price = {"uncut": 0.99, "risks": {"0.02": 0.95, "0.05": 0.985}, "routing": 0.99}
    >>> print(price_of_risk(0.92, {"risk": 0.01, "budget": "harm", "price": price}))
    The cut-offs cost 0.0700: risk 0.05 would leave 0.9850, the budget routing at risk 0.01 0.9900, no cut-off 0.9900.
    """
    price = (promise or {}).get("price")
    if promise is None or not price or price["uncut"] - clean <= EXPENSIVE:
        return ""
    ways = [f"risk {risk} would leave {left:.4f}" for risk, left in price["risks"].items()]
    enough = [price["uncut"] - left <= EXPENSIVE for left in price["risks"].values()]
    told = ways[enough.index(True) :][:1] if any(enough) else []
    routing = price["routing"]
    if promise.get("budget") != "routing" and routing is not None and price["uncut"] - routing <= EXPENSIVE:
        told.append(f"the budget routing at risk {promise['risk']:.4g} {routing:.4f}")
    told.append(f"no cut-off {price['uncut']:.4f}")
    return f"The cut-offs cost {price['uncut'] - clean:.4f}: {', '.join(told)}."


def told_quarantine(summary: Summary) -> str:
    """Return a sentence that names the experts in quarantine; empty where there is none."""
    out = sorted({f"`{one['expert']}`" for one in summary.get("quarantine", []) if one["quarantined"]})
    if not out:
        return ""
    if len(out) == 1:
        return f"{out[0]} is in quarantine, with the weight zero, since it does more harm than good."
    return f"{joined(out)} are in quarantine, with the weight zero, since they do more harm than good."


def four_figures(run: RunFigures) -> tuple[Tile, ...]:
    """Return the figures that carry the verdict: clean, wrong expert, any router, and the risk promised and kept.

    Parameters
    ----------
    run
        The figures of a run; where it lacks one, its tile says so.
    """
    main = run.main
    if main is None:
        return ()
    return (
        Tile("clean", ((("", _figure(run.accuracy(main)))),), _beside(run.accuracy("base"), run.accuracy("global"))),
        Tile("always a wrong expert", (("", _figure(run.misrouted(main))),), _against(run, "misrouted")),
        Tile("any router", (("", _figure(run.certified(main))),), _against(run, "certified")),
        risk_tile(run),
    )


def risk_tile(run: RunFigures) -> Tile:
    """Return the tile of the risk: the harm that was promised at most, and the harm on the test split."""
    figures = run.rules.get(run.main or "", {})
    promise = figures.get("risk")
    if promise is None:
        harm = figures.get("worst_harm")
        note = "no promise in this run" if harm is None else "harm of the worst router; no promise in this run"
        return Tile("risk", (("", _figure(harm)),), note)
    routing, risk = promise.get("budget") == "routing", promise["risk"]
    harm = promise["routing_harm"] if routing else promise["harm"]
    state, word = risk_state(harm["mean"], harm["low"], risk)
    word += ", by the owners' own examples" if promise.get("owners") else ""
    name = "harm that routers do" if routing else "harm of the worst router"
    note = f"promised ≤ {risk:.4g}: {word}; 95 %: {harm['low']:.4f} to {harm['high']:.4f}"
    return Tile(name, (("", _figure(harm["mean"])),), note, state)


def risk_state(mean: float, low: float, risk: float) -> tuple[str, str]:
    """Return `good` or `bad`, and a word, for a measured harm with the lower end of its interval and its bound.

    Examples
    --------
    >>> risk_state(0.009, 0.006, 0.01), risk_state(0.012, 0.009, 0.01)[1], risk_state(0.03, 0.02, 0.01)[0]
    (('good', 'kept'), 'within sampling error', 'bad')
    """
    if mean <= risk:
        return "good", "kept"
    return ("good", "within sampling error") if low <= risk else ("bad", "broken")


def _figure(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"


def _beside(base: float | None, pooled: float | None) -> str:
    pairs = {label_of("base"): base, label_of("global"): pooled}
    return ", ".join(f"{name} {_figure(value)}" for name, value in pairs.items() if value is not None)


def _against(run: RunFigures, kind: str) -> str:
    """Return the same figure of the mixture of experts, which has no base to fall back on, and the base."""
    value = getattr(run, kind)("moe") if run.main == "red" else None
    pairs = {label_of("base"): run.accuracy("base"), label_of("moe"): value}
    return ", ".join(f"{name} {_figure(number)}" for name, number in pairs.items() if number is not None)
