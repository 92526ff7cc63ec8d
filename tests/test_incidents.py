"""What hurt users of systems like this one, and what broke into them: each has a test here or elsewhere, or the issue it is open in.

The incidents are those of `shared/facts/peers.md`, in its words; :data:`TABLE` must cover all of them.
"""

from __future__ import annotations

import ast
import gc
import json
import re
import stat
import threading
import time
import tomllib
from asyncio import Task
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from packaging.requirements import Requirement

from reef import plugins
from reef.config import Config
from reef.evaluation.gate import Gate, Terms
from reef.experience.tokens import SCOPES
from reef.gateway.auth import Auth
from reef.harness import episode
from reef.harness.adapter import load_adapter
from reef.harness.client import install_script
from reef.types import Decision, End
from tests.support.gateway import CHAT, Service, service, until
from tests.support.service import serving
from tests.support.tokens import ADMIN, issue
from tests.support.upstream import FakeUpstream, Reply, chunk, greeting, stream, upstream

ROOT = Path(__file__).parents[1]
PEERS = ROOT.parent / "shared" / "facts" / "peers.md"
SOURCE = ("reef", "adapters", "cordis", "recipes")
STREAM = {**CHAT, "stream": True}
MODEL_SIDE = "issue 5: The model side"

TABLE: dict[str, tuple[str, ...] | str] = {
    # What their users report
    "A TCP reset from upstream becomes `finish_reason: stop` + `[DONE]`": (
        "tests/gateway/test_chaos.py::test_a_reset_after_any_number_of_events_is_never_a_clean_end",
    ),
    "a truncated answer looks complete and poisons training": (
        "tests/gateway/test_inference.py::test_a_stream_that_ends_before_its_answer_is_never_a_clean_stop",
        "tests/gateway/test_dialects.py::test_a_stream_that_breaks_off_ends_with_an_error_and_never_as_if_it_were_whole",
    ),
    "The client goes away: upstream is not cancelled (also before the first byte)": (
        "tests/gateway/test_inference.py::test_when_the_client_goes_the_upstream_is_stopped_at_once",
        "tests/gateway/test_chaos.py::test_a_client_that_leaves_stops_the_upstream_at_once",
    ),
    "or cleaning up blocks the event loop": ("tests/test_incidents.py::test_many_clients_that_leave_at_once_hold_nobody_up",),
    "No byte for 60 s (long thinking): a load balancer kills the stream; send SSE comments as keep-alive": (
        "tests/test_incidents.py::test_a_stream_whose_upstream_thinks_is_kept_alive_from_before_its_first_byte",
    ),
    "Buffering hides heartbeats; send `X-Accel-Buffering: no`": (
        "tests/test_incidents.py::test_a_stream_whose_upstream_thinks_is_kept_alive_from_before_its_first_byte",
        "tests/gateway/test_inference.py::test_a_stream_passes_through_byte_for_byte_and_is_recorded_as_its_completion",
    ),
    "Logs dropped when a queue is full": ("tests/experience/test_writer.py::test_beyond_the_bound_callers_wait_and_nothing_is_dropped",),
    "messages stored as `{}`": (
        "tests/experience/test_roundtrip.py::test_any_request_and_response_are_given_back_equal_with_their_keys_in_order",
        "tests/gateway/test_captures.py::test_a_capture_is_accepted_recorded_and_given_back",
    ),
    "only the first streamed request saved": ("tests/test_incidents.py::test_every_stream_on_one_connection_is_recorded",),
    "Databases grow without bound: 65 % of each row a copy of the same thing": (
        "tests/gateway/test_captures.py::test_what_a_turn_costs_stays_flat_as_a_session_grows",
    ),
    "retention deletes that never finish": ("tests/experience/test_retention.py::test_storing_goes_on_during_a_large_deletion",),
    "an index never pruned": (
        "tests/experience/test_retention.py::test_blobs_that_nothing_uses_are_collected_and_shared_ones_stay",
        "tests/experience/test_retention.py::test_space_is_given_back_to_what_is_stored_next_and_a_full_disk_becomes_usable",
    ),
    "disk full → will not boot": ("tests/experience/test_retention.py::test_on_a_disk_without_a_byte_left_the_reserve_makes_room",),
    "Memory: references kept by fire-and-forget tasks": ("tests/test_incidents.py::test_after_work_no_task_and_no_thread_is_left",),
    "a thread per chunk": ("tests/test_incidents.py::test_after_work_no_task_and_no_thread_is_left",),
    "OOM after days": ("tests/test_incidents.py::test_after_work_no_task_and_no_thread_is_left",),
    "Multi-turn sessions gave zero training signal because receipts were bundled wrongly": (
        "tests/gateway/test_reports.py::test_a_report_on_a_session_quotes_all_of_its_records",
        "tests/cordis/test_prompts.py::test_reports_on_one_session_are_told_together_and_references_find_theirs",
    ),
    "Mocks renamed on both sides hid a wire name that no real engine had (twice)": (
        "tests/gateway/test_clients.py::test_the_openai_sdk_chats_and_streams",
        "tests/gateway/test_clients.py::test_the_anthropic_sdk_asks_streams_and_counts",
        "tests/e2e/test_agents.py::test_an_agent_does_its_task_and_what_it_sent_is_one_session_of_whole_records",
    ),
    "A gate that promoted noise: 27 % of verdicts flipped on byte-identical inputs": (
        "tests/evaluation/test_gate.py::test_a_candidate_no_better_than_the_head_is_promoted_no_more_often_than_stated",
        "tests/evaluation/test_evaluator.py::test_the_same_seed_draws_the_same_tasks_and_orders",
    ),
    "a gate that rejected a byte-identical seed": (
        "tests/evaluation/test_evaluator.py::test_the_same_bytes_are_no_change_and_run_nothing",
    ),
    "float error deciding a tie": ("tests/test_incidents.py::test_scores_that_differ_by_float_error_alone_are_a_tie",),
    "a losing candidate published": (
        "tests/releases/test_controller.py::test_a_candidate_that_is_not_promoted_keeps_branch_state_and_reason",
    ),
    "LoRA reloaded under the same name reuses stale prefix-cache blocks": MODEL_SIDE,
    "rollouts silently served by base weights because the request lacked the LoRA's name": MODEL_SIDE,
    "weight transfer hangs for ever with no error": MODEL_SIDE,
    "a publication pause longer than the engine's watchdog killed runs": MODEL_SIDE,
    "`report` graded the oldest run although its help said the last": (
        "tests/harness/test_wrapper.py::test_a_report_is_about_the_latest_run_and_a_repeated_one_has_the_same_id",
    ),
    "`npm install` of an unpinned CLI silently gives an old version or a placeholder": (
        "tests/harness/test_install.py::test_what_answers_with_another_version_is_not_installed",
        "tests/test_incidents.py::test_every_agent_is_pinned_to_one_version",
    ),
    # Security incidents of the field
    "SQL injection before authentication through the error path of the key check": (
        "tests/gateway/test_tokens.py::test_incident_sql_injection_before_authentication",
        "tests/gateway/test_tokens.py::test_who_calls_is_decided_without_a_database_and_in_constant_time",
        "tests/test_incidents.py::test_sql_in_any_field_is_text",
    ),
    "template injection in a prompt-test endpoint": (
        "tests/test_incidents.py::test_every_template_is_sandboxed_and_none_comes_from_a_user",
        "tests/cordis/test_prompts.py::test_whatever_a_text_says_it_stays_inside_its_fence",
    ),
    "swapping a provider's base URL to collect its stored key": (
        "tests/test_incidents.py::test_no_key_is_stored_and_no_request_can_change_where_keys_go",
        "tests/harness/test_admission.py::test_endpoints_and_keys_in_settings_are_refused",
    ),
    "path traversal and overwrite in artifact stores": (
        "tests/artifacts/test_tree.py::test_a_path_that_could_leave_or_hide_is_refused",
        "tests/artifacts/test_tree.py::test_a_file_that_is_also_a_folder_is_refused",
        "tests/artifacts/test_repository.py::test_links_are_refused",
        "tests/harness/test_tree.py::test_the_bounds_hold",
        "tests/harness/test_tree.py::test_a_link_in_a_folder_is_refused",
        "tests/evaluation/test_graders.py::test_what_an_agent_planted_is_not_read_outside_the_workspace_and_does_not_hang",
    ),
    "pickle in a world-writable temp folder": (
        "tests/test_incidents.py::test_nothing_unpickles_and_nothing_evaluates_text",
        "tests/test_incidents.py::test_temporary_folders_are_private_and_nobody_can_guess_their_names",
    ),
    'a sandbox "egress list" that restricted nothing': (
        "tests/harness/test_sandbox.py::test_inside_there_is_no_network",
        "tests/harness/test_sandbox.py::test_the_gateway_is_reached_through_its_socket_alone",
        "tests/test_incidents.py::test_no_list_of_hosts_is_offered_where_none_is_enforced",
    ),
    "prototype pollution through trace attributes": (
        "tests/test_incidents.py::test_names_that_mean_something_to_a_language_are_plain_data",
    ),
    # Supply chain
    "litellm 1.82.7 and 1.82.8 on PyPI carried a file that ran at every Python start": (
        "tests/test_incidents.py::test_no_version_that_was_malicious_is_allowed",
    ),
    "require a range far above": ("tests/test_incidents.py::test_no_version_that_was_malicious_is_allowed",),
    "keep a constraints file with hashes for the released set-up": "not filed: there is no released set-up yet",
    "and let no install script fetch what is not pinned": (
        "tests/test_incidents.py::test_every_agent_is_pinned_to_one_version",
        "tests/harness/test_install.py::test_an_agent_is_installed_once_and_asked_its_version_in_a_home_of_its_own",
    ),
}


