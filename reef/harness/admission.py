"""Admission: what a harness candidate must keep before any trial is spent on it. Reasons are written for whoever proposed it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from reef import redaction
from reef.artifacts.tree import changed_paths
from reef.errors import InvalidTree
from reef.harness.adapter import Adapter, Binding
from reef.harness.tree import MANIFEST, validate
from reef.types import JSON, Tree

MIN_LEAK_CHARS = 4
"""Shorter answers (`42`, `yes`) turn up by themselves and tell nothing."""

_ADDRESS = re.compile(r"\b(?:https?|wss?|unix)://", re.IGNORECASE)
_BINDING_KEY = re.compile(
    r"(base|api|end)[_-]?(url|point|base)|\burl\b|api[_-]?key|(auth|access|secret)[_-]?(token|key)|credential|password", re.IGNORECASE
)
_BINDING_LINE = re.compile(r"[\"']?\b(base_?url|api_?base|api_?key|endpoint)\b[\"']?\s*[:=]\s*\S", re.IGNORECASE)
_CODE_KEY = re.compile(
    r"command|hook|shell|exec|script|mcp|package|plugin|extension|trust|permission|sandbox|approv|danger|tool|path|env", re.IGNORECASE
)
_DATA_FILES = (".json", ".yaml", ".yml", ".toml", ".ini", ".env")


def admit(tree: Tree, *, adapter: Adapter | None, base: Tree, forbidden: Iterable[str] = ()) -> None:
    """Let a candidate through to its trials, or say why not.

    Args:
        tree: the candidate.
        adapter: the coding agent that will run it; None: there is none.
        base: the head it starts from. What it already holds is not held against the candidate.
        forbidden: texts of the evaluation set (ids, prompts, expected answers) that may not turn up in a candidate.

    Raises:
        InvalidTree: the candidate may not be tried. The message names file and line, never a secret itself.
    """
    validate(tree)
    changed = changed_paths(base, tree)
    if not changed:
        raise InvalidTree("no change", hint="The candidate holds the same bytes as the head.")
    for path in (path for path in changed if path in tree):
        _refuse_secrets(path, tree=tree)
        _refuse_binding(path, tree=tree)
    for path in changed:
        _refuse_code(path, tree=tree, base=base)
    _refuse_leaks(tree, base=base, forbidden=forbidden)
    if adapter is not None:
        adapter.render(tree, binding=Binding("http://127.0.0.1:8900/v1", "admission"))


def _refuse_secrets(path: str, *, tree: Tree) -> None:
    for number, line in enumerate(_text(tree, path).splitlines(), start=1):
        if (secret := redaction.find(line)) is not None:
            raise InvalidTree(f"{path}:{number} looks like {secret}", hint="A harness holds no secrets; refer to them by name.")


def _refuse_binding(path: str, *, tree: Tree) -> None:
    """Endpoint, model and key are written beside a tree, never inside it: a candidate could send its users' work elsewhere."""
    hint = "Endpoint and key are not part of a harness: Reef writes them where the agent runs."
    content = _text(tree, path)
    if path.startswith("settings/") or path == MANIFEST or path.endswith(_DATA_FILES):
        if _ADDRESS.search(content):
            raise InvalidTree(f"{path} holds an address", hint=hint)
        for key, _value in _leaves(_data(path, content)):
            if any(_BINDING_KEY.search(part) for part in key):
                raise InvalidTree(f"{path} sets {'.'.join(key)}", hint=hint)
    for number, line in enumerate(content.splitlines(), start=1):
        if _BINDING_LINE.search(line) and (_ADDRESS.search(line) or not path.endswith(".md")):
            raise InvalidTree(f"{path}:{number} sets an endpoint or a key", hint=hint)


def _refuse_code(path: str, *, tree: Tree, base: Tree) -> None:
    """Extensions, executables, and every setting but numbers and plain switches can run something on a user's machine."""
    hint = "Do without it: change AGENTS.md, skills/, commands/ or memory/ instead."
    if path.startswith("extensions/"):
        raise InvalidTree(f"{path}: a change of code waits for a person", hint=hint)
    if path in tree and tree[path].executable and (path not in base or base[path] != tree[path]):
        raise InvalidTree(f"{path}: an executable file waits for a person", hint=hint)
    if not path.startswith("settings/"):
        return
    old = dict(_leaves(_data(path, _text(base, path)))) if path in base else {}
    new = dict(_leaves(_data(path, _text(tree, path)))) if path in tree else {}
    for key in sorted(old.keys() | new.keys()):
        if key in old and key in new and old[key] == new[key] and type(old[key]) is type(new[key]):
            continue
        plain = all(value is None or isinstance(value, bool | int | float) for value in (old.get(key), new.get(key)))
        if not plain or any(_CODE_KEY.search(part) for part in key):
            raise InvalidTree(f"{path}: the change of {'.'.join(key) or 'it'} can run code and waits for a person", hint=hint)


def _refuse_leaks(tree: Tree, *, base: Tree, forbidden: Iterable[str]) -> None:
    before, after = _everything(base), _everything(tree)
    for text in forbidden:
        needle = " ".join(text.split())
        if len(needle) < MIN_LEAK_CHARS:
            continue
        # whole words only: an id `date` is not given away by `update`
        pattern = re.compile(rf"(?<!\w){re.escape(needle)}(?!\w)", re.IGNORECASE if " " in needle else 0)
        if pattern.search(after) and not pattern.search(before):
            raise InvalidTree(f"it holds {needle[:80]!r}, which belongs to the evaluation set", hint="State the general rule instead.")


def _everything(tree: Tree) -> str:
    """Paths and contents as one line of text, so that a wrapped prompt is still found."""
    return " ".join(" ".join([path, *_text(tree, path).split()]) for path in sorted(tree))


def _text(tree: Tree, path: str) -> str:
    return tree[path].data.decode("utf-8", "replace")


def _data(path: str, content: str) -> JSON:
    """The content of a data file; None for one of another kind, or one that is broken (which is not for us to say)."""
    try:
        if path.endswith(".json"):
            return json.loads(content)
        if path.endswith((".yaml", ".yml")):
            return yaml.safe_load(content)
    except (ValueError, yaml.YAMLError, RecursionError):
        return None
    return None


def _leaves(value: Any, *, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JSON]]:
    """Every value that holds no other, with the keys that lead to it."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield key, value
    for name, inner in items:
        yield from _leaves(inner, key=(*key, str(name)))
