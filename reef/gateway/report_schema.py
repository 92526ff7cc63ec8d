"""What the recipe that learns wants of a report, asked before it is stored.

The recipe is loaded with the first report, in a thread: it may bring heavy libraries, and a gateway without reports needs none of them. One
that does not load takes nothing away from its users: their reports are stored unchecked, and `reef status` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError

from reef import plugins
from reef.errors import Unprocessable
from reef.experience import jsontext
from reef.types import JSON

log = structlog.get_logger()

Problems = Callable[[Mapping[str, JSON]], list[str]]
"""What is wrong with a report, the field of each first."""
MOST_TOLD = 5
MOST_CHARS = 300

_found: dict[str, tuple[Problems | None, str]] = {}
"""By recipe: how its reports are checked, and why they cannot be."""


async def check(recipe: str, report: Mapping[str, JSON]) -> None:
    """Check what a report says.

    Args:
        recipe: its name in the configuration.
        report: those of ``score``, ``feedback`` and ``metadata`` that were given.

    Raises:
        Unprocessable: the recipe wants something else; says which field.
    """
    if recipe not in _found:
        _found[recipe] = await asyncio.to_thread(_load, recipe)
    problems, _ = _found[recipe]
    if problems is not None and (told := problems(report)):
        some = "; ".join(text[:MOST_CHARS] for text in told[:MOST_TOLD])
        raise Unprocessable(some, hint=f"The recipe {recipe} says what a report must hold: `report_schema` of its class.")


def problem(recipe: str) -> str:
    """Why reports are not checked although they should be; empty where all is well or none came yet."""
    return _found.get(recipe, (None, ""))[1]


def _load(recipe: str) -> tuple[Problems | None, str]:
    try:
        schema = getattr(plugins.load("reef.recipes", recipe), "report_schema", None)
        return _problems_of(schema), ""
    except Exception as error:  # noqa: BLE001 - whatever a plugin does; without it reports are still worth keeping
        log.error("reports are not checked", recipe=recipe, reason=str(error))
        return None, f"{type(error).__name__}: {error}"


def _problems_of(schema: type[BaseModel] | Mapping[str, Any] | None) -> Problems | None:
    if schema is None:
        return None
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return lambda report: _by_model(schema, report)
    if not isinstance(schema, Mapping):
        raise TypeError(f"report_schema is a {type(schema).__name__}, not a pydantic model or a JSON schema")
    import jsonschema

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    validator = kind(schema)
    return lambda report: [f"{_place(error.absolute_path)}: {error.message}" for error in validator.iter_errors(report)]


def _by_model(model: type[BaseModel], report: Mapping[str, JSON]) -> list[str]:
    """Strictly, since the report is stored as it was sent and not as the model might read it."""
    try:
        model.model_validate_json(jsontext.dumps(report), strict=True)
    except ValidationError as error:
        found = []
        for item in error.errors(include_url=False, include_input=False):
            what = {"extra_forbidden": "unknown field", "missing": "is missing"}.get(item["type"], item["msg"])
            found.append(f"{_place(item['loc'])}: {what}")
        return found
    return []


def _place(path: Any) -> str:
    return ".".join(str(part) for part in path) or "report"
