"""Make the picture of the page in docs/guide: serve a run of intents, and take a screenshot of the adversary's view.

    python docs/screenshots_serve.py runs/intents

It needs playwright and Debian's chromium. With --all it writes every view in three widths, light and dark, to a folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

VIEWS = {"ask": "#answer", "adversary": "#adversary-status, #why", "price": "#price .card", "examples": "#table"}
WIDTHS = (400, 800, 1400)
TIMEOUT = 300_000  # milliseconds


def open_view(page: Any, name: str, selector: str) -> None:
    """Open a view and wait until it is complete."""
    page.click(f"nav [data-view={name}]")
    page.wait_for_selector(f"#view-{name} {selector}")
    page.wait_for_timeout(500)


def take_all(browser: Any, url: str, folder: Path) -> None:
    """Write every view in every width, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            context.set_default_timeout(TIMEOUT)
            page = context.new_page()
            page.goto(url)
            page.wait_for_selector("#answer")
            for name, selector in VIEWS.items():
                open_view(page, name, selector)
                page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
            open_view(page, "experts", ".switch")
            page.click(".switch >> nth=0")
            page.wait_for_selector("#diff-figures")
            page.screenshot(path=folder / f"experts-{width}-{scheme}.png", full_page=True)
            context.close()


def take_one(browser: Any, url: str, file: Path) -> None:
    """Write the view of the adversary after a jump to the worst router."""
    context = browser.new_context(viewport={"width": 1200, "height": 1200}, color_scheme="light")
    context.set_default_timeout(TIMEOUT)
    page = context.new_page()
    with urllib.request.urlopen(f"{url}api/examples?filter=fragile&limit=200", timeout=600) as response:
        rows = json.load(response)["rows"]
    row = next((row for row in rows if row["radius"] > 0.3), rows[-1])
    page.goto(f"{url}#adversary?row={row['row']}")
    page.wait_for_selector("#worst")
    page.click("#worst")
    page.wait_for_selector("#adversary-answer.changed")
    page.wait_for_timeout(1500)
    page.evaluate("scrollTo(0, 0)")
    end = page.evaluate("document.querySelector('#copy').getBoundingClientRect().top")  # without the panel Copy
    page.screenshot(path=file, full_page=True, clip={"x": 0, "y": 0, "width": 1200, "height": end})
    context.close()


def main() -> None:
    """Serve the run and take the pictures."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--all", type=Path, help="folder for every view in every width", metavar="FOLDER")
    options = parser.parse_args()
    command = [sys.executable, "-m", "redx", "serve", str(options.run), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            program = shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            if options.all:
                take_all(browser, url, options.all)
            else:
                take_one(browser, url, Path(__file__).parent / "guide" / "serve.png")
            browser.close()
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


if __name__ == "__main__":
    main()
