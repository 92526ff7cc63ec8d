"""What adapters share: where parts of a harness go, a harness's own settings, and reading output of one JSON event a line."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from reef.errors import InvalidTree
from reef.types import File, Tree

HARNESS_STATUS = (400, 413, 422)
"""The model server understood and refused what this harness made the agent send, too long a prompt for one."""


def placed(tree: Tree, *, adapter: str, commands: str, extensions: Collection[str]) -> dict[str, File]:
    """Skills as they are, commands in the folder ``commands``, and of ``extensions/<adapter>/`` what may stand beside them.

    Raises:
        InvalidTree: an extension of this agent is in a place where the agent would never look.
    """
    rendered: dict[str, File] = {}
    for path, file in tree.items():
        first, _, rest = path.partition("/")
        if first == "skills":
            rendered[path] = file
        elif first == "commands":
            rendered[f"{commands}/{rest}"] = file
        elif first == "extensions" and rest.startswith(f"{adapter}/"):
            native = rest.removeprefix(f"{adapter}/")
            if native.partition("/")[0] not in extensions:
                raise InvalidTree(f"{adapter} does not read {path}", hint=f"In extensions/{adapter}/ go {', '.join(sorted(extensions))}.")
            rendered[native] = file
    return rendered


def settings(tree: Tree, *, adapter: str, ours: Collection[str]) -> dict[str, Any]:
    """The harness's own settings for this agent.

    Raises:
        InvalidTree: they set one of ``ours``, which say where requests go and are Reef's to set.
    """
    path = f"settings/{adapter}.json"
    own: dict[str, Any] = json.loads(tree[path].data) if path in tree else {}
    refuse([key for key in own if key in ours], path=path)
    return own


def refuse(taken: list[str], *, path: str) -> None:
    if taken:
        raise InvalidTree(f"{path} sets {', '.join(taken)}", hint="Reef binds endpoint and model; remove them from the harness.")


def json_file(value: Mapping[str, Any]) -> File:
    return File((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def events(stdout: str) -> Iterator[Mapping[str, Any]]:
    """Every line that is a JSON object. Warnings are printed between them, and a bound on the size may have cut the first one."""
    for line in stdout.splitlines():
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
