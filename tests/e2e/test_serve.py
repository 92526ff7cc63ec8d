"""One command serves everything, one signal ends it cleanly, and what dies comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.service import serving, wait_for

REHEARSAL = ("--upstream", "rehearsal")
CHAT = {"model": "reef", "messages": [{"role": "user", "content": "Write the sum of 17 and 25 to sum.txt"}]}


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody waited for yet has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def reef(*arguments: str, url: str, token: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "REEF_URL": url, "REEF_TOKEN": token, "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-m", "reef", *arguments], capture_output=True, text=True, timeout=30, env=environment)


@pytest.mark.alone
def test_one_command_serves_within_three_seconds_and_stops_cleanly(tmp_path: Path) -> None:
    began = time.monotonic()
    with serving(tmp_path, *REHEARSAL) as service:
        assert time.monotonic() - began < 3
        pids = [service.pid(name) for name in ("gateway", "learner", "rehearsal")]
        assert len(set(pids)) == 3
    assert not [pid for pid in pids if pid and alive(pid)]


def test_what_dies_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    with serving(tmp_path, *REHEARSAL) as service:
        service.post("/v1/chat/completions", CHAT)
        for name in ("gateway", "learner", "rehearsal"):
            service.kill(name)
        wait_for(service.healthy, "the gateway to answer again")
        service.post("/v1/chat/completions", CHAT)
        assert len(service.get("/reef/scenarios/default/records")["records"]) == 2
        assert service.get("/reef/status")["processes"]["gateway"]["restarts"] == 1


def test_several_gateways_share_the_address_and_answer_for_each_other(tmp_path: Path) -> None:
    with serving(tmp_path, *REHEARSAL, "--set", "listen.workers=2") as service:
        asked = 0

        def answered_by() -> set[int | None]:
            nonlocal asked
            service.post("/v1/chat/completions", CHAT)
            asked += 1
            return {int(line.split('process="')[1].split('"')[0]) for line in service.text("/metrics").splitlines() if 'process="' in line}

        seen: set[int | None] = set()
        both = {service.pid("gateway"), service.pid("gateway-2")}
        wait_for(lambda: seen.update(answered_by()) or both <= seen, "both gateways to answer")
        service.kill("gateway-2")
        service.post("/v1/chat/completions", CHAT)
        listed = service.get("/reef/scenarios/default/records?limit=500")["records"]
        assert len(listed) == asked + 1


def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError), serving(tmp_path, *REHEARSAL) as service:
        pids = [service.pid(name) for name in ("gateway", "learner", "rehearsal")]
        service.process.send_signal(signal.SIGKILL)
        service.process.wait()
        wait_for(lambda: not any(pid and alive(pid) for pid in pids), "the children to end")


def test_two_services_do_not_share_a_state_folder(tmp_path: Path) -> None:
    with serving(tmp_path, *REHEARSAL):
        second = subprocess.run(
            [sys.executable, "-m", "reef", "serve", "--upstream", "rehearsal", "--port", "0", "--set", f"storage.dir={tmp_path / 'state'}"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert second.returncode == 1
    assert "another `reef serve` runs on" in second.stderr
    assert "storage.dir" in second.stderr


def test_commands_show_what_is_served(tmp_path: Path) -> None:
    with serving(tmp_path, *REHEARSAL, environment={"REEF_TOKEN": "secret"}) as service:
        service.post("/v1/chat/completions", CHAT, token="secret")
        record = service.get("/reef/scenarios/default/records", token="secret")["records"][0]["id"]
        wait_for(lambda: service.get("/reef/scenarios", token="secret")["scenarios"], "the scenario to exist")
        assert json.loads(reef("records", "show", record, url=service.url, token="secret").stdout)["request"] == CHAT
        assert record in reef("records", "list", url=service.url, token="secret").stdout
        assert "gateway" in reef("status", url=service.url, token="secret").stdout
        assert "import" in reef("releases", url=service.url, token="secret").stdout
        assert "no candidates yet" in reef("candidates", url=service.url, token="secret").stdout
        assert reef("diff", "1", "1", url=service.url, token="secret").stdout == ""
        assert "already has the content" in reef("rollback", "1", url=service.url, token="secret").stderr
        refused = reef("releases", url=service.url, token="wrong")
        assert refused.returncode == 1
        assert "token" in refused.stderr
        missing = reef("rollback", "99", url=service.url, token="secret")
        assert missing.returncode == 1
        assert "99" in missing.stderr


def test_a_client_without_the_token_may_do_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, *REHEARSAL, environment={"REEF_TOKEN": "secret"}) as service:
        for path in ("/reef/status", "/v1/models", "/reef/harness?adapter=pi", "/reef/scenarios"):
            with pytest.raises(OSError, match="401"):
                service.get(path)
        with pytest.raises(OSError, match="401"):
            service.post("/v1/chat/completions", CHAT, token="wrong")