def section(title: str) -> str:
    text = PEERS.read_text(encoding="utf-8")
    return text.split(f"## {title}", 1)[1].split("\n## ", 1)[0].split("\n", 1)[1]


def test_the_table_covers_every_incident() -> None:
    reported, security = (
        section("What their users report (each is a test to have)"),
        section("Security incidents of the field (each is a test to have)"),
    )
    listed, _, rest = security.partition(" So: ")
    text = " ".join(f"{reported} {listed} {rest.partition('Supply chain:')[2]}".split())
    for said in sorted(TABLE, key=len, reverse=True):
        assert said in text, f"peers.md does not say: {said}"
        text = text.replace(said, "", 1)
    assert re.findall(r"\w+", text) == [], f"without a test: {text}"


def test_every_test_the_table_names_exists() -> None:
    named = [test for tests in TABLE.values() if not isinstance(tests, str) for test in tests]
    missing = []
    for test in named:
        file, _, name = test.partition("::")
        path = ROOT / file
        if not path.exists() or re.search(rf"^(?:async )?def {name}\(", path.read_text(), re.MULTILINE) is None:
            missing.append(test)
    assert missing == []


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with upstream() as server:
        yield server


@pytest.fixture
def gateway(tmp_path: Path, fake: FakeUpstream) -> Iterator[Service]:
    with service(tmp_path, upstream=fake.url, auth=Auth(token="root"), listen={"keep_alive_s": 0.1}) as running:
        yield running


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for folder in SOURCE:
        for file in (ROOT / folder).rglob("*.py"):
            yield file.relative_to(ROOT), ast.parse(file.read_text(encoding="utf-8"))


