"""The rules that short tables show, and what these say of each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from redx.composition.rules import RULES, RuleId
from redx.config import SHARED_ONLY, RunConfig
from redx.report.content import Table
from redx.report.document import Summary
from redx.report.words import name_of

WITHOUT_OWN = "without the expert of its domain"  # every example is answered without this one
WITHOUT_OWN_HINT = "its domain's expert"  # the same in a table, after "red, without"
COLUMN = "owners share"  # what `redx.composition.listing.shares` returns
ON_SHARED = {  # of the banks that correct the base of the shared examples: words of short tables, and of sentences
    "base": ("shared examples alone", "the shared examples' base"),
    "red": ("base/shared + experts", "RED on the shared examples' base"),
}
CONTROL = str(RuleId("red", SHARED_ONLY.name))  # what RED would be without the experts' own data
CONTROL_WORDS = ("no data of the owners", "the same experts trained on the shared examples alone")


def from_statistics(rules: Collection[str]) -> bool:
    """Return whether the base of a run is the sum of owners' statistics, from the section `rules` of its summary."""
    return any(rule.needs_statistics for name, rule in RULES.items() if name in rules)


def shared_banks(rules: Collection[str]) -> list[str]:
    """Return the banks on the base of the shared examples, where a run compares this base with its own."""
    return [bank for rule, bank in map(RuleId.parse, rules) if rule == "base" and bank]


def short_rules(rules: Collection[str]) -> list[str]:
    """Return the rules of short tables: every one with its main bank, base and RED also on the shared examples' base.

    A rule that equals the base is shown as the base alone. Below RED stand the same experts without their own data.
    """
    names = []
    for name in (name for name, rule in RULES.items() if rule.hint is not None and name in rules):
        compared = [str(RuleId(name, bank)) for bank in shared_banks(rules)] if name in ON_SHARED else []
        compared += [CONTROL] if name == "red" else []
        names += [name, *(other for other in compared if other in rules)]
    return names


def on_shared(rules: Collection[str]) -> list[str]:
    """Return the rules of short tables that are on the base of the shared examples."""
    return [name for name in short_rules(rules) if "/" in name and name != CONTROL]


def compared_rules(rules: Collection[str]) -> list[str]:
    """Return the rules of short tables with banks of comparison: on the shared examples' base, and the control."""
    return [*on_shared(rules), *([CONTROL] if CONTROL in rules else [])]


def main_rules(rules: Collection[str]) -> list[str]:
    """Return every rule with its main bank, and those of short tables on the base of the shared examples."""
    alike = {name for name, rule in RULES.items() if rule.needs_statistics}  # these equal the base
    compared = compared_rules(rules)
    return [name for name in rules if name in compared or ("/" not in name and name not in alike)]


def hint_of(name: str, rules: Collection[str]) -> str:
    """Return what a rule does, in the few words of a short table."""
    if name == CONTROL:
        return CONTROL_WORDS[0]
    rule, bank = RuleId.parse(name)
    if rule in ON_SHARED and bank in shared_banks(rules):
        return ON_SHARED[rule][0]
    if name == "base" and from_statistics(rules):
        return "sum of statistics"
    return RULES[rule].hint or RULES[rule].about


def phrase_of(name: str, rules: Collection[str]) -> str:
    """Return how a sentence about a run calls a rule."""
    if name == CONTROL:
        return CONTROL_WORDS[1]
    rule, bank = RuleId.parse(name)
    if rule in ON_SHARED and bank in shared_banks(rules):
        return ON_SHARED[rule][1]
    return name_of(name)


def with_sharing(table: Table, rules: Summary) -> Table:
    """Return a table of rules with a second column: what owners share.

    Parameters
    ----------
    table
        A table whose first column names rules.
    rules
        The figures of every rule, by the name in that column.
    """
    columns = (table.columns[0], COLUMN, *table.columns[1:])
    rows = tuple((row[0], rules.get(str(row[0]), {}).get("shares"), *row[1:]) for row in table.rows)
    return replace(table, columns=columns, rows=rows)


def told_sharing(config: RunConfig) -> str:
    """Return what the column of `with_sharing` means in a run with these settings."""
    router = config.router.shape if config.router.is_trained else ""
    learned = f" The router `{router}` was also trained on examples of all domains; `keys` is not." if router else ""
    return (
        "Owners share: what a rule needs of owners beside their experts and the shared examples: nothing, sums "
        f"(statistics of their features), or data.{learned}"
    )


def told_base(rules: Collection[str]) -> str:
    """Return a sentence that says what the base of a run is; empty where it is that of the shared examples."""
    if not from_statistics(rules):
        return ""
    return (
        "The base is the sum of the owners' statistics: the ridge head that their examples pooled would give, though "
        "no example leaves its owner. It has no router and no experts, so it is what RED must beat."
    )


def without_own(summary: Summary) -> tuple[str, float] | None:
    """Return the rule that leave-one-out is about, and its accuracy without the expert of an example's own domain.

    Parameters
    ----------
    summary
        Content of summary.json; None where it holds no such figure, as in older runs.
    """
    facts = summary.get("modularity", {})
    figures = facts.get("without_own")
    return (facts["rule"], figures["after"]) if figures else None
