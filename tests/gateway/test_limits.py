"""A token's limits: the request that is one too many is told when to come again, and costs nothing."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.errors import TooManyRequests
from reef.gateway.auth import Auth
from reef.gateway.limits import Limits
from tests.support.gateway import CHAT, Service, service, until
from tests.support.tokens import ADMIN, issue
from tests.support.upstream import FakeUpstream, greeting, stream


@pytest.fixture
def guarded(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    with service(tmp_path, upstream=fake.url, upstream_section={"dialects": ["chat", "messages"]}, auth=Auth(token="root")) as gateway:
        yield gateway


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_no_minute_has_more_requests_than_allowed() -> None:
    clock = Clock()
    limits = Limits(requests_per_minute=3, clock=clock)
    for _ in range(3):
        limits.take()
        limits.give()
        clock.now += 10
    with pytest.raises(TooManyRequests) as refused:
        limits.take()
    assert refused.value.retry_after_s == 31
    assert pickle.loads(pickle.dumps(refused.value)).headers() == {"retry-after": "31"}
    clock.now += refused.value.retry_after_s
    limits.take()
    with pytest.raises(TooManyRequests):
        limits.take()


def test_refused_requests_count_for_nothing() -> None:
    limits = Limits(requests_per_minute=2, concurrent=1, clock=Clock())
    limits.take()
    for _ in range(5):
        with pytest.raises(TooManyRequests, match="at a time"):
            limits.take()
    limits.give()
    limits.take()
    limits.give()
    assert limits.under_way == 0


def test_too_many_in_a_minute_is_a_429_in_the_callers_dialect_and_not_recorded(guarded: Service, fake: FakeUpstream) -> None:
    token = issue(guarded, "t", "infer", "read", requests_per_minute=2)
    assert [guarded.chat(**token).status for _ in range(3)] == [200, 200, 429]
    asked, stored = len(fake.seen), guarded.store.counts()["records"]
    refused = guarded.chat(**token)
    assert (refused.status, refused.error["type"]) == (429, "rate_limit_error")
    assert 1 <= int(refused.headers["retry-after"]) <= 61
    refused = guarded.request("GET", "/reef/status", headers=token)
    assert (refused.status, refused.error["type"]) == (429, "rate_limit_error")
    assert refused.headers["retry-after"]
    refused = guarded.request("POST", "/v1/messages", {**CHAT, "max_tokens": 5}, token)
    assert refused.status == 429
    assert refused.headers["retry-after"]
    assert (refused.json["type"], refused.json["error"]["type"]) == ("error", "rate_limit_error")
    assert (len(fake.seen), guarded.store.counts()["records"]) == (asked, stored)
    assert guarded.chat(**ADMIN).status == 200, "the limits are those of one token"


def test_too_many_at_a_time_is_a_429_and_a_place_is_free_again_however_an_exchange_ends(guarded: Service, fake: FakeUpstream) -> None:
    token = issue(guarded, "t", "infer", concurrent=2)
    limits = guarded.state.tokens._known[guarded.state.tokens.find("t").id][1].limits
    for end in ("clean", "reset", "gone"):
        hold = threading.Event()
        fake.replies = [stream(greeting()[0], hold, *greeting()[1:], end="reset" if end == "reset" else "clean") for _ in range(2)]
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                connection = guarded.connect()
                stack.callback(connection.close)
                connection.request("POST", "/v1/chat/completions", b'{"stream": true, "messages": []}', token)
                if end != "gone":
                    thread = threading.Thread(target=lambda c=connection: c.getresponse().read())
                    thread.start()
                    stack.callback(thread.join)
                else:
                    connection.getresponse()
            until(lambda: limits.under_way == 2)
            refused = guarded.chat(**token)
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            if end != "gone":
                hold.set()
        hold.set()
        until(lambda: limits.under_way == 0)
    assert guarded.chat(b"{", **token).status == 400
    assert guarded.chat(**token).status == 200
    assert limits.under_way == 0


def test_what_was_used_up_is_not_forgotten_when_another_token_changes(guarded: Service) -> None:
    token = issue(guarded, "t", "infer", requests_per_minute=1)
    assert guarded.chat(**token).status == 200
    issue(guarded, "another", "infer")
    guarded.state.tokens.reload()
    assert guarded.chat(**token).status == 429