@pytest.mark.alone
def test_many_clients_that_leave_at_once_hold_nobody_up(gateway: Service, fake: FakeUpstream) -> None:
    fake.replies = [Reply(silent=True, end="hang") if number % 2 else stream(greeting()[0], end="hang") for number in range(60)]
    leaving = []
    for _ in range(60):
        connection = gateway.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), {"content-type": "application/json", **ADMIN})
        leaving.append(connection)
    until(lambda: len(fake.seen) == 60)
    for connection in leaving:
        connection.close()
    slowest = 0.0
    while not all(seen.hung_up.is_set() for seen in list(fake.seen)[:60]):
        began = time.monotonic()
        assert gateway.request("GET", "/healthz").status == 200
        slowest = max(slowest, time.monotonic() - began)
        assert slowest < 1.0
    assert until(lambda: [record.end for record in gateway.store.records("default", limit=100)] == [End.CLIENT_GONE] * 60)


def test_a_stream_whose_upstream_thinks_is_kept_alive_from_before_its_first_byte(gateway: Service, fake: FakeUpstream) -> None:
    first, second = threading.Event(), threading.Event()
    pieces = greeting()
    fake.replies = [stream(first, *pieces[:2], second, *pieces[2:])]
    connection = gateway.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(STREAM), {"content-type": "application/json", **ADMIN})
    response = connection.getresponse()
    assert response.getheader("x-accel-buffering") == "no"
    comment = b": keep-alive\n\n"
    assert response.read(len(comment)) == comment
    first.set()
    rest = response.read(len(pieces[0] + pieces[1] + comment))
    while not rest.endswith(comment):
        rest += response.read(1)
    second.set()
    rest += response.read()
    connection.close()
    assert rest.replace(comment, b"") == b"".join(pieces)


