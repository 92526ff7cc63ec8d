"""With ``storage.record`` off everything is as ever, but nothing is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gateway import CHAT, service
from tests.support.upstream import FakeUpstream, greeting, whole


@pytest.mark.parametrize("stream", [False, True])
def test_without_recording_answers_pass_with_a_receipt_and_nothing_is_stored(tmp_path: Path, fake: FakeUpstream, stream: bool) -> None:
    with service(tmp_path, upstream=fake.url, storage_section={"record": False}) as gateway:
        answer = gateway.chat({**CHAT, "stream": stream})
        assert answer.status == 200
        assert answer.receipt.startswith("rec_")
        assert answer.raw == (b"".join(greeting()) if stream else whole().pieces[0])
        assert gateway.store.records("default") == []
        assert gateway.request("GET", f"/reef/records/{answer.receipt}").status == 404
