"""Calls to a running gateway, with the standard library alone: the command line must start fast."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from reef.errors import ReefError

TIMEOUT_S = 30.0
PART_BYTES = 256 * 1024


class Answered(ReefError):
    """The gateway refused; its own message and hint are passed on."""


def call(url: str, path: str, *, body: Any = None) -> Any:
    """GET ``path``, or POST it when there is a body, and return the parsed JSON.

    Raises:
        ReefError: no gateway answers there, or it refused.
    """
    return json.loads(_fetch(url, path, body=body, headers={}))


def send(url: str, path: str, data: bytes, *, content_type: str, headers: dict[str, str]) -> Any:
    """POST bytes, and return the parsed JSON."""
    with _open(url, path, data=data, headers={**headers, "content-type": content_type}) as response:
        return json.loads(response.read())


def fetch_parts(url: str, path: str) -> Iterator[bytes]:
    """GET ``path`` piece by piece.

    Raises:
        ReefError: also where the answer ends before it is whole.
    """
    try:
        with _open(url, path, data=None, headers={}) as response:
            while part := response.read(PART_BYTES):
                yield part
    except (http.client.HTTPException, OSError) as error:
        raise ReefError(f"the answer of {url} broke off: {error}", hint="Try it again; the gateway's log says what went wrong.") from None


def fetch_text(url: str, path: str, *, scenario: str) -> str:
    """GET ``path`` of a scenario as text."""
    return _fetch(url, path, body=None, headers={"x-reef-scenario": scenario}).decode()


def query(**parameters: Any) -> str:
    """A query string of the parameters that are not None."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return "?" + urllib.parse.urlencode(given) if given else ""


def _fetch(url: str, path: str, *, body: Any, headers: dict[str, str]) -> bytes:
    if body is None:
        data = None
    else:
        data, headers = json.dumps(body).encode(), {**headers, "content-type": "application/json"}
    with _open(url, path, data=data, headers=headers) as response:
        return bytes(response.read())


def _open(url: str, path: str, *, data: bytes | None, headers: dict[str, str]) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ReefError(f"{url} is not an address", hint="--url wants http://HOST:PORT")
    request = urllib.request.Request(url.rstrip("/") + urllib.parse.quote(path, safe="/?=&%:"), data, headers)  # noqa: S310 - checked above
    token = os.environ.get("REEF_TOKEN")
    if token:
        request.add_header("authorization", f"Bearer {token}")
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        raise _explain(error) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ReefError(f"no gateway answers at {url}: {reason}", hint="Start one with `reef serve`, or name another with --url.") from None


def _explain(error: urllib.error.HTTPError) -> ReefError:
    text = error.read().decode(errors="replace")
    try:
        detail = json.loads(text)["error"]
        return Answered(str(detail["message"]), hint=str(detail.get("hint", "")))
    except (ValueError, KeyError, TypeError):
        return Answered(f"HTTP {error.code}: {text[:300]}")
