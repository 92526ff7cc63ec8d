"""The links of `/openapi.json`: what of an answer finds what. A client generator, and our own tests, follow them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_RECEIPT = "$response.header.x-reef-agent-record-id"


@dataclass(frozen=True, slots=True)
class _Link:
    """An answer, and the operation that one of its values is a parameter of."""

    method: str
    path: str
    status: str
    to: tuple[str, str]
    parameter: str
    value: str


_LINKS = (
    *(
        _Link("post", f"{base}/v1/{name}", "200", ("get", "/reef/records/{record}"), "record", _RECEIPT)
        for base in ("", "/s/{scenario}/{session}")
        for name in ("chat/completions", "responses", "messages")
    ),
    _Link("get", "/reef/scenarios/{scenario}/records", "200", ("get", "/reef/records/{record}"), "record", "$response.body#/records/0/id"),
    _Link("post", "/reef/report", "201", ("get", "/reef/reports/{report}"), "report", "$response.body#/agent_record_id"),
    _Link("post", "/reef/report", "201", ("get", "/reef/scenarios/{scenario}/reports"), "scenario", "$response.body#/scenario"),
    *(
        _Link("post", "/reef/scenarios", "201", (method, f"/reef/scenarios/{{scenario}}/{name}"), "scenario", "$response.body#/name")
        for method, name in (("get", "releases"), ("get", "candidates"), ("get", "records"), ("get", "sessions"), ("post", "rollback"))
    ),
    *(
        _Link("post", "/reef/tokens", "201", ("post", f"/reef/tokens/{{token}}/{name}"), "token", "$response.body#/token/name")
        for name in ("rotate", "revoke")
    ),
)


def add(paths: dict[str, Any]) -> None:
    """Add the links to the operations of a document, after every operation has its id."""
    for link in _LINKS:
        target = paths[link.to[1]][link.to[0]]["operationId"]
        answer = paths[link.path][link.method]["responses"][link.status]
        answer.setdefault("links", {})[f"{link.parameter} of {target}"] = {
            "operationId": target,
            "parameters": {link.parameter: link.value},
        }
