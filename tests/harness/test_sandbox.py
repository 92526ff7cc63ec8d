from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reef.errors import SandboxError
from reef.harness.bounds import INTERVAL_S, PROCESSES, Bounds, bounds, machine_memory
from reef.harness.sandbox import OUTPUT_BYTES, Completed, Sandbox, bubblewrap_problem, sandbox_python

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
Shell = Callable[..., Completed]

needs_bubblewrap = pytest.mark.skipif(bool(bubblewrap_problem()), reason=f"bubblewrap: {bubblewrap_problem()}")


@pytest.fixture(params=[pytest.param("bubblewrap", marks=needs_bubblewrap), "none"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sandbox(kind: str) -> Sandbox:
    return Sandbox(kind)


def shell(
    sandbox: Sandbox, folder: Path, script: str, *, timeout_s: float = 20, env: dict[str, str] | None = None, **more: object
) -> Completed:
    inside = sandbox.inside(folder)
    return sandbox.run(["sh", "-c", script], cwd=inside, env=ENV | (env or {}), timeout_s=timeout_s, writable={inside: folder}, **more)


def running(marker: str) -> list[str]:
    """Processes of this machine with ``marker`` among their arguments, this one's not counted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def wait_until(look: Callable[[], bool], *, bound_s: float = 10) -> None:
    deadline = time.monotonic() + bound_s
    while not look():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def test_a_command_gives_its_output_its_code_and_its_files(sandbox: Sandbox, tmp_path: Path) -> None:
    done = shell(sandbox, tmp_path, "echo out; echo err >&2; echo kept > file; exit 3")
    assert (done.returncode, done.stdout, done.stderr, done.timed_out) == (3, "out\n", "err\n", False)
    assert (tmp_path / "file").read_text() == "kept\n"


def test_the_environment_holds_what_was_given_and_nothing_of_ours(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REEF_TOKEN", "secret-of-this-process")
    done = shell(sandbox, tmp_path, "env", env={"GIVEN": "yes"})
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert names - {"PWD", "SHLVL", "_"} == {"PATH", "GIVEN"}


def test_standard_input_is_empty(sandbox: Sandbox, tmp_path: Path) -> None:
    assert shell(sandbox, tmp_path, "cat; echo end").stdout == "end\n"


def test_a_time_out_ends_the_whole_tree(sandbox: Sandbox, tmp_path: Path) -> None:
    seconds = f"3{time.time_ns() % 10**8}"
    done = shell(sandbox, tmp_path, f"echo begun; (sleep {seconds} & sleep {seconds}); wait", timeout_s=1.5)
    assert done.timed_out and done.returncode == 128 + 9 and done.stdout == "begun\n"
    assert done.duration_s < 5
    wait_until(lambda: not running(seconds))


def test_a_child_left_behind_neither_holds_us_nor_survives(sandbox: Sandbox, tmp_path: Path) -> None:
    seconds = f"4{time.time_ns() % 10**8}"
    done = shell(sandbox, tmp_path, f"sleep {seconds} & echo done")
    assert (done.stdout, done.timed_out) == ("done\n", False)
    assert done.duration_s < 5
    wait_until(lambda: not running(seconds))


def test_output_is_bounded_and_its_end_is_kept(sandbox: Sandbox, tmp_path: Path) -> None:
    done = shell(sandbox, tmp_path, "head -c 12000000 /dev/zero | tr '\\0' 'x'; echo the end")
    assert len(done.stdout) <= OUTPUT_BYTES
    assert done.stdout.endswith("xthe end\n")


def test_what_is_not_there_cannot_be_started(sandbox: Sandbox, tmp_path: Path) -> None:
    inside = sandbox.inside(tmp_path)
    with pytest.raises(SandboxError, match="no-such-command"):
        sandbox.run(["no-such-command"], cwd=inside, env=ENV, timeout_s=10, writable={inside: tmp_path})


@needs_bubblewrap
def test_inside_there_is_no_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        script = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        assert Sandbox("none").run(["bash", "-c", script], cwd=tmp_path, env=ENV, timeout_s=10).returncode == 0
        refused = shell(Sandbox("bubblewrap"), tmp_path, f"bash -c '{script}' ; ls /sys/class/net 2>/dev/null")
    assert "refused" in refused.stderr
    away = shell(Sandbox("bubblewrap"), tmp_path, "bash -c 'exec 3<>/dev/tcp/192.0.2.1/80'")
    assert "unreachable" in away.stderr and away.duration_s < 5


@needs_bubblewrap
def test_inside_this_machines_files_cannot_be_seen_or_changed(tmp_path: Path) -> None:
    secret = tmp_path / "outside" / "secret"
    secret.parent.mkdir()
    secret.write_text("secret")
    work = tmp_path / "work"
    work.mkdir()
    done = shell(
        Sandbox("bubblewrap"),
        work,
        f"cat {secret} {Path.home()}/.bashrc /etc/shadow; ls /home /var; touch /usr/x /etc/x; grep CapEff /proc/self/status",
    )
    assert "secret" not in done.stdout
    assert done.stdout.strip() == "CapEff:\t0000000000000000"
    assert done.stderr.count("No such file") >= 5 and "Read-only file system" in done.stderr
    assert not Path("/etc/x").exists()


@needs_bubblewrap
def test_the_token_is_not_on_the_command_line(tmp_path: Path) -> None:
    done = Sandbox("bubblewrap")
    seconds = f"5{time.time_ns() % 10**8}"
    thread = threading.Thread(
        target=shell, args=(done, tmp_path, f"sleep {seconds}"), kwargs={"timeout_s": 2, "env": {"KEY": f"key-{seconds}-key"}}
    )
    thread.start()
    wait_until(lambda: bool(running(seconds)))
    assert not running(f"key-{seconds}-key")
    thread.join()


@needs_bubblewrap
def test_the_gateway_is_reached_through_its_socket_alone(tmp_path: Path, gateway_socket: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    script = "curl -sS --max-time 10 http://127.0.0.1:8900/reef/harness/diff?from=1'&'to=2"
    assert shell(Sandbox("bubblewrap"), work, script, gateway_socket=gateway_socket).stdout == "-old 1\n+new 2\n"
    assert shell(Sandbox("bubblewrap"), work, script).returncode == 7


@needs_bubblewrap
def test_the_relay_keeps_the_commands_exit_code(tmp_path: Path, gateway_socket: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    assert shell(Sandbox("bubblewrap"), work, "exit 5", gateway_socket=gateway_socket).returncode == 5
    assert shell(Sandbox("bubblewrap"), work, "kill -TERM $$", gateway_socket=gateway_socket).returncode == 128 + 15


def test_bubblewrap_that_was_asked_for_and_is_missing_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    bubblewrap_problem.cache_clear()
    try:
        assert Sandbox("auto").kind == "none"
        with pytest.raises(SandboxError, match="not installed") as caught:
            Sandbox("bubblewrap")
        assert "apt install" in caught.value.hint
    finally:
        bubblewrap_problem.cache_clear()


def test_a_command_that_takes_more_memory_than_it_may_is_ended_with_all_below_it(kind: str, tmp_path: Path) -> None:
    seconds = f"6{time.time_ns() % 10**8}"
    hog = f'import time; held = bytearray(b"x") * (400 << 20); time.sleep({seconds})'
    sandbox = Sandbox(kind, bounds=Bounds(memory_bytes=200 << 20))
    done = shell(sandbox, tmp_path, f"sleep {seconds} & {sandbox_python()} -c '{hog}'", timeout_s=60)
    assert (done.timed_out, done.returncode) == (False, 128 + 9)
    assert done.exceeded.endswith("MiB of memory, and 200 MiB are allowed")
    assert done.stderr.endswith(f"ended by Reef: it took {done.exceeded}")
    wait_until(lambda: not running(seconds))


def test_a_command_that_starts_more_processes_than_it_may_is_ended_with_all_of_them(kind: str, tmp_path: Path) -> None:
    seconds = f"7{time.time_ns() % 10**8}"
    bomb = f"for i in $(seq 150); do (sleep {seconds} &) ; done; exec >&- 2>&-; sleep {seconds}"  # who started them is gone
    done = shell(Sandbox(kind, bounds=Bounds(memory_bytes=1 << 40, processes=50)), tmp_path, bomb, timeout_s=60)
    assert (done.timed_out, done.returncode) == (False, 128 + 9)
    assert done.exceeded.endswith("processes and threads, and 50 are allowed")
    wait_until(lambda: not running(seconds))


def test_threads_count_and_what_processes_hold_in_common_counts_once(kind: str, tmp_path: Path) -> None:
    threads = """
import threading, time
for _ in range(40):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
time.sleep(60)
"""
    (tmp_path / "threads.py").write_text(threads)
    few = Sandbox(kind, bounds=Bounds(memory_bytes=1 << 40, processes=30))
    assert "30 are allowed" in shell(few, tmp_path, f"exec {sandbox_python()} threads.py", timeout_s=60).exceeded
    forks = f"""
import os, time
held = bytearray(b"x") * (100 << 20)
children = []
for _ in range(5):
    if (child := os.fork()) == 0:
        time.sleep({20 * INTERVAL_S})
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""
    (tmp_path / "forks.py").write_text(forks)
    done = shell(Sandbox(kind, bounds=Bounds(memory_bytes=400 << 20)), tmp_path, f"{sandbox_python()} forks.py", timeout_s=60)
    assert (done.exceeded, done.returncode) == ("", 0)


def test_without_a_word_half_of_the_machines_memory_may_be_taken() -> None:
    assert bounds() == Bounds(memory_bytes=machine_memory() // 2, processes=PROCESSES)
    assert bounds(memory_mb=64, processes=9) == Bounds(memory_bytes=64 << 20, processes=9)
    assert 0 < machine_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
