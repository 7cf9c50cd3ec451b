"""One sentence about a run: how good RED is, and what the worst router costs."""

from __future__ import annotations

from typing import Any


def one_sentence(rules: dict[str, Any]) -> str:
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
    if worst >= base:
        return f"{sentence}; under the worst router it answers {worst:.4f}, no less than the base."
    return f"{sentence}; under the worst router it answers {worst:.4f}, {base - worst:.4f} less than the base."
