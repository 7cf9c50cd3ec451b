"""Backbones: encoders by name, one file each, found by listing this folder; `build()` makes the untrained module."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import nn


def names() -> list[str]:
    """All backbones."""
    return [module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)]


def build(name: str) -> nn.Module:
    """An untrained encoder with a `width`, the number of features D it gives."""
    if name not in names():
        raise RedxError(f"There is no backbone {name!r}; choose one of {', '.join(names())}.")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}").Encoder()
