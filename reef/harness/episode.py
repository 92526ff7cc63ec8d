"""One headless run of a coding agent with one harness, in a throw-away root with its own home, configuration and workspace."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reef.artifacts.tree import check_path
from reef.errors import InvalidTree
from reef.harness import place
from reef.harness.adapter import HEADERS, Adapter, Binding, Fault, Outcome
from reef.harness.install import Installed
from reef.harness.sandbox import RELAY_PORT, Completed, Sandbox, python_folder
from reef.types import File, Setup, Tree

RunCommand = Callable[..., Completed]
"""``run_command(argv, *, timeout_s=60, folders={}) -> Completed``: in the workspace and the same sandbox, without gateway and token."""
NO_SETUP = Setup()


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """A finished run. The workspace is there until the context it came from is left."""

    workspace: Path
    answer: str
    returncode: int
    fault: Fault | None
    detail: str
    duration_s: float
    run_command: RunCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRunner:
    """Runs episodes of one agent against one gateway; safe to use from several threads."""

    adapter: Adapter
    installed: Installed
    sandbox: Sandbox
    gateway_socket: Path
    """Reached from inside a sandbox without a network."""
    gateway_url: str
    """Without ``/v1``; reached where the sandbox is ``none``."""
    token: str
    model: str
    timeout_s: float

    @contextlib.contextmanager
    def run(
        self,
        tree: Tree,
        *,
        prompt: str,
        files: Mapping[str, str | File],
        scenario: str,
        session: str,
        release: int | None,
        setup: Setup = NO_SETUP,
    ) -> Iterator[EpisodeResult]:
        """Run the agent with ``tree`` on ``prompt``, in a workspace that holds ``files``.

        Args:
            release: the step the tree is released as; None for a candidate.
            setup: what is done and needed around the workspace.

        Raises:
            InvalidTree: the adapter cannot take the tree.
            SandboxError: nothing could be started.
        """
        root = Path(tempfile.mkdtemp(prefix="reef-episode-")).resolve()
        try:
            for name in ("home", "config", "sessions", "tmp", "work"):
                (root / name).mkdir()
            with place.opened(
                self.sandbox, root=root, setup=setup, readable=self.installed.folders, gateway_socket=self.gateway_socket
            ) as where:
                lay_files(files, root / "work")
                values = {"REEF_SCENARIO": scenario, "REEF_SESSION": session} | ({} if release is None else {"REEF_RELEASE": str(release)})
                yield self._run(root, tree, prompt=prompt, values=values, setup=setup, where=where)
        finally:
            shutil.rmtree(root, onerror=_make_writable)

    def _run(self, root: Path, tree: Tree, *, prompt: str, values: Mapping[str, str], setup: Setup, where: place.Place) -> EpisodeResult:
        inside = where.inside
        base_url = f"http://127.0.0.1:{RELAY_PORT}/v1" if where.isolated else f"{self.gateway_url}/v1"
        headers = {header: variable for header, variable in HEADERS.items() if variable in values}
        write_tree(self.adapter.render(tree, binding=Binding(base_url, self.model, headers)), root / "config")
        launch = self.adapter.launch()
        key = self.token or "reef-local"
        lines = "\n".join(f"{header}: {values[variable]}" for header, variable in headers.items())
        places = {"config": str(inside / "config"), "sessions": str(inside / "sessions"), "key": key, "headers": lines}
        clean = clean_environment(inside, path=self.installed.path)
        env = clean | {name: value.format_map(places) for name, value in launch.env.items()}
        env |= {"REEF_API_KEY": key, **values}
        arguments = [argument.format_map(places) for argument in launch.args]

        def run_command(argv: Sequence[str], *, timeout_s: float = 60.0, folders: Mapping[str, Path] = place.NO_FOLDERS) -> Completed:
            return where.run(argv, env=clean, timeout_s=timeout_s, folders=folders)

        if problem := set_up(setup, run_command):
            return EpisodeResult(root / "work", "", 0, "infrastructure", problem, 0.0, run_command)
        argv = [str(self.installed.command), *arguments, *self.adapter.headless(prompt)]
        timeout_s = self.timeout_s if setup.run_timeout_s is None else min(self.timeout_s, setup.run_timeout_s)
        done = where.run(argv, env=env, timeout_s=timeout_s, gateway_socket=self.gateway_socket)
        outcome = self._outcome(done, timeout_s=timeout_s)
        return EpisodeResult(root / "work", outcome.answer, done.returncode, outcome.fault, outcome.detail, done.duration_s, run_command)

    def _outcome(self, done: Completed, *, timeout_s: float) -> Outcome:
        outcome = self.adapter.outcome(stdout=done.stdout, stderr=done.stderr, returncode=done.returncode)
        if done.exceeded:
            return Outcome(outcome.answer, "harness", f"ended since it took {done.exceeded}")
        if not done.timed_out:
            return outcome
        # a run that was still being refused by the model when time was up is not the harness's doing; any other is
        fault: Fault = "infrastructure" if outcome.fault == "infrastructure" else "harness"
        return Outcome(outcome.answer, fault, f"not finished after {timeout_s:g} s. {outcome.detail}".strip())


def clean_environment(inside: Path, *, path: Sequence[Path] = ()) -> dict[str, str]:
    """What a command of an episode finds in its environment: nothing of ours.

    Args:
        inside: the episode's root, as it is called inside.
        path: folders of programs that come first.
    """
    programs = [*map(str, path), str(python_folder() / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
    folders = {"HOME": str(inside / "home"), "TMPDIR": str(inside / "tmp")}
    return {**folders, "PATH": os.pathsep.join(programs), "LANG": "C.UTF-8", "TERM": "dumb"}


def set_up(setup: Setup, run_command: RunCommand) -> str:
    """Run a task's set-up command; what went wrong, or nothing. It is no fault of the harness: the agent has not begun."""
    if not setup.command:
        return ""
    done = run_command(setup.command, timeout_s=setup.timeout_s)
    if done.timed_out:
        return f"the set-up command did not end within {setup.timeout_s:g} s"
    said = (done.stderr.strip() or done.stdout.strip())[-300:]
    return f"the set-up command ended with status {done.returncode}: {said}" if done.returncode else ""


def lay_files(files: Mapping[str, str | File], folder: Path) -> None:
    """Write a task's files into its workspace.

    Raises:
        InvalidTree: a path would leave it.
    """
    write_tree({path: content if isinstance(content, File) else File(content.encode()) for path, content in files.items()}, folder)


def write_tree(tree: Tree, folder: Path) -> None:
    """Write the files of ``tree`` below ``folder``.

    Raises:
        InvalidTree: a path would leave the folder.
    """
    for path, file in tree.items():
        check_path(path)
        _write(folder / path, file.data)
        if file.executable:
            (folder / path).chmod(0o755)


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise InvalidTree(f"{path.name} is both a file and a folder", hint="Rename one of them.") from None


def _make_writable(remove: Callable[[str], object], path: str, _error: object) -> None:
    """An agent may have taken write permission away; a root that cannot be removed would fill the disk, trial by trial."""
    with contextlib.suppress(OSError):
        Path(path).parent.chmod(0o700)
        Path(path).chmod(0o700)
        remove(path)
