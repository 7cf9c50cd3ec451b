"""The page in a real browser: every panel, for texts, images, chains of steps and numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import redx
from helpers.serving import serving
from redx.io.cache import cache_folder

pytestmark = pytest.mark.slow
ABOVE, BELOW = 1 + 1e-4, 1 - 1e-5  # factors on ε*: the certificate allows for rounding, so it is too small by a little
WAIT = 60_000  # milliseconds, since the machines that run the tests are shared

# 100 random drags on the page: towards random routers up to ε*, and towards the worst one just above it.
DRAGS = """
([above, below]) => {
  const game = window.redxGame, { own, radius, worst } = game, before = game.answer(), faults = [];
  let state = 12345, flips = 0;
  const random = () => (state = (1103515245 * state + 12345) % 2147483648) / 2147483648;
  const go = (target, share) => {
    game.set(own.map((weight, k) => (1 - share) * weight + share * target[k]));
    return game.answer();
  };
  for (let n = 0; n < 100; n++) {
    let target = own.map(() => -Math.log(random() + 1e-12));
    const sum = target.reduce((a, b) => a + b, 0);
    target = n % 2 ? target.map((value) => value / sum) : own.map((_, k) => (k === n % own.length ? 1 : 0));
    const share = n % 4 < 2 ? radius * below : random() * radius * below;
    if (go(target, share) !== before) faults.push({ n, share, target });
  }
  if (radius < 1) {
    if (go(worst.target, radius * below) !== before) faults.push('below');
    if (go(worst.target, Math.min(1, radius * above + 1e-6)) !== before) flips++;
  }
  game.set(own.slice());
  return { faults, flips, radius, share: worst.share };
}
"""


@contextmanager
def opened(browser: Any, folder: Path, refusals: int = 0, **settings: Any) -> Iterator[Any]:
    """Yield a page of a served run; at the end, nothing may have failed and nobody else may have been asked.

    So many requests are expected to be refused by the server with a sentence.
    """
    with serving(folder) as (url, _):
        context = browser.new_context(viewport={"width": 1200, "height": 900}, **settings)
        context.set_default_timeout(WAIT)
        page = context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on(
            "request", lambda request: None if request.url.startswith((url, "data:")) else problems.append(request.url)
        )
        page.goto(url)
        page.wait_for_selector("#answer, #reason")
        yield page
        context.close()
    assert [problem for problem in problems if "status of 422" not in problem] == []
    assert len(problems) == refusals


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true; the policy of the page forbids the function of playwright that does so."""
    end = time.monotonic() + WAIT / 1000
    while not page.evaluate(f"Boolean({expression})"):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def view(page: Any, name: str, selector: str) -> None:
    """Open a view and wait for it."""
    page.click(f"nav [data-view={name}]")
    page.wait_for_selector(f"#view-{name} {selector}")


def text(page: Any, selector: str) -> str:
    """Return the text of an element."""
    return page.inner_text(selector).replace("\xa0", " ")


def copied(page: Any, kind: str) -> str:
    """Return what the panel Copy shows."""
    page.click(f"[data-copy={kind}]")
    return page.inner_text("#copy-text")


def play(page: Any) -> dict[str, Any]:
    """Drag at random, and check the certificate against it."""
    view(page, "adversary", "#adversary-status, #why")
    result = page.evaluate(DRAGS, [ABOVE, BELOW])
    assert result["faults"] == []
    assert result["flips"] == (result["radius"] < 1)
    assert result["share"] == pytest.approx(result["radius"], abs=1e-4)
    return result


