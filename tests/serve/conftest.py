"""Fixtures of the tests of the page: runs of three kinds, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redx
from helpers.clinc import expect, write_clinc
from helpers.serving import asking
from redx.tasks.mnist.download import mnist_folder

MakeOnce = Any


@pytest.fixture(scope="module")  # so that other modules find the real data
def intents(bert: Path, make_once: MakeOnce) -> Iterator[redx.Run]:
    """A finished run on a tiny file in the form of CLINC150, with three experts."""
    with pytest.MonkeyPatch.context() as patch:

        def make(folder: Path) -> None:
            patch.setenv("REDX_CACHE", str(folder / "cache"))
            expect(patch, write_clinc(folder / "data"))
            few = {"epochs": {"base": 3, "experts": 2, "router": 2}, "blocks": [1, -1], "study": "none"}
            redx.run("intents", "quick", out=folder / "run", data_dir=str(folder / "data"), backbone=str(bert), **few)

        folder = make_once("served-intents", make)
        expect(patch, write_clinc(folder / "again"))
        patch.setenv("REDX_CACHE", str(folder / "cache"))
        yield redx.Run(folder / "run", {})


@pytest.fixture(scope="session")
def mnist(make_once: MakeOnce) -> redx.Run:
    """A finished run on few real images."""

    def make(folder: Path) -> None:
        few = {"limit": 1500, "epochs": {"base": 1, "experts": 1, "router": 1}, "study": "none"}
        redx.run("mnist", "quick", out=folder, data_dir=str(mnist_folder()), **few)

    return redx.Run(make_once("served-mnist", make), {})


@pytest.fixture(scope="module")
def client(clouds: redx.Run) -> Iterator[Any]:
    """A client of the run on clouds."""
    with asking(clouds.folder) as client:
        yield client


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium, driven by playwright; skipped aloud where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium on this machine, so the page is not tested in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
