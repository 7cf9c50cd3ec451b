"""RED: experts trained apart, recomposed without joint finetuning, certified against any router."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redx.composition.certify_parts import certify_parts as certify_parts
    from redx.composition.evaluation import certify as certify
    from redx.composition.noise import NOISES as NOISES
    from redx.composition.parts import Parts as Parts
    from redx.composition.rules import RULES as RULES
    from redx.errors import RedxError as RedxError
    from redx.estimator import RedClassifier as RedClassifier
    from redx.models.composed import Model as Model
    from redx.runs.folder import load as load
    from redx.runs.folder import solver as solver
    from redx.runs.pipeline import Run as Run
    from redx.runs.pipeline import run as run

__version__ = "0.1.0"
_MODULES = {  # symbol to the module that defines it
    "Model": "models.composed",
    "NOISES": "composition.noise",
    "Parts": "composition.parts",
    "RULES": "composition.rules",
    "RedClassifier": "estimator",
    "RedxError": "errors",
    "Run": "runs.pipeline",
    "certify": "composition.evaluation",
    "certify_parts": "composition.certify_parts",
    "load": "runs.folder",
    "run": "runs.pipeline",
    "solver": "runs.folder",
}
__all__ = [
    "NOISES",
    "RULES",
    "Model",
    "Parts",
    "RedClassifier",
    "RedxError",
    "Run",
    "certify",
    "certify_parts",
    "load",
    "run",
    "solver",
]


def __getattr__(name: str) -> Any:
    """Import a symbol on first use, so that `import redx` and `redx --help` stay fast."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"redx.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'redx' has no attribute {name!r}")
