"""The map in CONTRIBUTING.md leads to files and folders that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_answer_of_where_do_i_exists() -> None:
    files = re.findall(r"^\| [^|]+ \| `(\w+/[^`]+)`[^|]*\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert len(files) > 40
    assert not [file for file in files if not (ROOT / file).exists()]


def test_the_tree_lists_every_module() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (block,) = re.findall(r"```\n(src/redx/ .*?)```", text, re.S)
    listed: dict[str, set[str]] = {}
    package = ""
    for line in block.splitlines():
        package = line[:17].strip() or package
        listed.setdefault(package.removeprefix("src/redx/").rstrip("/"), set()).update(line[17:].split())
    source = ROOT / "src" / "redx"
    folders = {"": source} | {path.name: path for path in source.iterdir() if (path / "__init__.py").exists()}
    assert listed == {name: _modules(path, nested=name != "") for name, path in folders.items()}


def _modules(folder: Path, nested: bool) -> set[str]:
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    inner = {f"{path.name}/" for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}
    return modules | (inner if nested else set())
