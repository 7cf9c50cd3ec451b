"""Measure `redx serve`: start to first answer, a thousand concurrent requests, and throughput against `model.predict`.

    python benchmarks/serve.py runs/intents

It prints seconds, ratios and memory. Every figure comes from one bounded experiment: one start, 1,000 requests of one
input each, 100 drags in a browser, and five rounds of 1,000 inputs for the throughput.
Ratios compare the same inputs in turn, in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

REQUESTS, INPUTS, ROUNDS = 1000, 1000, 5


def post(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers to one request."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}api/predict", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)["answers"]


def get(url: str, path: str) -> dict[str, Any]:
    """Return the JSON of a path."""
    with urllib.request.urlopen(url + path, timeout=600) as response:
        return json.load(response)


def memory(process: int) -> float:
    """Return the largest resident memory of a process so far, in megabytes; 0 where the system does not say."""
    path = Path(f"/proc/{process}/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM")), 0.0)


def cpu_seconds(process: int) -> float:
    """Return the processor time that a process has used; 0 where the system does not say."""
    path = Path(f"/proc/{process}/stat")
    if not path.exists():
        return 0.0
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask_all(url: str, inputs: list[Any]) -> tuple[list[Any], list[float], float]:
    """Send one request for every input, all at once: answers (None: lost), seconds of the page meanwhile, seconds."""
    import httpx2

    answers: list[Any] = [None] * len(inputs)
    page: list[float] = []
    limits = httpx2.Limits(max_connections=len(inputs) + 1)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=600, trust_env=False) as client:

        async def one(index: int, value: Any) -> None:
            response = await client.post("/api/predict", json={"inputs": [value]})
            if response.status_code == 200:
                answers[index] = response.json()["answers"][0]["answer"]

        async def watch() -> None:
            while True:
                start = time.perf_counter()
                await client.get("/")
                page.append(time.perf_counter() - start)
                await asyncio.sleep(0.1)

        watching, start = asyncio.create_task(watch()), time.perf_counter()
        await asyncio.gather(*(one(index, value) for index, value in enumerate(inputs)))
        seconds = time.perf_counter() - start
        watching.cancel()
    return answers, page, seconds


def measure_drags(url: str) -> str:
    """Return how long the page takes for a new answer while weights or the risk are dragged, in a real browser."""
    program = shutil.which("chromium")
    if program is None:
        return "dragging: not measured, there is no chromium"
    from playwright.sync_api import sync_playwright

    weights = """() => { const { own, worst, set } = window.redxGame, times = []; for (let n = 0; n < 100; n++) {
        const start = performance.now(); set(own.map((w, k) => (1 - n / 100) * w + n / 100 * worst.target[k]));
        document.body.getBoundingClientRect(); times.push(performance.now() - start); } return times; }"""
    risks = """() => { const slider = document.querySelector('#risk'), times = []; for (let n = 0; n < 100; n++) {
        const start = performance.now(); slider.value = 4 * n; slider.dispatchEvent(new Event('input'));
        document.body.getBoundingClientRect(); times.push(performance.now() - start); } return times; }"""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.goto(f"{url}#adversary?row=0")
        page.wait_for_selector("#adversary-status")
        drags = page.evaluate(weights)
        page.goto(f"{url}#price")
        page.wait_for_selector("#risk")
        slides = page.evaluate(risks)
        browser.close()
    medians = [statistics.median(times) for times in (drags, slides)]
    most = max(drags), max(slides)
    return (
        f"weights: {medians[0]:.1f} ms a drag, at most {most[0]:.0f}; risk: {medians[1]:.1f} ms, at most {most[1]:.0f}"
    )


def measure_throughput(run: Path, inputs: list[Any]) -> dict[str, float]:
    """Return the ratio of the queue with its JSON to `model.predict`, both in this process, on the same inputs."""
    from redx.serve.queries import Query
    from redx.serve.service import Service

    service = Service(run)
    ratios, processor, rates = [], [], []
    for _ in range(ROUNDS + 1):  # the first round warms up
        start, used = time.perf_counter(), time.process_time()
        service.loaded.model.predict(inputs)
        plain, plain_used = time.perf_counter() - start, time.process_time() - used
        start, used = time.perf_counter(), time.process_time()
        json.dumps(service.batcher.submit(Query(inputs)).result())
        served, served_used = time.perf_counter() - start, time.process_time() - used
        processor.append(plain_used / served_used)
        ratios.append(plain / served)
        rates.append(len(inputs) / served)
    service.close()
    return {
        "ratio": statistics.median(ratios[1:]),
        "by processor time": statistics.median(processor[1:]),
        "inputs a second": statistics.median(rates[1:]),
    }


def main() -> None:
    """Print the figures of a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    run: Path = parser.parse_args().run
    command = [sys.executable, "-m", "redx", "serve", str(run), "--port", "0", "--json"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            ready = time.perf_counter() - start
            rows = get(url, "api/examples?sort=row&limit=200")["rows"]
            inputs = [row["input"] for row in rows if row["input"] is not None]
            first_input = time.perf_counter()
            post(url, {"inputs": inputs[:1]})
            answered = ready + time.perf_counter() - first_input
            print(f"start to ready: {ready:.1f} s; to the first answer: {answered:.1f} s", end="")
            print(f" ({cpu_seconds(server.pid):.1f} s of processor time, data and table included)")
            many = (inputs * (REQUESTS // len(inputs) + 1))[:REQUESTS]
            expected = [answer["answer"] for answer in post(url, {"inputs": inputs})]
            before = memory(server.pid)
            answers, page, seconds = asyncio.run(ask_all(url, many))
            lost = sum(answer is None for answer in answers)
            wrong = sum(a is not None and a != expected[n % len(inputs)] for n, a in enumerate(answers))
            print(f"{REQUESTS} concurrent requests: {seconds:.1f} s, {lost} lost, {wrong} wrong", end="")
            print(f"; the page meanwhile in {statistics.median(page):.3f} s, at most {max(page):.3f} s")
            print(f"largest memory: {memory(server.pid):.0f} MB, before the requests {before:.0f} MB")
            print(measure_drags(url))
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
    throughput = measure_throughput(run, (inputs * (INPUTS // len(inputs) + 1))[:INPUTS])
    print(f"throughput in batches of {INPUTS}: {throughput['inputs a second']:.0f} inputs a second,", end=" ")
    print(f"{throughput['ratio']:.2f} × model.predict ({throughput['by processor time']:.2f} × by processor time)")


if __name__ == "__main__":
    main()
