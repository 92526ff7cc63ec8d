"""The gateway's unix socket on a machine where there is no gateway: what connects to it is passed on to the gateway's address.

A sandbox without a network reaches the gateway by a unix socket alone (:mod:`reef.harness.relay`). On another machine than the gateway's
this stands in for it. The sandbox still reaches nothing else: where the bytes go is settled out here.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

from reef.errors import ConfigError
from reef.harness.relay import pump

_CONNECT_S = 10.0


class Bridge:
    """Listens until it is closed or its process ends.

    Args:
        url: the gateway's, ``http://`` or ``https://``, without a path: requests arrive as they were sent inside.

    Raises:
        ConfigError: ``url`` is not one.
    """

    def __init__(self, url: str) -> None:
        split = urlsplit(url)
        if split.scheme not in ("http", "https") or not split.hostname or split.path.strip("/"):
            raise ConfigError(f"{url} is not the address of a gateway", hint="execution.gateway_url is of the form http://HOST:PORT.")
        self._host = split.hostname
        self._port = split.port or (443 if split.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if split.scheme == "https" else None
        self._folder = tempfile.mkdtemp(prefix="reef-bridge-")  # 0700: whoever may connect could ask the gateway
        self.path = Path(self._folder, "gateway.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="bridge", daemon=True).start()

    def close(self) -> None:
        """Take no more connections. Those that are open go on to their end."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            gateway = socket.create_connection((self._host, self._port), timeout=_CONNECT_S)
            if self._tls is not None:
                gateway = self._tls.wrap_socket(gateway, server_hostname=self._host)
            gateway.settimeout(None)
        except OSError:  # the client sees its connection closed, and tries again or fails: a fault of the infrastructure
            client.close()
            return
        for source, sink in ((client, gateway), (gateway, client)):
            threading.Thread(target=pump, args=(source, sink), daemon=True).start()


def listens(path: Path) -> bool:
    """Whether a gateway listens on this machine's unix socket ``path``. A file of that name may have come over a network."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
