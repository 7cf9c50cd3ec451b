"""The map in CONTRIBUTING.md is the law: a file imports only from lower layers."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "redx"


def layers() -> dict[str, int]:
    """Module to layer, read from the table in CONTRIBUTING.md."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    return {
        name.removesuffix(".py").removesuffix("/"): int(layer)
        for layer, files in rows
        for name in re.findall(r"`(.+?)`", files)
    }


def modules() -> dict[str, Path]:
    """Files by the name the map gives them: a package counts as one, and so does each file of it."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE).with_suffix(""))
        if name not in ("__init__", "__main__"):
            found[name.removesuffix("/__init__")] = path
    return found


def layer_of(name: str) -> int:
    table = layers()
    key = name if name in table else f"{name.split('/')[0]}/*"
    assert key in table, f"{name} is missing from the map in CONTRIBUTING.md"
    return table[key]


def imports(path: Path) -> set[str]:
    """Modules of redx that a file imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "redx":
            inner = node.module.split(".")[1:]
            names |= {"/".join(inner)} if inner and "/".join(inner) in modules() else set()
            names |= {name for alias in node.names if (name := "/".join([*inner, alias.name])) in modules()}
    return names


def test_every_import_points_to_a_lower_layer() -> None:
    wrong = [
        f"{name} (layer {layer_of(name)}) imports {other} (layer {layer_of(other)})"
        for name, path in modules().items()
        for other in imports(path)
        if layer_of(other) >= layer_of(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_map_names_no_file_that_is_gone() -> None:
    have = {*modules(), *(f"{name.split('/')[0]}/*" for name in modules() if "/" in name)}
    assert set(layers()) <= have


def test_every_module_opens_with_a_sentence() -> None:
    for path in [*SOURCE.rglob("*.py"), *(ROOT / "tests").glob("*.py")]:
        opening = ast.get_docstring(ast.parse(path.read_text()))
        assert opening, path
        assert opening.split("\n\n")[0].rstrip().endswith((".", ":", "?", "`")), path