def test_every_stream_on_one_connection_is_recorded(gateway: Service, fake: FakeUpstream) -> None:
    connection = gateway.connect()
    receipts = []
    for number in range(10):
        body = {**STREAM, "messages": [{"role": "user", "content": f"question {number}"}]}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", **ADMIN})
        response = connection.getresponse()
        assert response.read() == b"".join(greeting())
        receipts.append((response.getheader("x-reef-agent-record-id"), body))
    connection.close()
    for receipt, body in receipts:
        record = gateway.store.record(str(receipt))
        assert (record.request, record.end) == (body, End.COMPLETE)
        assert record.response["choices"][0]["message"]["content"] == "hello"


def test_after_work_no_task_and_no_thread_is_left(gateway: Service, fake: FakeUpstream) -> None:
    """What a day's leak would show after a minute's work: as much is alive after many requests as after a few."""

    def work(rounds: int) -> None:
        for _ in range(rounds):
            fake.replies = [stream(*(chunk({"content": "x"}) for _ in range(100)), *greeting())]
            receipt = gateway.request("POST", "/v1/chat/completions", STREAM, ADMIN).receipt
            fake.replies = [stream(*greeting()[:2], end="reset")]
            gateway.request("POST", "/v1/chat/completions", STREAM, ADMIN)
            gateway.request("POST", "/reef/report", {"references": [receipt], "score": 1}, ADMIN)
            gateway.request("GET", "/reef/status", headers=ADMIN)

    def alive() -> tuple[int, int]:
        gc.collect()
        return sum(isinstance(thing, Task) and not thing.done() for thing in gc.get_objects()), threading.active_count()

    def settled() -> tuple[int, int]:
        before = alive()
        return until(lambda: before if alive() == before else None)

    work(10)
    tasks, threads = settled()
    work(60)
    assert until(lambda: alive()[0] <= tasks + 2 and alive()[1] <= threads + 4), (alive(), tasks, threads)  # pools grow to their bound


@pytest.mark.parametrize("order", [1, -1])
def test_scores_that_differ_by_float_error_alone_are_a_tie(order: int) -> None:
    """A protected task on which both did the same was a regression where one sum of the same weights came out 5e-17 lower."""
    gate = Gate(Terms(alpha=0.05, min_effect=0.1, max_pairs=100, protected={"guard": ("guard",)}))
    for _ in range(5):
        gate.observe(order * (0.3 - (0.1 + 0.2)), task="guard")
    assert (gate.decision, gate.wins, gate.losses, gate.effect) == (None, 0, 0, 0.0)
    while gate.decision is None:
        gate.observe(1.0, task="other")
    assert gate.decision is Decision.PROMOTE


@pytest.mark.parametrize("name", plugins.names("reef.adapters"))
def test_every_agent_is_pinned_to_one_version(name: str) -> None:
    adapter = load_adapter(name)
    spec = adapter.install
    exact = re.compile(r"\d+\.\d+\.\d+")
    assert exact.fullmatch(spec.version)
    packages = (*spec.packages, *spec.node_packages.values())
    assert all(exact.fullmatch(package.rpartition("@")[2]) for package in packages)
    script = install_script(adapter, url="http://127.0.0.1:8900", scenario="default")
    assert f"{spec.package}@{spec.version}" in script
    assert "--ignore-scripts" in script


SQL = (
    "' OR '1'='1",
    "'; DROP TABLE records; --",
    '"; DELETE FROM reports; --',
    "x' UNION SELECT digest FROM tokens --",
    "%",
    "\\'",
    "?",
)


