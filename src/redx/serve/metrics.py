"""Figures of a server for Prometheus: requests, answers, and the tests of the promise."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from redx.composition.monitoring import DOMAIN
from redx.serve.guard import App, Message, Receive, Scope, Send
from redx.serve.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METHODS = ("GET", "HEAD", "POST")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # bounds of the histogram
UNKNOWN = "other"  # paths and methods that the API does not have, so that requests add no new names


class Metrics:
    """The figures of one server.

    Parameters
    ----------
    figures
        Gives the figures of what is served.
    """

    def __init__(self, figures: Collector) -> None:
        self._registry = here = CollectorRegistry()
        self.requests = Counter("redx_requests", "HTTP requests", ["method", "path", "status"], registry=here)
        about = "Time until the end of an answer"
        self.seconds = Histogram("redx_request_seconds", about, ["path"], buckets=SECONDS, registry=here)
        self._registry.register(figures)

    def render(self) -> bytes:
        """Return all figures as the text that Prometheus reads."""
        return generate_latest(self._registry)


class Metered:
    """Counts every request of an application, those that were refused too.

    Parameters
    ----------
    app
        The application with what stands before it.
    metrics
        What counts.
    paths
        The paths of the API.
    """

    def __init__(self, app: App, metrics: Metrics, paths: frozenset[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status, start = 500, time.perf_counter()

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        finally:
            path = scope["path"] if scope["path"] in self.paths else UNKNOWN
            method = scope["method"] if scope["method"] in METHODS else UNKNOWN
            self.metrics.requests.labels(method, path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - start)


class ServiceFigures(Collector):
    """Reads what the service has counted, when Prometheus asks."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        answers = CounterMetricFamily("redx_answers", "Answers by rule", labels=["rule"])
        for rule, count in sorted(service.answers.copy().items()):
            answers.add_metric([rule], count)
        yield answers
        yield CounterMetricFamily("redx_abstained", "Answers that the model did not give", value=service.abstained)
        yield GaugeMetricFamily("redx_waiting_inputs", "Inputs in the queue", value=service.batcher.waiting)
        if (live := service.live) is not None:
            monitor = live.watch.monitor
            names = {
                "redx_monitor_lines": ("Lines that a test has counted", "lines"),
                "redx_monitor_harmed": ("Labelled lines that are harmed", "harmed"),
                "redx_monitor_harm_lower_bound": ("Lower bound of the harm, at all times", "lower"),
                "redx_monitor_e_value": ("Evidence against the promise now", "e_value"),
                "redx_monitor_e_value_largest": ("Largest evidence so far", "largest"),
                "redx_monitor_e_value_threshold": ("Evidence that raises the alarm", "threshold"),
                "redx_monitor_alarm": ("1 where the alarm was raised", "alarm"),
            }
            readings = monitor.readings()
            for name, (about, field) in names.items():
                gauge = GaugeMetricFamily(name, about, labels=["test", "domain"])
                for reading in readings:
                    if (value := getattr(reading, field)) is not None:
                        gauge.add_metric([reading.test, reading.name if reading.test == DOMAIN else ""], float(value))
                yield gauge
            yield GaugeMetricFamily("redx_monitor_promised_risk", "The risk that was promised", value=monitor.risk)
