"""The names that requests call models by: `redx` for the routed model, `base`, and every adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redx.endpoint.errors import ApiError
from redx.errors import RedxError

ROUTED, BASE = "redx", "base"


def check_names(adapters: Sequence[str]) -> None:
    """Refuse adapters whose names mean something else here."""
    for name in (ROUTED, BASE):
        if name in adapters:
            raise RedxError(f"An adapter is called {name!r}, which means another model here; add it by another name.")


def find_model(name: Any, adapters: Sequence[str]) -> str | None:
    """Return `redx` for the routed model, None for the base, or the name of an adapter.

    Raises
    ------
    ApiError
        With status 404, where there is no such model.
    """
    if name == BASE:
        return None
    if isinstance(name, str) and (name == ROUTED or name in adapters):
        return name
    known = ", ".join((ROUTED, BASE, *adapters))[:2_000]
    raise ApiError(404, f"There is no model {str(name)[:60]!r}; choose one of {known}.", "model", "model_not_found")


def describe_model(name: str, created: int) -> dict[str, Any]:
    """Return a model as OpenAI's API lists it."""
    return {"id": name, "object": "model", "created": created, "owned_by": "redx"}


def list_models(adapters: Sequence[str], created: int) -> dict[str, Any]:
    """Return all models as OpenAI's API lists them."""
    return {"object": "list", "data": [describe_model(name, created) for name in (ROUTED, BASE, *adapters)]}
