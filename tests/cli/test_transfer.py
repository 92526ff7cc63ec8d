"""`reef import` and `reef export`, as they are typed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.cli import transfer
from tests.cli.test_cli import reef
from tests.support.gateway import Service, service


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path, upstream="http://127.0.0.1:1/v1") as running:
        yield running


def pair(text: str, **more: Any) -> str:
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": f"re: {text}"}}]}
    return json.dumps({"request": {"messages": [{"role": "user", "content": text}]}, "response": answer, **more}) + "\n"


def test_a_file_goes_in_and_out_and_into_another(gateway: Service, tmp_path: Path) -> None:
    count = 2 * transfer.BATCH_LINES + 7
    file, out = tmp_path / "chats.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(pair(f"chat {number}") for number in range(count)))
    done = reef("import", str(file), "--scenario", "chats", REEF_URL=gateway.url)
    assert (done.returncode, f"{count} records" in done.stdout) == (0, True), done.stderr
    assert f"{count} there already" in reef("import", str(file), "-s", "chats", REEF_URL=gateway.url).stdout
    assert reef("export", "-o", str(out), REEF_URL=gateway.url).returncode == 0
    assert len(out.read_bytes().splitlines()) == count
    assert [item.name for item in tmp_path.iterdir() if "unfinished" in item.name] == []
    with service(tmp_path / "second", upstream="http://127.0.0.1:1/v1") as second:
        done = subprocess.run(
            [sys.executable, "-m", "reef", "import", "-", "--url", second.url], input=out.read_bytes(), capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert reef("export", "--scenario", "chats", REEF_URL=second.url).stdout.encode() == out.read_bytes()


def test_a_bad_line_is_named_and_what_was_stored_is_said(gateway: Service, tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    good = "".join(pair(f"chat {number}") for number in range(transfer.BATCH_LINES))
    file.write_text(good + pair("one more") + pair("bad", started_at="yesterday"))
    done = reef("import", str(file), REEF_URL=gateway.url)
    assert done.returncode == 1
    assert f"{file}: line {transfer.BATCH_LINES + 2}: started_at" in done.stderr
    assert f"The lines before {transfer.BATCH_LINES + 1} are stored" in done.stderr
    assert gateway.store.counts()["records"] == transfer.BATCH_LINES
    file.write_text(good + pair("one more") + pair("mended"))
    done = reef("import", str(file), REEF_URL=gateway.url)
    assert ("2 records stored" in done.stdout, gateway.store.counts()["records"]) == (True, transfer.BATCH_LINES + 2), done.stdout


def test_mistakes_are_explained(gateway: Service, tmp_path: Path) -> None:
    array = tmp_path / "array.json"
    array.write_text("[" + pair("a").strip() + "]")
    for arguments, said in (
        (("import", "missing.jsonl"), "cannot read missing.jsonl"),
        (("import", str(array)), "line 1: a JSON array, not an object"),
        (("export", "-o", str(tmp_path / "no" / "file")), "cannot write"),
        (("export", "--scenario", "a b"), "is not a scenario name"),
    ):
        done = reef(*arguments, REEF_URL=gateway.url)
        assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
