"""What asks: `wrk` for many connections, and for one a client of our own, which also sees when the first event of a stream comes."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.parts import prompts

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 20


@dataclass(frozen=True)
class Load:
    """One kind of traffic."""

    mode: str
    """``json`` or ``sse``."""
    connections: int
    prompt_kb: int

    def __str__(self) -> str:
        return f"{self.mode:4} c={self.connections:<3} {self.prompt_kb:>3} kB"


@dataclass(frozen=True)
class Measure:
    """What one run gave."""

    rps: float
    p50_ms: float
    p99_ms: float
    requests: int
    errors: int
    ttft_p50_ms: float = math.nan
    """Time to the first event of a stream; only a run of one connection knows it."""
    cpu_ms: float = math.nan
    """Processor time a request, of all processes of the system."""


def ask(url: str, load: Load, *, headers: Mapping[str, str], seconds: float, run: str, folder: Path) -> Measure:
    """One run of ``load`` against ``url``.

    Args:
        run: a name that no other run has.
        folder: where a file of this run may lie.
    """
    template = prompts.template(load.prompt_kb * 1000, stream=load.mode == "sse", run=run)
    if load.connections == 1:
        return _alone(url, template, headers=headers, seconds=seconds)
    file = folder / "request.json"
    file.write_bytes(template)
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{math.ceil(seconds)}s", "--timeout", f"{TIMEOUT_S}s"]
    command += ["-s", str(HERE / "post.lua"), url, "--", str(file), *(f"{name}: {value}" for name, value in headers.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True)
    result = json.loads(done.stdout.split("RESULT ", 1)[1].replace("-nan", "0").replace("nan", "0"))
    return Measure(result["requests"] / result["seconds"], result["p50_ms"], result["p99_ms"], result["requests"], result["errors"])


def _alone(url: str, template: bytes, *, headers: Mapping[str, str], seconds: float) -> Measure:
    """One request after the other. While one is answered this process sleeps, so it takes nothing from what it measures."""
    before, after = template.split(prompts.MARK.encode())
    totals: list[float] = []
    firsts: list[float] = []
    errors = 0
    connection = Connection(url, headers=headers)
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        try:
            first, total = connection.post(b"%b%d%b" % (before, len(totals), after))
        except (OSError, ValueError):
            errors += 1
            connection.close()
            if errors > 10:
                break
            continue
        firsts.append(first)
        totals.append(total)
    took = time.perf_counter() - begun
    connection.close()
    if not totals:
        return Measure(0, math.nan, math.nan, 0, errors)
    totals.sort()
    p50, p99 = statistics.median(totals) * 1000, totals[int(len(totals) * 0.99)] * 1000
    ttft = math.nan if b'"stream": false' in after else statistics.median(firsts) * 1000
    return Measure(len(totals) / took, p50, p99, len(totals), errors, ttft)


class Connection:
    """A keep-alive connection that is good enough for answers with a length and for chunked ones."""

    def __init__(self, url: str, *, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        lines = [f"host: {parts.netloc}", "content-type: application/json", *(f"{name}: {value}" for name, value in headers.items())]
        self._head = ("POST /v1/chat/completions HTTP/1.1\r\n" + "\r\n".join(lines)).encode()
        self._socket: socket.socket | None = None

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def post(self, body: bytes) -> tuple[float, float]:
        """Seconds to the first bytes of the answer's body, and to its end.

        Raises:
            OSError: the connection broke or was silent for too long.
            ValueError: the answer was not a 200.
        """
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = time.perf_counter()
        self._socket.sendall(b"%b\r\ncontent-length: %d\r\n\r\n%b" % (self._head, len(body), body))
        data = self._receive()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive()
        head, answer = data[:end].lower(), data[end + 4 :]
        if b" 200" not in head[:15]:
            raise ValueError(head[:200].decode("latin-1"))
        while not answer:
            answer = self._receive()
        first = time.perf_counter() - begun
        length = head.partition(b"content-length:")[2]
        wanted = int(length.split(b"\r\n", 1)[0]) if length else -1
        while len(answer) < wanted if length else not answer.endswith(b"0\r\n\r\n"):
            answer += self._receive()
        total = time.perf_counter() - begun
        if b"connection: close" in head:
            self.close()
        return first, total

    def _receive(self) -> bytes:
        assert self._socket is not None
        data = self._socket.recv(262_144)
        if not data:
            raise ConnectionResetError("the answer broke off")
        return data


def answers(url: str, *, headers: Mapping[str, str]) -> bool:
    """Whether a chat request is answered with a 200 by now."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    connection = Connection(url, headers=headers)
    with contextlib.suppress(OSError, ValueError):
        connection.post(body)
        return True
    connection.close()
    return False
