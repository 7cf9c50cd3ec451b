"""The headline of a report: the main figures of a run, and sentences that compare them with the base."""

from __future__ import annotations

from redx.report.tables import Summary, format_value


def main_figures(rules: Summary) -> dict[str, float | None]:
    """Return the main figures of a run.

    Parameters
    ----------
    rules
        The section `rules` of summary.json.

    Returns
    -------
    dict
        Accuracies by their name in the report; None if the run does not have the rule.
    """

    def accuracy(name: str) -> float | None:
        return rules[name]["accuracy"]["mean"] if name in rules else None

    red = rules.get("red", {})
    return {
        "base": accuracy("base"),
        "red": accuracy("red"),
        "red, worst router (certified ε=1)": red.get("certified", {}).get("1"),
        "red, always a wrong expert (swap 1)": red.get("noise", {}).get("swap", {}).get("1"),
        "sum": accuracy("sum"),
        "global": accuracy("global"),
        "moe": accuracy("moe"),
    }


def verdict(rules: Summary) -> list[str]:
    """Return sentences that compare RED with the base, with and without routing errors.

    Parameters
    ----------
    rules
        The section `rules` of summary.json.

    Returns
    -------
    list of str
        The sentences. They describe `moe` if the run has no main bank of residual experts.
    """
    name = next((name for name in ("red", "moe") if name in rules), None)
    if name is None or "base" not in rules:
        return ["This run lacks the base, or both `red` and `moe`, so there is no composed model to compare."]
    rule, base = rules[name], rules["base"]
    subject, sentences = "RED", []
    if name == "moe":
        subject = "The mixture of experts (`moe`)"
        sentences.append("This run has no main bank of residual experts, so it has no figures for RED.")
    references = {"base": "the base", "global": "the head trained on the pooled data"}
    gaps = " and ".join(_compare(rule, rules[other], words) for other, words in references.items() if other in rules)
    accuracy = format_value(rule["accuracy"]["mean"])
    sentences.append(f"{subject} answers {accuracy} of the test questions correctly: {gaps}.")
    swapped, worst = rule.get("noise", {}).get("swap", {}).get("1"), rule.get("certified", {}).get("1")
    wrong_router = []
    if swapped is not None:
        share = format_value(swapped)
        wrong_router.append(f"If the router always chooses a wrong expert, {share} are answered correctly.")
    if worst is None:
        return sentences + wrong_router
    wrong_router.append(
        f"With the worst possible router, {format_value(worst)} are answered correctly (certified at ε = 1)."
    )
    loss = base["accuracy"]["mean"] - worst
    if loss > 0:
        gap = f"{format_value(loss)} less than the base"
        conclusion = f"This is {gap}, so some routers bring the accuracy below that of the base."
    else:
        conclusion = "This is not less than the base, so no router can bring the accuracy below that of the base."
    return [*sentences, " ".join(wrong_router), conclusion]


def _compare(rule: Summary, other: Summary, other_name: str) -> str:
    """Return the difference of two accuracies in words."""
    own, reference = rule["accuracy"], other["accuracy"]
    value = format_value(reference["mean"])
    gap = own["mean"] - reference["mean"]
    if gap == 0:
        return f"the same as {other_name} ({value})"
    apart = own["low"] > reference["high"] or own["high"] < reference["low"]
    overlap = "" if apart else "; the intervals overlap"
    return f"{format_value(abs(gap))} {'more' if gap > 0 else 'less'} than {other_name} ({value}{overlap})"


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
    label = "RED" if name == "red" else "The mixture of experts"
    clean, base = rules[name]["accuracy"]["mean"], rules["base"]["accuracy"]["mean"]
    others = [f"base {base:.4f}"]
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
        cost += f" (promised: at most {promise['alpha']:.4g} less, {kept})"
    return f"{sentence}; under the worst router it answers {worst:.4f}, {cost}."
