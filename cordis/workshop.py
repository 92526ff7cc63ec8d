"""The workshop: edits become a commit on a branch of their own, which stays whatever becomes of it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

import git

from cordis.edits import EditPlan, apply
from reef.artifacts.repository import GIT_TIMEOUT_S, ArtifactRepository
from reef.artifacts.tree import changed_paths, check_paths, content_id
from reef.errors import ProposalError, StorageError
from reef.learner.recipe import Proposal
from reef.types import Release, Report, Tree


def build(plan: EditPlan, *, artifacts: ArtifactRepository, parent: Release, recipe: str, reports: Sequence[Report]) -> Proposal:
    """Commit the edits on a new branch that starts from the parent.

    Raises:
        InvalidTree: an edit cannot be applied.
        ProposalError: the edits change nothing.
        StorageError: git could not write.
    """
    before = artifacts.read(parent.commit)
    after = apply(plan, tree=before)
    check_paths(after)
    changed = changed_paths(before, after)
    if not changed:
        raise ProposalError(f"no change: {plan.summary}", hint="The edits leave the harness as it is.")
    branch = f"candidates/{parent.scenario}/{secrets.token_hex(4)}"
    message = _message(plan, parent=parent, recipe=recipe, reports=reports, content=content_id(after))
    with artifacts.worktree(branch, base=parent.commit) as folder:
        for path in changed:
            _put(folder, path, tree=after)
        commit = _commit(folder, changed, message=message)
    if dict(artifacts.read(commit)) != dict(after):
        raise StorageError(f"{branch} does not hold what was written to it", hint="Is git on this machine changing files?")
    return Proposal(branch=branch, commit=commit, summary=plan.summary)


def _put(folder: Path, path: str, *, tree: Tree) -> None:
    """Bring one file of the work tree to its new state.

    Raises:
        ProposalError: the path leads out of the folder. Paths are checked long before; this is the last place that could stop one.
    """
    place = folder / path
    if not place.parent.resolve().is_relative_to(folder.resolve()) or place.is_symlink():
        raise ProposalError(f"{path} leads out of the work tree", hint="Edit plain files inside the harness only.")
    if path not in tree:
        place.unlink()
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(tree[path].data)
    place.chmod(0o755 if tree[path].executable else 0o644)


def _commit(folder: Path, changed: Sequence[str], *, message: str) -> str:
    # Said outright: variables of a git hook that `reef serve` was started from would lead into another repository.
    git_dir = Path((folder / ".git").read_text(encoding="utf-8").removeprefix("gitdir: ").strip())
    runner = git.Git(folder)
    runner.update_environment(GIT_DIR=str(git_dir), GIT_WORK_TREE=str(folder), GIT_INDEX_FILE=str(git_dir / "index"), **_ISOLATED)
    try:
        # --force: a .gitignore inside the harness is for its users, not for us
        runner.add("--force", "--all", "--", *(f":(literal){path}" for path in changed), kill_after_timeout=GIT_TIMEOUT_S)
        runner.commit(
            "--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=verbatim", "--message", message, kill_after_timeout=GIT_TIMEOUT_S
        )
        return str(runner.rev_parse("HEAD"))
    except git.GitCommandError as error:
        raise StorageError(f"the candidate could not be committed: {error.stderr}", hint="Is the disk full?") from error


def _message(plan: EditPlan, *, parent: Release, recipe: str, reports: Sequence[Report], content: str) -> str:
    """Subject, body and trailers. The body says what was edited; the trailers say why and from what."""
    body = "\n".join(f"{edit.action} {edit.path}" for edit in plan.edits)
    trailers = [
        f"Reef-Scenario: {parent.scenario}",
        f"Reef-Recipe: {recipe}",
        f"Reef-Base-Step: {parent.step}",
        *(f"Reef-Report: {report.id}" for report in reports),
        f"Reef-Content-Id: {content}",
    ]
    return f"{plan.summary}\n\n{body}\n\n" + "\n".join(trailers) + "\n"


_ISOLATED = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "Reef Cordis",
    "GIT_AUTHOR_EMAIL": "cordis@reef.invalid",
    "GIT_COMMITTER_NAME": "Reef Cordis",
    "GIT_COMMITTER_EMAIL": "cordis@reef.invalid",
}
