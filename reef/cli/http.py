"""Calls to a running gateway, with the standard library alone: the command line must start fast."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from reef.errors import ReefError

TIMEOUT_S = 30.0


class Answered(ReefError):
    """The gateway refused; its own message and hint are passed on."""


def call(url: str, path: str, *, body: Any = None) -> Any:
    """GET ``path``, or POST it when there is a body, and return the parsed JSON.

    Raises:
        ReefError: no gateway answers there, or it refused.
    """
    return json.loads(_fetch(url, path, body=body, headers={}))


def fetch_text(url: str, path: str, *, scenario: str) -> str:
    """GET ``path`` of a scenario as text."""
    return _fetch(url, path, body=None, headers={"x-reef-scenario": scenario}).decode()


def query(**parameters: Any) -> str:
    """A query string of the parameters that are not None."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return "?" + urllib.parse.urlencode(given) if given else ""


def _fetch(url: str, path: str, *, body: Any, headers: dict[str, str]) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise ReefError(f"{url} is not an address", hint="--url wants http://HOST:PORT")
    request = urllib.request.Request(url.rstrip("/") + urllib.parse.quote(path, safe="/?=&%:"), headers=headers)  # noqa: S310 - checked above
    token = os.environ.get("REEF_TOKEN")
    if token:
        request.add_header("authorization", f"Bearer {token}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            return bytes(response.read())
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
