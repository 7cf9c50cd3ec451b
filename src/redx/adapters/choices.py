"""Choices of a composed language model: its rule, its router, and which prompts are continued together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from redx.adapters.routers import Head, KeysRouter, Router, TrainedRouter
from redx.composition.rules import RULES, Rule
from redx.errors import RedxError

RULE_NAMES = ("red", "base", "fixed", "sum")  # rules over residual experts that need no labels
RouterName = Literal["router", "keys", "uniform"]


def get_text_rule(name: str) -> Rule:
    """Return a rule that composes adapters, or refuse one that reads another form of bank or labels."""
    if name not in RULE_NAMES:
        raise RedxError(f"There is no rule {name!r} for adapters; choose one of {', '.join(RULE_NAMES)}.")
    return RULES[name]


def choose_router(run: Path, wanted: str | None, heads: dict[str, Head], keys: dict[str, Head]) -> Router | None:
    """Return the router that is asked for; by default the trained one where there is one, else equal weights."""
    if wanted not in (None, "router", "keys", "uniform"):
        raise RedxError(f"There is no router {wanted!r}; choose one of router, keys, uniform.")
    if wanted == "router" and not heads:
        raise RedxError(f"{run} holds no trained router; choose keys or uniform, or give weights.")
    if wanted == "keys" and not keys:
        raise RedxError(f"{run} holds no keys; choose router or uniform, or give weights.")
    if wanted == "keys":
        return KeysRouter(keys)
    return TrainedRouter(heads) if heads and wanted != "uniform" else None


def same_rows(rows: list[tuple[str | None, ...]]) -> list[list[int]]:
    """Return the indices of prompts that run the same adapters, group by group."""
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for index, needed in enumerate(rows):
        groups.setdefault(needed, []).append(index)
    return list(groups.values())


def cut_at(text: str, stop: Sequence[str]) -> str:
    """Return a text up to the first stop text in it."""
    return text[: min([text.find(word) for word in stop if word and word in text], default=len(text))]
