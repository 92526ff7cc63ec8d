"""The clients of the soak: they ask, listen, report, and some leave before the first byte or in mid-stream."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.parts.conversations import Conversation

RECEIPT = "x-reef-agent-record-id"
LEAVE_EARLY, LEAVE_MIDWAY, REPORT = 0.03, 0.03, 0.05
"""How often a client leaves before the first byte, in mid-stream, and how often it reports."""
PATIENCE_S = 0.03
"""What a client that leaves early waits; the mock's first byte takes longer."""
TIMEOUT_S = 60
KEPT = 100
"""Requests that are compared with what the store gives back."""
MOST_FAILURES = 50
"""So many, and the soak ends: it would say nothing new."""


@dataclass
class Tally:
    """What the clients saw."""

    asked: int = 0
    answered: set[str] = field(default_factory=set)
    """Receipts of answers that reached their end: each must be in the store."""
    left: set[str] = field(default_factory=set)
    """Receipts of streams that were left in the middle."""
    left_early: int = 0
    reports: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    sent: dict[str, Any] = field(default_factory=dict)
    """Some requests, by receipt."""


class Traffic:
    """So many requests from so many clients.

    Args:
        on_request: called after each, with the number so far.
    """

    def __init__(self, url: str, *, token: str, requests: int, clients: int, on_request: Callable[[int], None]) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {token}"}
        self._requests = requests
        self._clients = clients
        self._on_request = on_request
        self._begun = 0
        self.tally = Tally()

    async def run(self) -> None:
        """Send everything."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self._url, headers=self._headers, timeout=timeout, connector=connector) as http:
            async with asyncio.TaskGroup() as group:
                for number in range(self._clients):
                    group.create_task(self._client(http, number))
            await self._compare(http)

    async def _client(self, http: aiohttp.ClientSession, number: int) -> None:
        chance = random.Random(number)
        session = 0
        while self._claim():
            session += 1
            talk = Conversation(f"soak-{number}-{session}", chance)
            for turn in range(talk.turns):
                if turn and not self._claim():
                    return
                await self._request(http, talk, chance)

    def _claim(self) -> bool:
        """Whether there is one request more to send."""
        if self._begun >= self._requests or len(self.tally.failures) >= MOST_FAILURES:
            return False
        self._begun += 1
        return True

    async def _request(self, http: aiohttp.ClientSession, talk: Conversation, chance: random.Random) -> None:
        tally = self.tally
        lot = chance.random()
        try:
            if lot < LEAVE_EARLY + LEAVE_MIDWAY:
                await self._leave(http, talk, chance, early=lot < LEAVE_EARLY)
            else:
                await self._listen(http, talk, chance)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            tally.failures.append(f"{talk.dialect}: {type(error).__name__}: {error}")
        tally.asked += 1
        self._on_request(tally.asked)

    async def _listen(self, http: aiohttp.ClientSession, talk: Conversation, chance: random.Random) -> None:
        stream = chance.random() < 0.5
        body = talk.ask(chance.randrange(10**9), model="m", stream=stream)
        async with http.post(talk.path, json=body, headers=talk.headers) as response:
            data = await response.read()
            if response.status != 200 or not talk.ended(data, stream=stream):
                raise ValueError(f"answered {response.status}: {data[-200:]!r}")
            receipt = response.headers[RECEIPT]
        talk.hear(stream=stream)
        self.tally.answered.add(receipt)
        if len(self.tally.sent) < KEPT and chance.random() < 5 * KEPT / self._requests:
            self.tally.sent[receipt] = body
        if chance.random() < REPORT:
            await self._report(http, receipt, chance)

    async def _leave(self, http: aiohttp.ClientSession, talk: Conversation, chance: random.Random, *, early: bool) -> None:
        body = talk.ask(chance.randrange(10**9), model="slow", stream=not early or chance.random() < 0.5)
        talk.take_back()
        try:
            async with asyncio.timeout(PATIENCE_S if early else TIMEOUT_S):
                response = await http.post(talk.path, json=body, headers=talk.headers)
        except TimeoutError:
            if not early:
                raise
            self.tally.left_early += 1
            return
        self.tally.left.add(response.headers[RECEIPT])
        if not early:
            await response.content.readany()
        response.close()

    async def _report(self, http: aiohttp.ClientSession, receipt: str, chance: random.Random) -> None:
        body = {"references": [receipt], "score": chance.choice((0, 1)), "feedback": "Say it in one line."}
        async with http.post("/reef/report", json=body) as response:
            data = await response.read()
            if response.status != 201:
                raise ValueError(f"report answered {response.status}: {data[:200]!r}")
        self.tally.reports.add(json.loads(data)["agent_record_id"])

    async def _compare(self, http: aiohttp.ClientSession) -> None:
        """Look whether the store gives back what was sent."""
        for receipt, body in self.tally.sent.items():
            async with http.get(f"/reef/records/{receipt}") as response:
                record = await response.json()
            if json.dumps(record.get("request")) != json.dumps(body):
                self.tally.failures.append(f"{receipt} is not given back as it was sent")
