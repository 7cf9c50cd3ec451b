"""Take pictures of pages with a browser, for the documentation and for a look at every width in light and dark.

    python benchmarks/screenshots.py report=runs/intents/report.html
    python benchmarks/screenshots.py report=runs/intents/report.html --width 400 --width 800 --width 1400 --dark --light
    python benchmarks/screenshots.py serve=http://127.0.0.1:8000/ --click "#examples" --out docs/results

A page has a name and an address: a file, or a server on this machine. The picture is NAME.png; with several widths or
both colour schemes, NAME-WIDTH-SCHEME.png. Pictures that are too large for the documentation get 256 colours. Needs
playwright and Debian's chromium (`apt install chromium`).
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 200_000  # bytes of a picture for the documentation
BROWSER = "/usr/bin/chromium"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", metavar="NAME=PAGE", help="a name, and a file or an address")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the pictures")
    parser.add_argument("--width", type=int, action="append", help="width in pixels, repeatable (1100)")
    parser.add_argument("--height", type=int, help="height in pixels; the whole page by default")
    parser.add_argument("--light", action="store_true", help="the light scheme, which is the default")
    parser.add_argument("--dark", action="store_true", help="the dark scheme")
    parser.add_argument("--only", metavar="SELECTOR", help="the picture of one element")
    parser.add_argument("--click", metavar="SELECTOR", action="append", default=[], help="click this first, repeatable")
    parser.add_argument("--open", action="store_true", help="open everything that is folded away")
    return parser.parse_args(arguments)


def take(arguments: argparse.Namespace) -> list[Path]:
    """Take all pictures and return their files."""
    from playwright.sync_api import sync_playwright

    widths = arguments.width or [1100]
    schemes: list[Literal["light", "dark"]] = []
    if arguments.light or not arguments.dark:
        schemes.append("light")
    if arguments.dark:
        schemes.append("dark")
    files = []
    arguments.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        for width in widths:
            for scheme in schemes:
                page = browser.new_page(viewport={"width": width, "height": arguments.height or 900})
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                for named in arguments.pages:
                    name, _, address = named.partition("=")
                    page.goto(address if "://" in address else Path(address).resolve().as_uri(), timeout=300_000)
                    for selector in arguments.click:
                        page.click(selector)
                    if arguments.open:
                        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
                    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                        print(f"{name}: wider than {width} pixels", file=sys.stderr)
                    wanted = page.locator(arguments.only).first if arguments.only else None
                    picture = (
                        wanted.screenshot(timeout=300_000)
                        if wanted
                        else page.screenshot(full_page=arguments.height is None, timeout=300_000)
                    )
                    one = len(widths) * len(schemes) == 1
                    files.append(arguments.out / (f"{name}.png" if one else f"{name}-{width}-{scheme}.png"))
                    files[-1].write_bytes(reduce_colours(picture))
                page.close()
        browser.close()
    return files


def reduce_colours(picture: bytes) -> bytes:
    """Return a PNG as small as it gets; one that is too large for the documentation with at most 256 colours."""
    from PIL import Image as images

    image = images.open(io.BytesIO(picture)).convert("RGB")
    small = _encode(image)
    return small if len(small) <= LARGEST else _encode(image.quantize(256, dither=images.Dither.NONE))


def _encode(image: Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    for path in take(parse(sys.argv[1:])):
        size = path.stat().st_size
        print(f"{path}: {size:,} bytes{' (too large for the documentation)' if size > LARGEST else ''}")
