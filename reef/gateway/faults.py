"""Every error a FastAPI route can end in, in the one shape ``{"error": {"type", "message", "hint"}}``."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from reef.errors import ReefError

log = structlog.get_logger()

_TYPES = {404: "not_found_error", 405: "method_not_allowed_error", 422: "invalid_request_error"}
_HINTS = {404: "GET /openapi.json lists every route.", 405: "GET /openapi.json lists every route with its methods."}


def install(app: FastAPI) -> None:
    """Register the handlers."""
    app.add_exception_handler(ReefError, _ours)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(Exception, _unforeseen)


async def _ours(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ReefError)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = _TYPES.get(error.status_code, "invalid_request_error" if error.status_code < 500 else "reef_error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _answer(error.status_code, kind, message, _HINTS.get(error.status_code, ""), headers=dict(error.headers or {}))


async def _validation(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _answer(
        422, _TYPES[422], "; ".join(_problem(item) for item in error.errors()), "GET /openapi.json has the schema of every body."
    )


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    log.error("a route failed", method=request.method, path=request.url.path, exc_info=error)
    return _answer(
        500, "reef_error", "something in Reef went wrong", "The log of the gateway has the details: `reef status` says where it is."
    )


def _problem(item: dict[str, Any]) -> str:
    """One thing wrong with a request, its place first."""
    where = ".".join(str(part) for part in item["loc"] if part != "body") or "body"
    what = {"extra_forbidden": "unknown field", "missing": "is missing"}.get(item["type"], item["msg"])
    return f"{where}: {what}"


def _answer(status: int, kind: str, message: str, hint: str, *, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"type": kind, "message": message, "hint": hint}}, status_code=status, headers=headers)
