"""Every stevedore namespace, in one place. A broken plugin is named in the log and skipped; it never takes the rest down."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from reef.errors import PluginError

NAMESPACES = {
    "reef.adapters": "coding agents: how one is installed, configured, run and read (`reef.harness.adapter:Adapter`)",
    "reef.recipes": "methods that turn experience into candidates (`reef.learner.recipe:Recipe`)",
    "reef.upstreams": "places answers come from (`reef.serving.upstream:Upstream`)",
    "reef.graders": "functions that score the outcome of a task (`reef.evaluation.graders:Grader`)",
    "reef.trainers": "makers of weights from batches (`reef.training.trainer:Trainer`)",
    "reef.proposers": "writers of harness edits for Cordis (`cordis.proposer:Proposer`)",
}


@functools.cache
def _namespace(namespace: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Loaded plugins by name, and what went wrong with the others."""
    from stevedore import ExtensionManager

    broken: dict[str, str] = {}

    def report(_manager: object, entry_point: Any, error: BaseException) -> None:
        broken[entry_point.name] = f"{type(error).__name__}: {error}"

    manager: Any = ExtensionManager(namespace, on_load_failure_callback=report)
    return {extension.name: extension.plugin for extension in manager}, broken


@functools.cache
def _one(namespace: str, name: str) -> tuple[Any, str]:
    """A plugin, and what went wrong with it. The others of its namespace are not loaded: some bring heavy libraries."""
    from stevedore import NamedExtensionManager

    problems: list[str] = []

    def report(_manager: object, _entry_point: Any, error: BaseException) -> None:
        problems.append(f"{type(error).__name__}: {error}")

    manager: Any = NamedExtensionManager(
        namespace, [name], on_load_failure_callback=report, on_missing_entrypoints_callback=lambda _missing: None
    )
    return next((extension.plugin for extension in manager), None), "".join(problems)


def names(namespace: str) -> list[str]:
    """Plugins of a namespace that load, sorted."""
    return sorted(_namespace(namespace)[0])


def broken(namespace: str) -> dict[str, str]:
    """Plugins of a namespace that do not load, and why."""
    return dict(_namespace(namespace)[1])


def load(namespace: str, name: str) -> Any:
    """The plugin called ``name``, or the object a dotted name ``package.module:attribute`` points to.

    Raises:
        PluginError: there is no such plugin, or it does not load.
    """
    if ":" in name:
        return _dotted(name)
    found, problem = _one(namespace, name)
    if found is not None:
        return found
    if problem:
        raise PluginError(f"the plugin {name} of {namespace} does not load: {problem}", hint="Reinstall the package it comes from.")
    known = ", ".join(names(namespace)) or "none"
    raise PluginError(f"there is no {name} in {namespace}", hint=f"Installed: {known}.")


def _dotted(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"{name} cannot be loaded: {error}", hint="Write it as package.module:Class, importable by `reef serve`."
        ) from error
