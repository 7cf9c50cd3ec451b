"""Words and numbers of the sentences in a report."""

from __future__ import annotations

from redx.composition.rules import RULES
from redx.report.colours import label_of
from redx.report.document import RunFigures

LEVEL = 0.05  # significance level of the paired tests


def name_of(rule: str) -> str:
    """Return how a sentence calls a rule."""
    return (RULES[rule].phrase if rule in RULES else "") or label_of(rule)


def capital(text: str) -> str:
    """Return a sentence that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def signed(value: float, digits: int = 4) -> str:
    """Return a difference with its sign.

    Examples
    --------
    >>> signed(0.0123), signed(-0.5, 2), signed(0.0)
    ('+0.0123', '−0.50', '0.0000')
    """
    text = f"{abs(value):.{digits}f}"
    if not float(text):
        return text
    return ("+" if value > 0 else "−") + text


def chance(p: float) -> str:
    """Return a p-value as text.

    Examples
    --------
    >>> chance(0.0312), chance(1e-9), chance(1.0)
    ('p = 0.031', 'p < 0.001', 'p = 1')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def joined(words: list[str], last: str = "and") -> str:
    """Return words as an enumeration.

    Examples
    --------
    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def outcome(run: RunFigures, other: str) -> tuple[str, float]:
    """Return whether the main rule answers `more`, `fewer` or `as many` questions correctly as another, and the gap.

    A gap counts where the paired test finds it; in a run without paired figures, where the intervals lie apart.
    """
    own, reference = run.rules[run.main or ""]["accuracy"], run.rules[other]["accuracy"]
    gap, pair = own["mean"] - reference["mean"], run.paired(other)
    apart = pair["p"] < LEVEL if pair is not None else own["low"] > reference["high"] or own["high"] < reference["low"]
    return ("more" if gap > 0 else "fewer") if apart and gap else "as many", gap
