"""Agents at work over HTTP while processes are killed: they remember what they sent, and what was acknowledged."""

from __future__ import annotations

import json
import random
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from tests.support.service import Service

PROMPTS = ("Write the date 7 March 2024 to date.txt", "Write the sum of 17 and 25 to sum.txt")
TURNS = 6
"""Of a session."""
FEEDBACK = "Dates must be written as YYYY-MM-DD."


@dataclass(frozen=True)
class Acknowledged:
    """An answer that reached its end."""

    mark: str
    said: str
    whole: Any
    """The body, of one that was no stream."""


class Agent(threading.Thread):
    """Works without pause: holds conversations (streamed and not), reports, and now and then rolls back.

    Every request has a mark of its own as the end of its last message and is sent once; a report is sent until it is acknowledged.
    """

    def __init__(self, service: Service, number: int) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.sent: dict[str, Any] = {}
        """Requests by their mark, answered or not."""
        self.answers: dict[str, Acknowledged] = {}
        """By receipt."""
        self.reports: dict[str, Any] = {}
        """Their bodies by id, acknowledged or not."""
        self.reported: set[str] = set()
        """Those that were acknowledged."""
        self.rollbacks: list[int] = []
        self._service = service
        self._number = number
        self._random = random.Random(number)
        self._turn = 0

    def run(self) -> None:
        history: list[Any] = []
        while not self.stop.is_set():
            try:
                if len(history) >= 2 * TURNS:
                    history = []
                receipt = self._ask(history)
                self._report(receipt)
                if self._random.random() < 0.02:
                    step = self._random.choice((1, 2))  # refused where it serves already
                    self.rollbacks.append(self._service.post("/reef/scenarios/default/rollback", {"step": step})["step"])
            except (OSError, HTTPException, ValueError):  # a process was killed under this: not acknowledged
                self.stop.wait(0.01)  # the gateway is down for half a second: no need to try a thousand times

    def _ask(self, history: list[Any]) -> str:
        """One turn, which becomes history once it is answered; its receipt."""
        self._turn += 1
        mark = f"({self._number}/{self._turn})"
        stream = self._turn % 2 == 0
        asked = {"role": "user", "content": f"{PROMPTS[self._random.randrange(2)]} {mark}"}
        body = self.sent[mark] = {"model": "reef", "stream": stream, "messages": [*history, asked]}
        request = urllib.request.Request(self._service.url + "/v1/chat/completions", data=json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        request.add_header("x-reef-session", f"agent-{self._number}-{self._turn - len(history) // 2}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            data = answer.read()
            receipt = answer.headers["x-reef-agent-record-id"]
        whole = None if stream else json.loads(data)
        said = "".join(_deltas(data)) if whole is None else whole["choices"][0]["message"]["content"]
        self.answers[receipt] = Acknowledged(mark, said, whole)
        history += [asked, {"role": "assistant", "content": said}]
        return receipt

    def _report(self, receipt: str) -> None:
        """Now and then a report on the newest answer; and again those that are not acknowledged."""
        if self._random.random() < 0.1:
            name = f"report-{self._number}-{self._turn}"
            self.reports[name] = {"agent_record_id": name, "references": [receipt], "score": 0, "feedback": FEEDBACK}
        for name in self.reports.keys() - self.reported:
            assert self._service.post("/reef/report", self.reports[name])["agent_record_id"] == name
            self.reported.add(name)


def _deltas(data: bytes) -> Iterator[str]:
    """What a stream said.

    Raises:
        ValueError: it did not reach its end.
    """
    if not data.rstrip().endswith(b"data: [DONE]"):
        raise ValueError("the stream did not reach its end")
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                yield choice["delta"].get("content") or ""
