"""The rules of a run: which there are, and what owners share under each of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redx.composition.rules import RULES, RuleId, Shares, get_rule
from redx.config import SHARED_ONLY, BankId, ModelConfig


def rules_of_run(config: ModelConfig, banks: Iterable[BankId]) -> tuple[str, ...]:
    """Return the rules of a run, as `evaluate` takes them.

    These are all that are registered. Those that need a base from owners' statistics, and `base/NAME` for a bank on the
    base of the shared examples, are among them only where the run has such a base; `red/shared-only`, the same experts
    trained on the shared examples alone, only where the run has them.

    Parameters
    ----------
    config
        Settings of the run, or of its model.
    banks
        The banks that it has.
    """
    banks = list(banks)
    names = [name for name, rule in RULES.items() if config.statistics.use or not rule.needs_statistics]
    main = config.main_bank("residual")
    compared = [bank_id for bank_id in banks if _is_on_shared(config, bank_id) and bank_id != main]
    control = [str(RuleId("red", SHARED_ONLY.name))] if SHARED_ONLY in banks else []
    return (*names, *(str(RuleId("base", bank_id.name)) for bank_id in compared if config.statistics.use), *control)


def shares(name: str, config: ModelConfig) -> Shares:
    """Return what owners share under a rule, beside their experts and the shared examples that everybody has.

    A rule that adds to the base needs what the base is made of: owners' statistics (`sums`), or nothing. A pooled head
    needs `data`, and so do experts that were trained jointly with a router.

    Parameters
    ----------
    name
        The rule, such as `red` or `red/shared`.
    config
        Settings of the run, or of its model.

    Examples
    --------
    >>> from redx.tasks import get_preset
    >>> config = get_preset("intents", "default")
    >>> [shares(name, config) for name in ("red", "red/shared", "moe", "global")]
    ['sums', 'nothing', 'nothing', 'data']
    """
    rule, bank = RuleId.parse(name)
    known = get_rule(rule)
    bank_id = BankId(known.form, bank) if bank else config.main_bank(known.form)
    if bank_id == SHARED_ONLY:
        return "nothing"
    jointly = bool(bank_id.name) and bank_id.corrects_base and bank_id not in config.banks
    if known.shares == "data" or known.form == "pooled" or jointly:
        return "data"
    on_sums = config.statistics.use and known.keeps_base and not _is_on_shared(config, bank_id)
    return "sums" if on_sums else known.shares


def with_shares(rules: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Return the section `rules` of a summary with what owners share under each of them."""
    return {name: entry | {"shares": shares(name, config)} for name, entry in rules.items()}


def _is_on_shared(config: ModelConfig, bank_id: BankId) -> bool:
    return bank_id in config.banks and config.banks[bank_id].on_shared
