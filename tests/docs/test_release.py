"""What a release is made of: one version, metadata, the workflow that publishes, and the image of the server."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

import redx

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module hatch_build, with a stand-in for hatchling, which only builds need."""
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    interface = types.ModuleType("interface")
    interface.MetadataHookInterface = type("MetadataHookInterface", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_one_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == redx.__version__ == citation["version"]
    assert set(PROJECT["dynamic"]) == {"readme", "urls"}


@pytest.mark.parametrize("name", ["REDX_REPOSITORY", "GITHUB_REPOSITORY"])
def test_addresses_and_links_lead_to_the_repository_that_builds(
    name: str, hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("REDX_REPOSITORY", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(variable, raising=False)
    plugin = hook.Metadata()
    plugin.root = str(ROOT)
    metadata: dict[str, Any] = {"version": "1.2.3"}
    plugin.update(metadata)
    assert metadata["urls"] == {}
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text()
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://example.org")
    monkeypatch.setenv(name, "https://example.org/a/redx/" if name == "REDX_REPOSITORY" else "a/redx")
    plugin.update(metadata)
    assert metadata["urls"]["Repository"] == "https://example.org/a/redx"
    links = re.findall(r"\]\(([^)]+)\)", metadata["readme"]["text"])
    assert links
    assert all(link.startswith(("https://", "http://", "#")) for link in links)
    assert "https://example.org/a/redx/raw/v1.2.3/docs/guide/serve.png" in links


def test_the_workflow_publishes_what_it_built_without_a_password() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert any("make dist" in step.get("run", "") for step in jobs["build"]["steps"])
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in text
    assert "password" not in text.replace("there is no password", "")


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their words."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in whole.splitlines() if line.strip()]


def test_the_image_serves_a_run_without_root() -> None:
    known = {"FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"}
    steps = instructions()
    words = [word for word, _ in steps]
    assert words[0] == "FROM"
    assert set(words) <= known
    assert ":" in steps[0][1], "the image that it begins with has a version"
    last = dict(steps)
    assert last["USER"] == "redx"
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert not [text for word, text in steps[words.index("USER") :] if word == "RUN"]
    runs = " ".join(text for word, text in steps if word == "RUN")
    assert "https://download.pytorch.org/whl/cpu" in runs
    assert "useradd" in runs
    assert "--no-cache" in runs or "PIP_NO_CACHE_DIR=1" in last["ENV"]
    assert last["ENTRYPOINT"].startswith('["redx", "serve", "/run-folder", "--host", "0.0.0.0"')
    (path,) = re.findall(r"127\.0\.0\.1:8000(/\w+)", last["HEALTHCHECK"])
    assert path == "/healthz"


def test_every_file_that_the_image_copies_is_there_and_not_ignored() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [name for word, text in instructions() if word == "COPY" for name in text.split()[:-1]]
    assert sorted(kept) == sorted(copied)
    assert all((ROOT / name).exists() for name in copied)


def test_the_server_of_the_image_has_the_path_of_its_healthcheck() -> None:
    assert '"/healthz"' in (ROOT / "src" / "redx" / "serve" / "app.py").read_text()
