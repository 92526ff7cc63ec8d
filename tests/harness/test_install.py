from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from adapters.pi import PiAdapter
from reef.harness.adapter import Adapter, InstallSpec
from reef.harness.install import Installed, InstallError, install, platform_name


class Registry:
    """An npm registry with one package, ``agent`` 1.2.3, whose command prints ``says``."""

    def __init__(self) -> None:
        self.says = "agent 1.2.3"
        self.downloads = 0
        self.url = ""

    @property
    def archive(self) -> bytes:
        manifest = json.dumps({"name": "agent", "version": "1.2.3", "bin": {"agent": "cli.sh"}})
        script = f'#!/bin/sh\ntouch "$HOME/been-here"\necho "{self.says}"\n'
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, content in (("package/package.json", manifest), ("package/cli.sh", script)):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o755
                archive.addfile(entry, io.BytesIO(content.encode()))
        return gzip.compress(buffer.getvalue(), mtime=0)  # the same bytes each time: npm compares digests

    def packument(self, archive: bytes) -> dict[str, object]:
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
        dist = {"tarball": f"{self.url}/agent.tgz", "integrity": integrity}
        version = {"name": "agent", "version": "1.2.3", "bin": {"agent": "cli.sh"}, "dist": dist}
        return {"name": "agent", "dist-tags": {"latest": "1.2.3"}, "versions": {"1.2.3": version}}


class LocalAgent(PiAdapter):
    name = "local"
    install = InstallSpec(package="agent", version="1.2.3", command="agent", node_min="1.0.0")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    found = Registry()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            archive = found.archive
            wanted = {"/agent": lambda: json.dumps(found.packument(archive)).encode(), "/agent.tgz": lambda: archive}.get(self.path)
            found.downloads += self.path == "/agent.tgz"
            self.send_response(200 if wanted else 404)
            self.end_headers()
            self.wfile.write(wanted() if wanted else b"{}")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("npm_config_registry", found.url)
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    yield found
    server.shutdown()
    server.server_close()


def left_in(cache: Path) -> set[str]:
    return {path.name for path in (cache / "adapters").iterdir()}


def test_the_real_pi_is_installed_and_verified(pi: Installed) -> None:
    assert pi.version == "1.6.0" and pi.command.exists()
    assert all(folder.is_dir() for folder in (*pi.path, *pi.folders))


def test_an_agent_is_installed_once_and_asked_its_version_in_a_home_of_its_own(tmp_path: Path, registry: Registry) -> None:
    first = install(LocalAgent(), root=tmp_path / "cache")
    again = install(LocalAgent(), root=tmp_path / "cache")
    assert first == again and first.command.is_file() and registry.downloads == 1
    assert not (tmp_path / "home" / "been-here").exists()
    assert left_in(tmp_path / "cache") == {"local-1.2.3", "local-1.2.3.lock"}


def test_what_answers_with_another_version_is_not_installed(tmp_path: Path, registry: Registry) -> None:
    registry.says = "agent 1.2.30"
    with pytest.raises(InstallError, match=r"says it is 'agent 1\.2\.30'"):
        install(LocalAgent(), root=tmp_path / "cache")
    assert left_in(tmp_path / "cache") == {"local-1.2.3.lock"}
    registry.says = "agent 1.2.3"
    assert install(LocalAgent(), root=tmp_path / "cache").command.is_file()


def test_a_version_npm_does_not_have_is_an_error_with_what_npm_said(tmp_path: Path, registry: Registry) -> None:
    agent: Adapter = LocalAgent()
    agent.install = InstallSpec(package="agent", version="4.5.6", command="agent", node_min="1.0.0")
    with pytest.raises(InstallError, match=r"(?s)npm install.*agent@4\.5\.6") as caught:
        install(agent, root=tmp_path / "cache")
    assert caught.value.hint


def test_several_that_install_at_once_get_one_whole_folder(tmp_path: Path, registry: Registry) -> None:
    results: list[Installed] = []
    threads = [threading.Thread(target=lambda: results.append(install(LocalAgent(), root=tmp_path / "cache"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(results) == 3 and len(set(results)) == 1
    assert registry.downloads == 1


def test_without_npm_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError, match="npm, which is not on PATH"):
        install(PiAdapter(), root=tmp_path / "cache")


def test_this_platform_has_a_node_to_fetch() -> None:
    assert platform_name() in PiAdapter().install.node_packages


def test_a_program_of_its_own_is_linked_as_its_script_would_have_done(tmp_path: Path, registry: Registry) -> None:
    agent: Adapter = LocalAgent()
    here = {platform_name(): "agent/cli.sh"}
    agent.install = InstallSpec(
        package="agent", version="1.2.3", command="other-name", node_min="1.0.0", binaries=here, helpers={"helper": here}
    )
    installed = install(agent, root=tmp_path / "cache")
    assert installed.command.name == "other-name" and installed.command.resolve().name == "cli.sh"
    assert (installed.path[0] / "helper").resolve() == installed.command.resolve()


def test_a_platform_without_a_program_is_told(tmp_path: Path, registry: Registry) -> None:
    agent: Adapter = LocalAgent()
    agent.install = InstallSpec(
        package="agent", version="1.2.3", command="agent", node_min="1.0.0", binaries={"plan9-mips": "agent/cli.sh"}
    )
    with pytest.raises(InstallError, match=f"no agent for {platform_name()}"):
        install(agent, root=tmp_path / "cache")
    assert left_in(tmp_path / "cache") == {"local-1.2.3.lock"}