def see_other_panels(page: Any) -> None:
    """Open price, experts and examples, and use them."""
    view(page, "price", "#price-figures")
    before = page.get_attribute("[data-figure=worst]", "data-value")
    page.focus("#risk")
    page.keyboard.press("Home")
    assert "every expert is silent" in text(page, "#price-text")
    base = page.get_attribute("[data-figure=base]", "data-value")
    assert page.get_attribute("[data-figure=clean]", "data-value") == base
    page.keyboard.press("End")
    assert float(page.get_attribute("[data-figure=worst]", "data-value")) <= max(float(before), float(base))
    page.keyboard.press("Home")
    stands = text(page, "#price-now")
    assert "as it stands: rule red on the test split" in stands
    assert "choice examples" in text(page, "#price h2")
    view(page, "experts", ".switch")
    page.click(".switch >> nth=0")
    page.wait_for_selector("#diff-figures")
    assert "choice examples" in text(page, "#diff h2")
    view(page, "price", "#price-now")
    assert text(page, "#price-now") == stands
    view(page, "examples", "#as-it-stands")
    assert "without" not in copied(page, "HTTP")
    view(page, "experts", "#diff-figures")
    page.click(".switch >> nth=0")
    page.wait_for_selector("#diff-figures", state="detached")
    view(page, "examples", "#table")
    page.click("[data-filter=all]")
    page.wait_for_selector("[data-filter=all][aria-pressed=true]")
    assert page.query_selector_all("#table tbody tr")


def test_intents(browser: Any, intents: redx.Run) -> None:
    with opened(browser, intents.folder) as page:
        page.fill("#text", "do i need a visa for france")
        page.click("#go")
        until(page, "location.hash.includes('visa')")
        until(page, "document.querySelector('#copy-text').textContent.includes('visa')")
        answer = text(page, "#answer")
        (expected,) = redx.load(intents.folder).explain(["do i need a visa for france"])
        assert answer == expected.answer
        assert text(page, "#base") == expected.base
        assert copied(page, "command") == f"redx predict {intents.folder} 'do i need a visa for france'"
        play(page)
        assert page.query_selector(".triangle")  # there are three experts
        page.click("#worst")
        until(page, "document.querySelector('#server-check').textContent")
        said = text(page, "#adversary-answer")
        until(page, f"document.querySelector('#server-check').textContent.includes({json.dumps(said)})")
        link = page.evaluate("location.href")
        see_other_panels(page)
        page.click("#table tbody a >> nth=0")
        page.wait_for_selector("#view-ask #answer")
        assert "row=" in page.evaluate("location.hash")
        page.goto("about:blank")
        page.goto(link)  # a permalink leads to the same weights
        page.wait_for_selector("#adversary-answer")
        assert text(page, "#adversary-answer") == said


def test_python_that_is_copied_gives_the_same_answer(browser: Any, intents: redx.Run) -> None:
    with opened(browser, intents.folder) as page:
        view(page, "adversary", "#adversary-status, #why")
        page.focus("#weight-0")
        page.keyboard.press("End")
        until(page, "document.querySelector('#server-check').textContent")
        until(page, "location.hash.includes('weights')")
        answer, code = text(page, "#adversary-answer"), copied(page, "Python")
    shown: list[str] = []
    exec(compile(code, "copied", "exec"), {"print": lambda value: shown.append(str(value))})
    assert shown == [answer]


def test_mnist(browser: Any, mnist: redx.Run) -> None:
    with opened(browser, mnist.folder) as page:
        page.wait_for_selector(".picks button")
        page.click(".picks button >> nth=1")
        until(page, "location.hash.includes('row=')")
        play(page)
        view(page, "ask", "#answer")
        page.click("button:has-text('Clear')")
        box = page.locator("#pad").bounding_box()
        page.mouse.move(box["x"] + 110, box["y"] + 30)
        page.mouse.down()
        for step in range(1, 8):
            page.mouse.move(box["x"] + 110 - step, box["y"] + 30 + 22 * step)
        page.mouse.up()
        until(page, "location.hash.includes('x=')")  # the drawn image is in the address
        assert text(page, "#answer") in "0123456789"
        see_other_panels(page)


