"""The grader of structured answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from pydantic import Field, field_validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from reef.errors import ConfigError
from reef.evaluation.graders.contract import Grader, Model, Options, RunCommand, Score, WorkspacePath
from reef.evaluation.graders.workspace import short, subject
from reef.types import Task

_FENCE = re.compile(r"^```[a-zA-Z]*[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


class JsonSchemaOptions(Options):
    """Options of ``json_schema``."""

    schema_: dict[str, Any] = Field(alias="schema", description="A JSON schema, of the draft it names or else 2020-12.")
    file: WorkspacePath = Field("", description="Path in the workspace; empty grades the answer.")

    @field_validator("schema_")
    @classmethod
    def _is_a_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        try:
            validator_for(schema).check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"not a JSON schema: {error.json_path}: {error.message}") from None
        return schema


class JsonSchemaGrader(Grader):
    """``json_schema``: the answer, or a file of the workspace, is JSON that fits ``schema``.

    Of an answer that is not JSON as a whole its last fenced block is taken: models like to say a word before.

    Example: ``{type: json_schema, schema: {type: object, required: [total]}}``
    """

    Options = JsonSchemaOptions

    def __init__(self, options: Mapping[str, Any], *, model: Model | None = None) -> None:
        super().__init__(options, model=model)
        schema = self.options.schema_
        # an empty registry: a schema that refers to an address must not make us fetch it
        self._validator: Validator = validator_for(schema)(schema, registry=Registry())

    def grade(self, *, task: Task, workspace: Path, answer: str, run_command: RunCommand) -> Score:
        found = subject(workspace, self.options.file, answer)
        if found is None:
            return Score(0.0, f"{self.options.file} is not there")
        try:
            value = _parsed(found)
        except (ValueError, RecursionError):
            return Score(0.0, f"not JSON: {short(found)}")
        try:
            problem = next(iter(sorted(self._validator.iter_errors(value), key=lambda error: list(map(str, error.path)))), None)
        except Unresolvable as error:
            raise ConfigError(
                f"task {task.id}: the schema refers to what it does not hold: {error}", hint="Put it under $defs; nothing is fetched."
            ) from None
        except RecursionError:
            return Score(0.0, "nested too deeply")
        return Score(1.0, "fits the schema") if problem is None else Score(0.0, f"{problem.json_path}: {short(problem.message)}")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        blocks = _FENCE.findall(text)
        if not blocks:
            raise
        return json.loads(blocks[-1], parse_constant=_refuse)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
