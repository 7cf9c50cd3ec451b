"""Hook of mkdocs: puts a table of settings, made from their fields, below every class of settings in the reference."""

from __future__ import annotations

import importlib
import re
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

DIRECTIVE = re.compile(r"^::: (redx\.\S+)\n(?: +.*\n)*", re.M)  # with its options, which are indented


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with tables below its classes of settings; mkdocs calls this for every page."""
    return DIRECTIVE.sub(lambda match: match[0] + settings_table(match[1]), markdown + "\n")


def settings_table(name: str) -> str:
    """Return the fields that a class of settings declares itself as a table, or nothing for other names."""
    module, _, member = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), member)
    except ImportError:  # a method of a class
        return ""
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        return ""
    inherited = {field for parent in found.__mro__[1:] for field in getattr(parent, "model_fields", ())}
    rows = [
        f"| `{field}` | {_default(info)} | {_meaning(info)} |"
        for field, info in found.model_fields.items()
        if field not in inherited
    ]
    return "\n".join(["", "| setting | default | meaning |", "|---|---|---|", *rows, ""]) + "\n" if rows else ""


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True) if not info.is_required() else None
    if info.is_required() or isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ", ".join(f"`{item}`" for item in value) or "none"
    return f"{value:.4g}" if isinstance(value, float) else f"`{value}`"


def _meaning(info: FieldInfo) -> str:
    """Return the description of a field with its choices; a section without one has the first line of its class."""
    kinds = [info.annotation, *get_args(info.annotation)]
    sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    text = info.description or " ".join((section.__doc__ or "").split("\n")[0].rstrip(".") for section in sections)
    choices = [choice for kind in kinds if str(get_origin(kind)) == "typing.Literal" for choice in get_args(kind)]
    if len(choices) > 1 and not all(str(choice) in text for choice in choices):
        text += f" ({', '.join(f'`{choice}`' for choice in choices)})"
    if sections and info.description is None:
        text = f"section `{sections[0].__name__}`: {text[:1].lower()}{text[1:]}"
    return text.replace("|", "\\|")
