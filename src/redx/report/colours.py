"""One colour and one label for every rule, the same in every figure of report and page.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart; grey stands for the base.
"""

from __future__ import annotations

COLOURS = {
    "base": "#7d8590",
    "red": "#d55e00",
    "sum": "#e69f00",
    "moe": "#1279b8",
    "global": "#009e73",
    "uniform": "#56b4e9",
    "oracle": "#cc79a7",
    "red-oracle": "#b07a4a",
    "fixed": "#b5a400",
    "average": "#8e6bbf",
}
LABELS = {
    "base": "base",
    "red": "RED",
    "sum": "sum",
    "moe": "MoE",
    "global": "pooled",
    "uniform": "uniform",
    "oracle": "oracle",
    "red-oracle": "RED, perfect routing",
    "fixed": "fixed weights",
    "average": "averaged",
}
SHADES = {  # figures of RED itself, in shades of its colour
    "clean": COLOURS["red"],
    "always a wrong expert": "#e8843c",
    "worst router": "#f0a272",
    "sum, no router": COLOURS["sum"],
}
OTHERS = ("#d55e00", "#1279b8", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8e6bbf", "#b5a400", "#b07a4a")
NEUTRAL = "#7d8590"  # of bars that stand for no rule


def label_of(name: str) -> str:
    """Return how figures call a rule; other names stay as they are.

    Examples
    --------
    >>> label_of("red"), label_of("global/lda"), label_of("10 epochs")
    ('RED', 'pooled, lda', '10 epochs')
    """
    rule, _, bank = name.partition("/")
    if rule not in LABELS:
        return name
    return f"{LABELS[rule]}, {bank}" if bank else LABELS[rule]


def colour_of(name: str) -> str | None:
    """Return the colour of a rule, with or without a bank, or of a figure of RED; None for any other name."""
    return COLOURS.get(name.partition("/")[0]) or SHADES.get(name)
