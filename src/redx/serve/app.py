"""The HTTP API and the files of the page, as a FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from redx.errors import RedxError
from redx.serve import queries
from redx.serve.batching import RETRY_AFTER, QueueFullError
from redx.serve.bodies import first_problem, json_response, read_body
from redx.serve.docs_page import render_docs
from redx.serve.examples import MAX_ROWS
from redx.serve.guard import Guard, Refused
from redx.serve.loaded import redx_version
from redx.serve.metrics import CONTENT_TYPE, Metered, Metrics, ServiceFigures
from redx.serve.queries import DiffBody, LabelsBody, PredictBody, Setting, SettingBody
from redx.serve.service import Service

FILTER_HELP = "all, fragile (right, but some router changes it), helped, harmed, wrong"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page_files() -> dict[str, tuple[str, bytes]]:
    """Return the files of the page by name, each with its type."""
    folder = files("redx.serve") / "page"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name[0] != "_")
    return {name: (TYPES["." + name.rpartition(".")[2]], (folder / name).read_bytes()) for name in names}


def build_app(service: Service, loopback: bool = True, token: str | None = None) -> Metered:
    """Return the application of a served run.

    Parameters
    ----------
    service
        The run.
    loopback
        Whether only this machine is served.
    token
        What clients of the API must send; None for nothing.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(asyncio.to_thread(lambda: service.examples.load()))
        yield
        loading.cancel()

    app = FastAPI(
        title="redx serve",
        version=redx_version(),
        summary="Ask a composed model, play its adversary, and see what each expert does.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    metrics = Metrics(ServiceFigures(service))
    _add_errors(app)
    _add_api(app, service)
    _add_monitor(app, service, metrics)
    _add_page(app)
    paths = frozenset(path for route in app.routes if isinstance(path := getattr(route, "path", None), str))
    return Metered(Guard(app, loopback, token), metrics, paths)


def _add_errors(app: FastAPI) -> None:
    """Answer every error with one sentence."""

    @app.exception_handler(Refused)
    async def refuse(_: Request, error: Refused) -> Response:
        return json_response({"error": error.sentence}, error.status, error.headers)

    @app.exception_handler(RedxError)
    async def explain(_: Request, error: RedxError) -> Response:
        return json_response({"error": str(error)}, 422)

    @app.exception_handler(QueueFullError)
    async def retry(_: Request, error: QueueFullError) -> Response:
        sentence = f"Too many requests wait; try again in {RETRY_AFTER} s."
        return json_response({"error": sentence}, 503, {"Retry-After": str(RETRY_AFTER)})

    @app.exception_handler(RequestValidationError)
    async def misfit(_: Request, error: RequestValidationError) -> Response:
        return json_response({"error": first_problem(list(error.errors()))}, 422)

    @app.exception_handler(HTTPException)
    async def missing(_: Request, error: HTTPException) -> Response:
        return json_response({"error": f"{error.detail}; see /docs."}, error.status_code)

    @app.exception_handler(Exception)
    async def fail(_: Request, error: Exception) -> Response:
        return json_response({"error": f"The server failed ({type(error).__name__}); its log says why."}, 500)


def _add_api(app: FastAPI, service: Service) -> None:
    in_model_thread = _model_thread(service)

    @app.get("/api/model", summary="Task, experts, rules and risk of the run")
    async def model() -> Response:
        return json_response(await in_model_thread(service.describe))

    @app.post("/api/predict", summary="Answer inputs", openapi_extra=_body_schema(PredictBody))
    async def predict(request: Request) -> Response:
        body = await read_body(request, PredictBody)
        loaded = service.loaded
        query = queries.Query.from_body(body, loaded.kind, loaded.model.info.shape)
        answers = await asyncio.wrap_future(service.batcher.submit(query))
        return json_response({"answers": answers, "version": service.loaded.version})

    @app.post(
        "/api/diff",
        summary="What switching experts off changes on the choice examples",
        openapi_extra=_body_schema(DiffBody),
    )
    async def diff(request: Request) -> Response:
        setting = Setting.from_body(await read_body(request, DiffBody))
        await asyncio.to_thread(service.examples.load)
        return json_response(await in_model_thread(lambda: service.diff(setting)))

    @app.get("/api/price", summary="Clean and worst-router accuracy at every risk, on choice examples")
    async def price(
        rule: Annotated[str | None, Query(max_length=200)] = None,
        without: Annotated[list[str] | None, Query()] = None,
    ) -> Response:
        setting = Setting.from_body(SettingBody(rule=rule, without=without or []))
        compute = await in_model_thread(lambda: service.price(setting))
        return json_response(await asyncio.to_thread(compute))  # it takes seconds, in which the model answers others

    @app.get("/api/examples", summary="The test split: answers of the run as it stands, radii and inputs")
    async def examples(
        request: Request,
        rule: Annotated[str | None, Query(max_length=200)] = None,
        router: Annotated[str | None, Query(max_length=20)] = None,
        filter: Annotated[str, Query(description=FILTER_HELP)] = "all",
        domain: str | None = None,
        sort: Annotated[str, Query(description="radius, row, domain or label")] = "radius",
        descending: bool = False,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 25,
        row: Annotated[list[int] | None, Query(description="these test examples alone", max_length=MAX_ROWS)] = None,
    ) -> Response:
        if given := {"without", "risk"} & set(request.query_params):
            raise RedxError(
                f"The test split is shown for the run as it stands; leave out {min(given)}. "
                "POST /api/diff and GET /api/price compare on choice examples."
            )
        setting = Setting.from_body(SettingBody(rule=rule, router=router))
        await asyncio.to_thread(service.examples.load)
        if row:
            return json_response(await in_model_thread(lambda: service.rows(setting, row)))
        return json_response(
            await in_model_thread(lambda: service.table(setting, filter, domain, sort, descending, offset, limit))
        )

    @app.get("/healthz", summary="Whether the server answers")
    async def health() -> Response:
        return json_response({"status": "ok", "waiting": service.batcher.waiting})


def _add_monitor(app: FastAPI, service: Service, metrics: Metrics) -> None:
    in_model_thread = _model_thread(service)

    @app.get("/api/monitor", summary="Whether the promise still holds, by the answers and labels since the start")
    async def monitor() -> Response:
        return json_response(await in_model_thread(service.watch))

    @app.post(
        "/api/labels",
        summary="Send the true labels of earlier answers by their ids",
        openapi_extra=_body_schema(LabelsBody),
    )
    async def labels(request: Request) -> Response:
        body: LabelsBody = await read_body(request, LabelsBody)
        return json_response(await in_model_thread(lambda: service.label(body.labels)))

    @app.get("/metrics", summary="Figures for Prometheus")
    async def figures() -> Response:
        return Response(metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def _model_thread(service: Service) -> Callable[[Callable[[], Any]], Awaitable[Any]]:
    """Return a function that does work in the model's thread."""

    async def run(work: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(service.batcher.submit(work))

    return run


def _add_page(app: FastAPI) -> None:
    content = page_files()

    async def page_file(name: str) -> Response:
        if name not in content:
            raise HTTPException(404, f"There is no file {name[:60]!r}")
        kind, data = content[name]
        return Response(data, media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return await page_file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        return await page_file(name)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return await page_file("icon.svg")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(render_docs(app.openapi()))


def _body_schema(schema: type[BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
