"""Containers: the commands that are built, and the order in which they are run, against a client that keeps a container in a folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from reef.errors import SandboxError
from reef.harness import docker, place
from reef.harness.sandbox import Sandbox, python_folder
from reef.types import Container, Setup

CLIENT = """#!{python} -S
import os, pathlib, shutil, subprocess, sys
home = pathlib.Path({home!r})
argv = sys.argv[1:]
with (home / "log").open("a") as log:
    log.write(" ".join(argv) + "\\n")
def inside(path):
    name, _, rest = path.partition(":")
    return home / name / rest.lstrip("/")
if argv[0] == "version":
    print("28.2.2")
elif argv[0] == "images":
    print("abc" if (home / "built").exists() else "")
elif argv[0] == "build":
    (home / "built").write_text("")
elif argv[0] == "run":
    root = home / argv[argv.index("--name") + 1]
    (root / "app").mkdir(parents=True)
    (root / "app" / "of-the-image.txt").write_text("image")
elif argv[0] == "inspect":
    print("/app")
elif argv[0] == "rm":
    shutil.rmtree(home / argv[-1])
elif argv[0] == "cp":
    source, target = argv[1:]
    source = inside(source) if ":" in source else pathlib.Path(source)
    target = inside(target) if ":" in target else pathlib.Path(target)
    shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
elif argv[0] == "exec":
    rest, cwd, env = argv[1:], "/", {{}}
    while rest[0].startswith("--"):
        if rest[0] == "--workdir":
            cwd = rest[1]
        else:
            env[rest[1]] = os.environ[rest[1]]
        rest = rest[2:]
    root = home / rest[0]
    if rest[1] == "rm":
        for path in rest[3:]:
            shutil.rmtree(root / path.lstrip("/"), ignore_errors=True)
    elif rest[1] != "chmod":
        sys.exit(subprocess.run(rest[1:], cwd=root / cwd.lstrip("/"), env={{"PATH": "/usr/bin:/bin", "ROOT": str(root), **env}}).returncode)
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a client that is first in PATH; what it was asked is in ``log``."""
    home = tmp_path / "docker"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "docker"
    program.write_text(CLIENT.format(python=sys.executable, home=str(home)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return home


def test_a_container_is_started_with_its_bounds_and_without_a_network(tmp_path: Path) -> None:
    container = Container(image="somebody/task:1", cpus=1.5, memory_mb=2048, env=(("A", "b"),))
    argv = docker.run_arguments(
        container, image="somebody/task:1", name="reef-1", root=tmp_path, readable=[Path("/opt/pi")], gateway_socket=Path("/run/gw.sock")
    )
    assert argv[:8] == ["docker", "run", "--detach", "--init", "--rm", "--name", "reef-1", "--hostname"]
    assert argv[-2:] == ["somebody/task:1", "infinity"] and argv[argv.index("--entrypoint") + 1] == "sleep"
    for option, value in (
        ("--network", "none"),
        ("--cpus", "1.5"),
        ("--memory", "2048m"),
        ("--env", "A=b"),
        ("--security-opt", "no-new-privileges"),
    ):
        assert argv[argv.index(option) + 1] == value
    mounts = [argv[position + 1] for position, part in enumerate(argv) if part == "--mount"]
    assert mounts[0] == f"type=bind,src={tmp_path},dst=/reef"
    assert mounts[1] == f"type=bind,src={python_folder()},dst={python_folder()},readonly"
    assert mounts[2] == "type=bind,src=/opt/pi,dst=/opt/pi,readonly"
    assert mounts[3].endswith("dst=/run/reef/relay.py,readonly") and mounts[4] == "type=bind,src=/run/gw.sock,dst=/run/reef/gateway.sock"
    open_one = docker.run_arguments(Container(image="x", network=True), image="x", name="n", root=tmp_path)
    assert "--network" not in open_one and "--cpus" not in open_one and len([part for part in open_one if part == "--mount"]) == 2


def test_no_value_of_a_variable_is_in_the_arguments_of_a_process(tmp_path: Path) -> None:
    argv = docker.exec_arguments(["pi", "-p", "hello"], name="reef-1", cwd="/app", variables=["REEF_API_KEY", "PATH"], gateway=True)
    assert argv[:9] == ["docker", "exec", "--workdir", "/app", "--env", "REEF_API_KEY", "--env", "PATH", "reef-1"]
    assert argv[-3:] == ["pi", "-p", "hello"] and "/run/reef/gateway.sock" in argv
    alone = docker.exec_arguments(["true"], name="reef-1", cwd="/app", variables=[], gateway=False)
    assert alone == ["docker", "exec", "--workdir", "/app", "reef-1", "true"]


def test_an_episode_works_in_one_container_which_is_removed_in_the_end(tmp_path: Path, client: Path) -> None:
    root, tests, context = tmp_path / "root", tmp_path / "tests", tmp_path / "context"
    for folder in (root / "work", tests, context):
        folder.mkdir(parents=True)
    (root / "work" / "in.txt").write_text("in")
    (tests / "test.sh").write_text("cat out.txt; echo graded > $ROOT/tests/reward.txt")
    (context / "Dockerfile").write_text("FROM ubuntu\nRUN true\n")
    setup = Setup(container=Container(build=str(context), why="RUN in its Dockerfile"))
    with place.opened(Sandbox("none"), root=root, setup=setup) as where:
        assert (where.inside, where.isolated) == (Path("/reef"), True)
        done = where.run(["sh", "-c", "cat in.txt of-the-image.txt > out.txt; echo $SECRET"], env={"SECRET": "s3cret"}, timeout_s=20)
        assert (done.returncode, done.stdout) == (0, "s3cret\n")
        assert (root / "work" / "out.txt").read_text() == "inimage"
        assert where.run(["sh", "-c", "sh $ROOT/tests/test.sh"], env={}, timeout_s=20, folders={"/tests": tests}).stdout == "inimage"
        assert (tests / "reward.txt").read_text() == "graded\n"
        assert where.run(["sleep", "60"], env={}, timeout_s=0.5).timed_out
    log = (client / "log").read_text()
    assert [line.split()[0] for line in log.splitlines()][:5] == ["version", "images", "build", "run", "inspect"]
    assert log.splitlines()[-1].startswith("rm --force") and "s3cret" not in log
    with place.opened(Sandbox("none"), root=root, setup=setup):
        pass
    assert (client / "log").read_text().count("build") == 1


def test_without_docker_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    setup = Setup(container=Container(image="x", why="the image x"))
    with (
        pytest.raises(
            SandboxError, match=r"needs a container \(the image x\), and Docker cannot be used: docker is not installed"
        ) as caught,
        place.opened(Sandbox("none"), root=tmp_path, setup=setup),
    ):
        pass
    assert "apt install docker" in caught.value.hint
    broken = tmp_path / "docker"
    broken.write_text("#!/bin/sh\necho Cannot connect to the Docker daemon >&2; exit 1\n")
    broken.chmod(0o755)
    assert docker.problem() == "Cannot connect to the Docker daemon"
