"""The headline of a report: one sentence of verdict, and the four figures that carry it."""

from __future__ import annotations

from redx.report.colours import label_of
from redx.report.document import RunFigures, Summary, Tile
from redx.report.short import from_statistics, phrase_of, shared_banks
from redx.report.words import capital, name_of

EXPENSIVE = 0.01  # accuracy that cut-offs may cost before the verdict says so


def one_sentence(rules: Summary) -> str:
    """Return the verdict on a run from the `rules` of its summary.

    Parameters
    ----------
    rules
        The figures of every rule, as in summary.json.
    """
    name = next((name for name in ("red", "moe") if name in rules), None)
    if name is None or "base" not in rules:
        return "This run has neither `red` nor `moe` beside a base, so there is nothing to compare."
    label = capital(name_of(name))
    clean, base = rules[name]["accuracy"]["mean"], rules["base"]["accuracy"]["mean"]
    others = [f"base: sum of the owners' statistics {base:.4f}" if from_statistics(rules) else f"base {base:.4f}"]
    for compared in (f"base/{bank}" for bank in shared_banks(rules)):
        others.append(f"{phrase_of(compared, rules)} {rules[compared]['accuracy']['mean']:.4f}")
    if "global" in rules:
        others.append(f"all data pooled {rules['global']['accuracy']['mean']:.4f}")
    sentence = f"{label} answers {clean:.4f} of the test examples correctly ({', '.join(others)})"
    worst = rules[name].get("certified", {}).get("1")
    if worst is None:
        return f"{sentence}."
    promise = rules[name].get("risk")
    cost = "no less than the base" if worst >= base else f"{base - worst:.4f} less than the base"
    if promise:
        kept = "on average" if promise["confidence"] is None else f"with probability {promise['confidence']:g}"
        whose = " by the router's doing" if _is_of_routers(promise) else ""
        cost += f" (promised: at most {promise['risk']:.4g} less{whose}, {kept})"
    told = f"{sentence}; under the worst router it answers {worst:.4f}, {cost}."
    return f"{told} {price_of_risk(clean, promise)}".strip()


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
    if not _is_of_routers(promise) and routing is not None and price["uncut"] - routing <= EXPENSIVE:
        told.append(f"the budget routing at risk {promise['risk']:.4g} {routing:.4f}")
    told.append(f"no cut-off {price['uncut']:.4f}")
    return f"The cut-offs cost {price['uncut'] - clean:.4f}: {', '.join(told)}."


def _is_of_routers(promise: Summary) -> bool:
    """Return whether the risk bounds only the harm that routers do."""
    return promise.get("budget") == "routing"


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
    of_routers = _is_of_routers(promise) and "routing_harm" in promise
    harm, risk = promise["routing_harm" if of_routers else "harm"], promise["risk"]
    state, word = risk_state(harm["mean"], harm["low"], risk)
    title = "harm by the worst router, where experts are right" if of_routers else "harm of the worst router"
    return Tile(title, (("", _figure(harm["mean"])),), f"promised ≤ {risk:.4g}: {word}", state)


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
