"""Reading serve.yaml: ``${ENV}``, ``--set a.b=c``, and errors that say which key is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from reef.config.whole import Config
from reef.errors import ConfigError

_ENV = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def load(file: Path | None = None, *, settings: Iterable[str] = (), **sections: dict[str, Any]) -> Config:
    """Read and check a configuration.

    Args:
        file: serve.yaml; None starts from the defaults.
        settings: ``a.b=value`` strings that override the file; values are YAML.
        sections: whole or partial sections that override the file, as command line options do.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, a value is out of bounds or ``${NAME}`` is not set.
    """
    data: dict[str, Any] = {}
    where = "the command line"
    if file is not None:
        where = str(file)
        data = _read(file)
        data.setdefault("base_dir", str(file.absolute().parent))
    for name, values in sections.items():
        section = data.setdefault(name, {})
        section.update({key: value for key, value in values.items() if value is not None})
    for setting in settings:
        _set(data, setting)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise _explain(error, where) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", hint="Give the path of a serve.yaml with -c.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid YAML: {error}", hint="Mend the line named above.") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{file} must hold a mapping, not a {type(data).__name__}", hint="Start with `upstream:`.")
    expanded = _expand(data, str(file))
    assert isinstance(expanded, dict)
    return expanded


def _expand(value: Any, where: str) -> Any:
    """Replace ``${NAME}`` and ``${NAME:-default}`` in every string, from the environment."""
    if isinstance(value, dict):
        return {key: _expand(item, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, where) for item in value]
    if not isinstance(value, str):
        return value

    def lookup(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = os.environ.get(name, default)
        if found is None:
            raise ConfigError(f"{where} uses ${{{name}}}, which is not set", hint=f"export {name}=…, or write ${{{name}:-default}}.")
        return found

    return _ENV.sub(lookup, value)


def _set(data: dict[str, Any], setting: str) -> None:
    path, separator, text = setting.partition("=")
    keys = path.split(".")
    if not separator or not all(keys):
        raise ConfigError(f"--set {setting} is not of the form a.b=value", hint="Example: --set listen.port=9000")
    for key in keys[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise ConfigError(f"--set {setting}: {key} is a value, not a section", hint="See docs/reference/configuration.md.")
    data[keys[-1]] = yaml.safe_load(text)


def _explain(error: ValidationError, where: str) -> ConfigError:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        kind = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"]
        lines.append(f"{key}: {kind}" if key else kind.removeprefix("Value error, "))
    return ConfigError(f"{where}: " + "; ".join(lines), hint="Every key is listed in docs/reference/configuration.md.")
