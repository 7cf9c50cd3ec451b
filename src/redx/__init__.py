"""RED: experts trained apart, recomposed without joint finetuning, certified against any router."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redx.composition.evaluation import certify as judge
    from redx.composition.noise import NOISES as KINDS
    from redx.composition.parts import Parts
    from redx.composition.rules import RULES
    from redx.errors import RedxError as RedxError
    from redx.estimator import RedClassifier as RedClassifier
    from redx.models.composed import Model
    from redx.runs.folder import load, solver
    from redx.runs.pipeline import Run, run

__version__ = "0.1.0"
_HOME = {
    "RULES": "compose",
    "RedxError": "errors",
    "RedClassifier": "estimator",  # not in __all__: `from redx import *` must work without scikit-learn
    "judge": "evaluate",
    "Model": "model",
    "KINDS": "noise",
    "Run": "pipeline",
    "load": "pipeline",
    "run": "pipeline",
    "solver": "pipeline",
    "Parts": "records",
}
__all__ = ["KINDS", "RULES", "Model", "Parts", "RedxError", "Run", "judge", "load", "run", "solver"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import redx` and `redx --help` stay light."""
    if name in _HOME:
        return getattr(importlib.import_module(f"redx.{_HOME[name]}"), name)
    raise AttributeError(f"module 'redx' has no attribute {name!r}")
