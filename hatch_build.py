"""Metadata that depend on where a release is built: the addresses of the project, and a README with whole links."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {  # of a repository, by the words that package indexes show
    "Documentation": "/tree/{tag}/docs",
    "Changelog": "/blob/{tag}/CHANGELOG.md",
    "Issues": "/issues",
}


class Metadata(MetadataHookInterface):
    """Adds `urls` and `readme`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository, tag = address(), f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": whole_links(text, repository, tag)}
        metadata["urls"] = addresses(repository, tag)


def address() -> str:
    """Return the address of the repository: $REDX_REPOSITORY, or where GitHub builds; empty where neither is known."""
    if given := os.environ.get("REDX_REPOSITORY", ""):
        return given.rstrip("/")
    server, name = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
    return f"{server}/{name}" if server and name else ""


def addresses(repository: str, tag: str) -> dict[str, str]:
    """Return the addresses of the project by name; none for an unknown repository."""
    if not repository:
        return {}
    return {"Repository": repository} | {name: repository + page.format(tag=tag) for name, page in PAGES.items()}


def whole_links(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose links and pictures inside the repository lead there from anywhere."""
    if not repository:
        return text
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{repository}/raw/{tag}/", text)
    return re.sub(r"((?<!!)\[[^\]!]*\]\()(?!https?:|#)", rf"\g<1>{repository}/blob/{tag}/", text)
