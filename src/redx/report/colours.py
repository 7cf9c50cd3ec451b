"""Colours and labels of lines: those that a rule carries, and others for what is no rule.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart; grey stands for the base.
"""

from __future__ import annotations

from redx.composition.rules import RULES

SHADES = {  # figures of RED itself, in shades of its colour
    "clean": RULES["red"].colour,
    "always a wrong expert": "#e8843c",
    "worst router": "#f0a272",
    "sum, no router": RULES["sum"].colour,
}
_ORDER = ("red", "moe", "global", "oracle", "sum", "uniform", "average", "fixed", "red-oracle")
OTHERS = tuple(
    colour for name in _ORDER if (colour := RULES[name].colour)
)  # of lines that stand for no rule, in this order
NEUTRAL = "#7d8590"  # of bars that stand for no rule


def label_of(name: str) -> str:
    """Return how figures call a rule; other names stay as they are.

    Examples
    --------
    >>> label_of("red"), label_of("global/lda"), label_of("10 epochs")
    ('RED', 'pooled, lda', '10 epochs')
    """
    rule, _, bank = name.partition("/")
    if rule not in RULES:
        return name
    label = RULES[rule].label or rule
    return f"{label}, {bank}" if bank else label


def colour_of(name: str) -> str | None:
    """Return the colour of a rule, with or without a bank, or of a figure of RED; None where a free one is chosen."""
    rule = name.partition("/")[0]
    return (RULES[rule].colour if rule in RULES else None) or SHADES.get(name)
