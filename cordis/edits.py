"""The format of a proposal, and what it does to a tree."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from reef.artifacts.tree import check_path
from reef.errors import InvalidTree, ProposalError
from reef.types import File, Tree

MAX_EDITS = 20
MAX_CONTENT_CHARS = 32_000
MAX_ANSWER_CHARS = 400_000


class Edit(BaseModel):
    """One change of one file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1)
    action: Literal["write", "append", "delete"]
    content: str = Field("", max_length=MAX_CONTENT_CHARS)

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        try:
            check_path(path)
        except InvalidTree as error:
            raise ValueError(error.message) from None
        return path

    @model_validator(mode="after")
    def _fits_action(self) -> Edit:
        if self.action == "delete" and self.content:
            raise ValueError("a deletion has no content")
        if self.action != "delete" and not self.content.strip():
            raise ValueError(f"{self.action} needs content")
        return self


class EditPlan(BaseModel):
    """A proposer's answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    summary: str = Field(min_length=1, max_length=200)
    """One line a person reads: what changes and why."""
    edits: tuple[Edit, ...] = Field(min_length=1, max_length=MAX_EDITS)

    @field_validator("summary")
    @classmethod
    def _one_line(cls, summary: str) -> str:
        line = " ".join(summary.split())
        if not line.isprintable() or not line:
            raise ValueError("must be one line of plain text")
        return line


def parse(answer: str) -> EditPlan:
    """Read a model's answer: a JSON object, bare, in a code fence or with words around it.

    Raises:
        ProposalError: it is not one; the message is written for whoever answered.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        raise ProposalError(f"the answer has {len(answer)} characters, {MAX_ANSWER_CHARS} are allowed")
    start, end = answer.find("{"), answer.rfind("}")
    if start < 0 or end < start:
        raise ProposalError("the answer holds no complete JSON object")
    try:
        data = json.loads(answer[start : end + 1])
    except (ValueError, RecursionError) as error:
        raise ProposalError(f"the answer is not valid JSON: {error}") from None
    try:
        return EditPlan.model_validate(data)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, problem['loc'])) or 'the object'}: {problem['msg']}" for problem in error.errors()[:5]]
        raise ProposalError("; ".join(problems)) from None


def apply(plan: EditPlan, *, tree: Tree) -> Tree:
    """The tree after the edits, in their order.

    Raises:
        InvalidTree: a file to delete is not there, or one to append to is not text.
    """
    files = dict(tree)
    for edit in plan.edits:
        old = files.get(edit.path)
        if edit.action == "delete":
            if old is None:
                raise InvalidTree(f"{edit.path} cannot be deleted: it is not there", hint=f"There are {', '.join(sorted(files))}.")
            del files[edit.path]
        elif edit.action == "append" and old is not None:
            files[edit.path] = File(_joined(old.data, edit.content.encode()), executable=old.executable)
        else:
            files[edit.path] = File(edit.content.encode(), executable=old is not None and old.executable)
    return files


def _joined(old: bytes, addition: bytes) -> bytes:
    """An addition starts on a line of its own, whatever the file ended with, and ends its last line."""
    separator = b"" if not old or old.endswith(b"\n") else b"\n"
    return old + separator + addition + (b"" if addition.endswith(b"\n") else b"\n")