@pytest.mark.parametrize("text", SQL)
def test_sql_in_any_field_is_text(gateway: Service, text: str) -> None:
    """After authentication: names that hold it are refused or not found, texts that hold it come back as they were."""
    kept = gateway.request("POST", "/v1/chat/completions", CHAT, ADMIN).receipt
    until(lambda: "default" in gateway.state.scenarios.heads)
    tables = rows(gateway)
    quoted = "".join(f"%{byte:02x}" for byte in text.encode())
    for path in (
        f"/reef/records/{quoted}",
        f"/reef/reports/{quoted}",
        f"/reef/candidates/{quoted}",
        f"/reef/scenarios/{quoted}/records",
        f"/reef/scenarios/{quoted}/releases",
        f"/reef/scenarios/default/records?after={quoted}",
        f"/reef/harness?scenario={quoted}",
        f"/reef/harness?version={quoted}",
        f"/reef/harness?adapter={quoted}",
    ):
        answer = gateway.request("GET", path, headers=ADMIN)
        assert answer.status in (400, 404, 422), path
    assert gateway.request("GET", f"/reef/scenarios/default/records?session={quoted}", headers=ADMIN).json["records"] == []
    for body in ({"references": [text]}, {"session": text}, {"references": [kept], "agent_record_id": text}):
        assert gateway.request("POST", "/reef/report", body, ADMIN).status in (404, 422), body
    for header in ("x-reef-scenario", "x-reef-session", "x-reef-release"):
        assert gateway.request("POST", "/v1/chat/completions", CHAT, {**ADMIN, header: text}).status == 400
    assert rows(gateway) == tables
    body = {"model": text, "messages": [{"role": "user", "content": text}], text: [text]}
    receipt = gateway.request("POST", "/v1/chat/completions", body, ADMIN).receipt
    assert gateway.store.record(receipt).request == body
    said = {"references": [receipt], "feedback": {text: text}, "metadata": {text: text}}
    report = gateway.request("POST", "/reef/report", said, ADMIN).json["agent_record_id"]
    assert (gateway.store.report(report).feedback, gateway.store.report(report).metadata) == ({text: text}, {text: text})


def rows(gateway: Service) -> dict[str, int]:
    with gateway.state.engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        return {name: connection.execute(sa.select(sa.func.count()).select_from(sa.table(name))).scalar_one() for name in names}


def test_every_statement_is_a_constant_or_built_by_the_library() -> None:
    """No text is put together to be SQL: what goes to ``text()`` or ``exec_driver_sql()`` has no values pasted into it."""
    suspicious = []
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("text", "exec_driver_sql"):
                given = node.args[0] if node.args else None
                holes = [hole for hole in ast.walk(given) if isinstance(hole, ast.FormattedValue)] if given is not None else []
                if any(not _is_a_constant(hole.value) for hole in holes):
                    suspicious.append(f"{file}:{node.lineno}")
    assert suspicious == []


def _is_a_constant(node: ast.expr) -> bool:
    """A name in capitals, or something of a table's own description."""
    return isinstance(node, ast.Name) and node.id.lstrip("_").isupper()


def test_every_template_is_sandboxed_and_none_comes_from_a_user(gateway: Service) -> None:
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                assert name not in ("Environment", "Template", "NativeEnvironment"), f"{file}:{node.lineno} renders without a sandbox"
    text = "{{ 7 * 7 }}{% for x in ().__class__.__base__.__subclasses__() %}{% endfor %}${7*7}"
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    receipt = gateway.request("POST", "/v1/chat/completions", body, ADMIN).receipt
    gateway.request("POST", "/reef/report", {"references": [receipt], "feedback": text, "agent_record_id": "r"}, ADMIN)
    assert gateway.store.record(receipt).request == body
    assert gateway.store.report("r").feedback == text
    refused = gateway.request("GET", "/reef/harness/install?adapter=%7B%7B7*7%7D%7D", headers=ADMIN)
    assert refused.status == 404
    assert "49" not in refused.error["message"]