def test_steps(browser: Any, chains: redx.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(chains.folder.parent / "cache"))
    with opened(browser, chains.folder) as page:
        page.fill("#text", "12 plus 5 minus 3")
        page.click("#go")
        page.wait_for_selector("#program")
        assert text(page, "#program")
        until(page, "document.querySelectorAll('#ask tbody tr').length > 0")
        play(page)
        view(page, "ask", "#answer")
        page.fill("#text", "how are you today")
        page.click("#go")
        page.wait_for_selector("#reason")
        assert text(page, "#reason")
        see_other_panels(page)


def test_numbers_by_keyboard_alone(browser: Any, clouds: redx.Run) -> None:
    with opened(browser, clouds.folder, refusals=1) as page:
        page.focus("#numbers")
        page.keyboard.press("Control+A")
        page.keyboard.type("1, 2, 3")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector("#problem:not([hidden])")
        assert "6 numbers" in text(page, "#problem")
        page.focus("#numbers")
        page.keyboard.press("Control+A")
        page.keyboard.type("0.5 -1 8 0 0.25 1.5")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        until(page, "location.hash.includes('x=')")
        play(page)
        page.focus("#weight-0")
        page.keyboard.press("End")
        sliders = page.query_selector_all(".sliders input")
        assert sum(float(slider.input_value()) for slider in sliders) == pytest.approx(1, abs=0.01)


def axe_source() -> str:
    """Return axe-core from npm, kept in the cache; skips aloud where npm cannot reach it."""
    folder = cache_folder() / "tests"
    script = folder / "package" / "axe.min.js"
    if not script.is_file():
        if shutil.which("npm") is None:
            pytest.skip("there is no npm on this machine, so accessibility is not tested with axe-core")
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["npm", "pack", "axe-core@4.10.2", "--silent"], cwd=folder, capture_output=True, timeout=120
        )
        if done.returncode:
            pytest.skip("npm cannot reach axe-core, so accessibility is not tested with it")
        subprocess.run(["tar", "xzf", done.stdout.decode().split()[-1]], cwd=folder, check=True)
    return script.read_text()


def violations(page: Any, source: str) -> list[Any]:
    """Return what axe-core finds, in light and in dark."""
    page.evaluate(source)
    found = page.evaluate("axe.run(document)")["violations"]
    page.emulate_media(color_scheme="dark")
    found += page.evaluate("axe.run(document, {runOnly: ['color-contrast']})")["violations"]
    page.emulate_media(color_scheme="light")
    return [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in found]


def test_accessibility(browser: Any, intents: redx.Run) -> None:
    source = axe_source()
    with opened(browser, intents.folder) as page:
        panels = {"ask": "#answer", "adversary": "#adversary-status, #why", "price": "#price-figures"}
        for name, selector in (panels | {"experts": ".switch", "examples": "#table"}).items():
            view(page, name, selector)
            if name == "experts":
                page.click(".switch >> nth=0")
                page.wait_for_selector("#diff-figures")
            assert violations(page, source) == [], name
        page.goto(page.url.split("#")[0] + "docs")
        assert violations(page, source) == []


def test_the_strip_shows_the_monitor(browser: Any, clouds: redx.Run) -> None:
    with opened(browser, clouds.folder) as page:
        page.wait_for_selector("#monitor[data-alarm=false]")
        assert "No answer is labelled yet" in text(page, "#monitor")
        assert "0 lines, 0 labelled" in text(page, "#monitor")  # what the page asks does not count
        (answer, *_) = post(page, "api/predict", {"inputs": [[0.5, -1.0, 8.0, 0.0, 0.25, 1.5]] * 400})["answers"]
        post(page, "api/labels", {"labels": [{"id": answer["id"], "label": answer["base"]}]})
        page.reload()
        page.wait_for_selector("#monitor[data-alarm=true]")  # equal inputs are not like the calibration examples
        shown = text(page, "#monitor")
        assert "400 lines, 1 labelled" in shown
        assert "Alarm: the confidences are not like those" in shown


def post(page: Any, path: str, body: dict[str, Any]) -> Any:
    """Send JSON to the server of the page, from outside of it."""
    address = page.url.split("#")[0] + path
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=60) as response:
        return json.load(response)
