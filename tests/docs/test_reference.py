"""Every public symbol has its place in docs/reference, and every symbol that is named there exists."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import redx

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
DIRECTIVES = [name for page in PAGES for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)]


def resolve(name: str) -> Any:
    """Import the longest module in a dotted name, and take the rest of the name from it."""
    module, _, rest = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), rest)
    except ModuleNotFoundError:
        return getattr(resolve(module), rest)


def modules(package: str) -> Iterator[ModuleType]:
    """Yield a module, or a package with all its modules."""
    found = importlib.import_module(package)
    yield found
    for inner in pkgutil.walk_packages(getattr(found, "__path__", []), f"{package}."):
        yield importlib.import_module(inner.name)


def public(package: str) -> dict[str, Any]:
    """Return the classes and functions that a package defines and whose names have no underscore in front."""
    return {
        f"{module.__name__}.{name}": value
        for module in modules(package)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }


def names_in_cli() -> set[str]:
    """Return every name that the command line mentions, whether imported, read or called."""
    nodes = [node for path in (ROOT / "src/redx/cli").glob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return names | {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}


def wanted() -> dict[str, Any]:
    """Return what the reference must document, by name."""
    symbols = {f"redx.{name}": getattr(redx, name) for name in redx.__all__}
    symbols |= public("redx.composition")
    symbols |= {name: value for name, value in public("redx.config").items() if inspect.isclass(value)}
    for package in ("redx.models", "redx.training", "redx.data"):
        symbols |= {name: value for name, value in public(package).items() if inspect.isclass(value)}
    stages = public("redx.training").items()
    symbols |= {name: value for name, value in stages if name.rpartition(".")[2].startswith("train")}
    used = names_in_cli()  # whatever a command does, a user can do in Python
    runs = public("redx.runs").items()
    return symbols | {name: value for name, value in runs if name.rpartition(".")[2] in used}


def test_directives_exist_and_stand_once() -> None:
    missing = []
    for name in DIRECTIVES:
        try:
            resolve(name)
        except AttributeError:
            missing.append(name)
    assert not missing
    assert len(set(DIRECTIVES)) == len(DIRECTIVES)


def test_every_public_symbol_is_documented() -> None:
    documented = [resolve(name) for name in DIRECTIVES]
    missing = [name for name, value in wanted().items() if not any(value is one for one in documented)]
    assert not missing, f"add ::: directives for these to docs/reference: {missing}"


def test_main_entry_points_are_wanted() -> None:
    """What the introspection finds covers the functions that the guide names."""
    found = {name.rpartition(".")[2] for name in wanted()}
    assert found >= {"run", "load", "solver", "Run", "configure", "export_run", "shrink", "inspect_path"}
    assert found >= {"add_expert", "remove_expert", "replace_expert", "diff_experts", "train_expert", "retrain_router"}
    assert found >= {"Base", "Expert", "ExpertLibrary", "Model", "RedClassifier", "Parts", "certify", "write_reports"}