def test_no_key_is_stored_and_no_request_can_change_where_keys_go(
    tmp_path: Path, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of an upstream is in the environment, by a name that stands beside its URL in serve.yaml; over HTTP neither can be set."""
    monkeypatch.setenv("THE_PROVIDERS_KEY", "sk-the-providers-own-key-0123456789")
    with service(tmp_path, upstream=fake.url, auth=Auth(token="root"), upstream_section={"key_env": "THE_PROVIDERS_KEY"}) as gateway:
        document = gateway.request("GET", "/openapi.json").json
        taken = {field for schema in document["components"]["schemas"].values() for field in schema.get("properties", {})}
        assert not {field for field in taken if re.search(r"url|api_?key|endpoint|upstream", field, re.IGNORECASE)}
        with upstream() as thief:
            tricks = {
                "x-forwarded-host": thief.url,
                "host": thief.url.split("/")[2],
                "x-reef-upstream": thief.url,
                "x-upstream-url": thief.url,
            }
            body = {**CHAT, "base_url": thief.url, "api_base": thief.url, "extra_body": {"base_url": thief.url}}
            assert gateway.request("POST", "/v1/chat/completions", body, {**ADMIN, **tricks}).status == 200
            assert gateway.request("GET", "/v1/models", headers={**ADMIN, **tricks}).status == 200
            assert not thief.seen
        assert fake.seen[0].headers["authorization"] == "Bearer sk-the-providers-own-key-0123456789"
        for path in ("/reef/status", "/openapi.json"):
            assert b"sk-the-providers" not in gateway.request("GET", path, headers=ADMIN).raw
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"sk-the-providers" not in file.read_bytes(), file


def test_nothing_unpickles_and_nothing_evaluates_text() -> None:
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    found = []
    for file, tree in trees():
        for node in ast.walk(tree):
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            unsafe_yaml = isinstance(node, ast.Attribute) and node.attr in ("unsafe_load", "full_load", "UnsafeLoader", "FullLoader")
            if {name.partition(".")[0] for name in names} & forbidden or called in ("eval", "exec") or unsafe_yaml:
                found.append(f"{file}:{node.lineno}")  # type: ignore[attr-defined]
    assert found == []


def test_temporary_folders_are_private_and_nobody_can_guess_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(("/tmp/", "/var/tmp")):
                raise AssertionError(f"{file}:{node.lineno} has a fixed name in a folder that everybody may write to")
            if isinstance(node, ast.Attribute) and node.attr in ("mktemp", "gettempdir"):
                raise AssertionError(f"{file}:{node.lineno} makes a name before it makes the file")
    monkeypatch.setattr(episode.tempfile, "tempdir", str(tmp_path))
    folders = {Path(episode.tempfile.mkdtemp(prefix="reef-episode-")) for _ in range(2)}
    assert len(folders) == 2
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_the_state_of_a_service_is_for_its_user_alone(tmp_path: Path) -> None:
    with serving(tmp_path, "--upstream", "rehearsal") as running:
        folders = [running.state, *(path for path in running.state.iterdir() if path.is_dir())]
        assert running.state / "artifacts.git" in folders
        assert stat.S_IMODE(running.state.stat().st_mode) == 0o700, "nobody else gets to what is inside"


def test_no_list_of_hosts_is_offered_where_none_is_enforced() -> None:
    """Inside bubblewrap there is no network at all; a setting that named hosts to let through would be a promise nobody keeps."""
    keys = set(Config.model_fields["evaluation"].annotation.model_fields)  # type: ignore[union-attr]
    assert not {key for key in keys if re.search(r"egress|allow|hosts?|domains?|network|firewall", key)}
    documented = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    assert "no network but the gateway" in documented


POLLUTING = ("__proto__", "constructor", "prototype", "__class__", "__init__", "__globals__", "__dict__", "toString", "hasOwnProperty")


@pytest.mark.parametrize("name", POLLUTING)
def test_names_that_mean_something_to_a_language_are_plain_data(gateway: Service, fake: FakeUpstream, name: str) -> None:
    """Where attributes of a trace were merged into objects, one named ``__proto__`` changed every object of the process."""
    planted: dict[str, Any] = {name: {"polluted": True, "isAdmin": True, "scopes": list(SCOPES)}}
    body = {**CHAT, "metadata": planted, name: {"polluted": True}}
    fake.replies = [stream(chunk({"role": "assistant", "content": "", name: {"polluted": True}}), *greeting()[1:])]
    answer = gateway.request(
        "POST", "/v1/chat/completions", {**body, "stream": True}, {**ADMIN, "traceparent": f"00-{name}", "tracestate": f"{name}=1"}
    )
    record = gateway.record(answer)
    assert record.request == {**body, "stream": True}
    assert record.response["choices"][0]["message"][name] == {"polluted": True}
    report = {"references": [record.id], "feedback": planted, "metadata": planted, "agent_record_id": name.strip("_") or "r"}
    assert gateway.request("POST", "/reef/report", report, ADMIN).status == 201
    stored = gateway.request("GET", f"/reef/reports/{report['agent_record_id']}", headers=ADMIN).json
    assert (stored["feedback"], stored["metadata"]) == (planted, planted)
    reader = issue(gateway, "reader", "read")
    assert gateway.request("GET", "/reef/status", headers=reader).status == 200
    assert gateway.request("POST", "/reef/scenarios", {"name": "x"}, reader).status == 403
    assert not hasattr(object, "polluted")
    assert not hasattr(record, "polluted")


def test_no_version_that_was_malicious_is_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(item for extra in project["optional-dependencies"].values() for item in extra)]
    requirements = [Requirement(item) for item in wanted]
    assert all(requirement.specifier for requirement in requirements if requirement.name != "reef"), "each has a range"
    for requirement in requirements:
        if requirement.name == "litellm":
            assert not [version for version in ("1.82.7", "1.82.8") if version in requirement.specifier]
            assert min(item.version for item in requirement.specifier if item.operator == ">=") >= "1.100"
