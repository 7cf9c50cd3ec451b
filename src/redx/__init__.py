"""RED: experts trained apart, recomposed without joint finetuning, certified against any router."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as type checkers read it; `typing` is slow, and `redx` handles signals only after this module
if TYPE_CHECKING:
    from typing import Any

    from redx.composition.evaluation import certify as certify
    from redx.composition.evaluation import evaluate as evaluate
    from redx.composition.evaluation import predict as predict
    from redx.composition.files import certify_parts as certify_parts
    from redx.composition.noise import NOISES as NOISES
    from redx.composition.noise import Noise as Noise
    from redx.composition.parts import Parts as Parts
    from redx.composition.risk import RiskControl as RiskControl
    from redx.composition.rules import RULES as RULES
    from redx.composition.rules import Rule as Rule
    from redx.composition.rules import compose as compose
    from redx.config import ModelConfig as ModelConfig
    from redx.errors import RedxError as RedxError
    from redx.estimator import RedClassifier as RedClassifier
    from redx.model.model import Model as Model
    from redx.models.encoder import BACKBONES as BACKBONES
    from redx.models.router import ROUTERS as ROUTERS
    from redx.runs.folder import load as load
    from redx.runs.folder import solver as solver
    from redx.runs.pipeline import Run as Run
    from redx.runs.pipeline import run as run
    from redx.tasks import TASKS as TASKS
    from redx.tasks import Task as Task

__version__ = "0.1.0"
_MODULES = {  # symbol to the module that defines it
    "BACKBONES": "models.encoder",
    "Model": "model.model",
    "ModelConfig": "config",
    "NOISES": "composition.noise",
    "Noise": "composition.noise",
    "Parts": "composition.parts",
    "ROUTERS": "models.router",
    "RULES": "composition.rules",
    "RedClassifier": "estimator",
    "RedxError": "errors",
    "RiskControl": "composition.risk",
    "Rule": "composition.rules",
    "Run": "runs.pipeline",
    "TASKS": "tasks",
    "Task": "tasks",
    "certify": "composition.evaluation",
    "certify_parts": "composition.files",
    "compose": "composition.rules",
    "evaluate": "composition.evaluation",
    "load": "runs.folder",
    "predict": "composition.evaluation",
    "run": "runs.pipeline",
    "solver": "runs.folder",
}
__all__ = [
    "BACKBONES",
    "NOISES",
    "ROUTERS",
    "RULES",
    "TASKS",
    "Model",
    "ModelConfig",
    "Noise",
    "Parts",
    "RedClassifier",
    "RedxError",
    "RiskControl",
    "Rule",
    "Run",
    "Task",
    "certify",
    "certify_parts",
    "compose",
    "evaluate",
    "load",
    "predict",
    "run",
    "solver",
]


def __dir__() -> list[str]:
    """Return the public names, which notebooks complete."""
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    """Import a symbol on first use, so that `import redx` and `redx --help` stay fast."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"redx.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'redx' has no attribute {name!r}")
