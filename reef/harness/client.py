"""The client for a user's machine: the install script, made for one gateway, one adapter and one scenario."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from dataclasses import asdict
from importlib.resources import files

import jinja2.sandbox

from reef.errors import InvalidRequest
from reef.harness.adapter import Adapter

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]{{2,45}}\])(?::[0-9]{{1,5}})?")


def base_url(*, scheme: str, host: str) -> str:
    """The gateway's address as its caller wrote it. It ends up in a script that people pipe into a shell, so nothing odd may pass.

    Raises:
        InvalidRequest: ``host`` is not a host name or address with an optional port.
    """
    if scheme not in ("http", "https") or len(host) > 255 or not _HOST.fullmatch(host):
        raise InvalidRequest("the Host header is not a host name", hint="Call the gateway by its name or address, e.g. localhost:8900.")
    return f"{scheme}://{host}"


def install_script(adapter: Adapter, *, url: str, scenario: str) -> str:
    """A bash script that installs the adapter's CLI and the wrapper. It holds no token.

    Every value in it is either shell-quoted or inside a quoted heredoc whose end marker is a digest of what it ends.
    """
    spec = adapter.install
    folder = files("harness_templates")
    wrapper = (folder / "client" / "reef_wrapper.py").read_text(encoding="utf-8")
    config = {"url": url, "adapter": adapter.name, "scenario": scenario, "version": spec.version, "command": spec.command}
    config_json = json.dumps({**config, "launch": asdict(adapter.launch())}, indent=2)
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["sh"] = shlex.quote
    template = environment.from_string((folder / "install.sh.j2").read_text(encoding="utf-8"))
    return template.render(
        adapter=adapter.name,
        program=f"reef-{adapter.name}",
        package=spec.package,
        version=spec.version,
        command=spec.command,
        node_min=spec.node_min,
        node_packages=sorted(spec.node_packages.items()),
        packages=(f"{spec.package}@{spec.version}", *spec.packages),
        links=[
            *([(f"node_modules/.bin/{spec.command}", sorted(spec.binaries.items()))] if spec.binaries else []),
            *((f"node-bin/{name}", sorted(paths.items())) for name, paths in spec.helpers.items()),
        ],
        url=url,
        wrapper=wrapper,
        wrapper_sha256=hashlib.sha256(wrapper.encode()).hexdigest(),
        end_of_wrapper=_marker(wrapper),
        config=config_json,
        end_of_config=_marker(config_json),
    )


def _marker(content: str) -> str:
    return f"END_{hashlib.sha256(content.encode()).hexdigest()}"
