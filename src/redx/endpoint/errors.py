"""Errors in the format of OpenAI's API: a status, and an object with one sentence, a type and a code."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from redx.errors import RedxError
from redx.serve.batching import RETRY_AFTER, QueueFullError
from redx.serve.bodies import json_response
from redx.serve.guard import Refused

TYPES = {401: "authentication_error", 403: "permission_error", 421: "permission_error"}


class ApiError(Refused):
    """A refusal that also says which parameter is wrong.

    Parameters
    ----------
    status, sentence
        The HTTP status, and what is wrong.
    param, code
        The parameter, and a word for programs.
    """

    def __init__(self, status: int, sentence: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(status, sentence)
        self.param, self.code = param, code


def describe(refused: Refused) -> dict[str, Any]:
    """Return the body of a refusal."""
    kind = TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "server_error")
    param, code = getattr(refused, "param", None), getattr(refused, "code", None)
    return {"error": {"message": refused.sentence, "type": kind, "param": param, "code": code}}


def as_refused(error: Exception) -> Refused:
    """Return an error as the refusal that a client is told."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, RedxError):
        return ApiError(400, str(error))
    if isinstance(error, QueueFullError):
        sentence = f"Too many requests wait; try again in {RETRY_AFTER} s."
        return Refused(503, sentence, Retry_After=str(RETRY_AFTER))
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, f"{error.detail}: there is no such path or method here.")
    return ApiError(500, f"The server failed ({type(error).__name__}); its log says why.")


def add_errors(app: FastAPI) -> None:
    """Answer every error of an application in this format."""

    async def answer(_: Request, error: Exception) -> Response:
        refused = as_refused(error)
        return json_response(describe(refused), refused.status, refused.headers)

    for kind in (Refused, RedxError, QueueFullError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
