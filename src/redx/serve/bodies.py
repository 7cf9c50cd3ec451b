"""Bodies of requests and of responses: JSON with bounds, and one sentence for what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from redx.io.reading import parse_json
from redx.serve.guard import Refused

MAX_VALUES = 1_000_000  # values in the JSON of one request


async def read_json_body(request: Request) -> Any:
    """Return the JSON of a request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise Refused(415, "Send the body as JSON, with the header Content-Type: application/json.")
    try:
        return parse_json((await request.body()).decode(), values=MAX_VALUES)
    except RecursionError as error:
        raise Refused(422, "The JSON of the request is nested too deeply.") from error
    except ValueError as error:
        raise Refused(422, "The request is no JSON, or has NaN, infinity or a key twice; send plain JSON.") from error


async def read_body(request: Request, schema: type[BaseModel]) -> Any:
    """Return the body of a request as an instance of a schema."""
    value = await read_json_body(request)
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise Refused(422, first_problem(list(error.errors()))) from error


def first_problem(errors: list[Any]) -> str:
    """Return what is wrong with a request, from the first error that pydantic reports."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("query", "body"))
    return f"{where or 'The request'}: {first['msg']}; see /docs."[:300]


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response of JSON."""
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(content.encode(errors="backslashreplace"), status, headers, "application/json")
