import multiprocessing
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reef.artifacts.repository import NO_COMMIT, ArtifactRepository
from reef.artifacts.tree import content_id
from reef.errors import Conflict, InvalidRequest, InvalidTree, NotFound
from reef.types import File, Tree

TREE: Tree = {
    "AGENTS.md": File(b"# Rules\n"),
    "extensions/run.sh": File(b"#!/bin/sh\n", executable=True),
    "skills/a/SKILL.md": File(b"crlf\r\n"),
    "skills/a.md": File(b""),  # sorts between the folder and its files in git's order
    "memory/bytes.bin": File(bytes(range(256))),
}


@pytest.fixture
def repository(tmp_path: Path) -> ArtifactRepository:
    return ArtifactRepository(tmp_path / "artifacts.git")


def git(*arguments: str, cwd: Path) -> str:
    return subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True, timeout=30).stdout


def test_a_commit_gives_back_the_bytes_and_modes_that_were_stored(repository: ArtifactRepository) -> None:
    commit = repository.commit(TREE, message="first")
    assert dict(repository.read(commit)) == TREE
    assert dict(ArtifactRepository(repository.path).read(commit)) == TREE


def test_an_empty_tree_is_a_tree(repository: ArtifactRepository) -> None:
    assert dict(repository.read(repository.commit({}, message="nothing"))) == {}


names = st.text(st.characters(categories=("L", "N"), include_characters="-_. "), min_size=1, max_size=6).filter(
    lambda n: not n.startswith(".")
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(paths, st.builds(File, st.binary(max_size=300), st.booleans()), max_size=6))
def test_any_tree_that_is_allowed_comes_back_equal_and_passes_fsck(repository: ArtifactRepository, tree: dict[str, File]) -> None:
    try:
        commit = repository.commit(tree, message="any")
    except InvalidTree:
        return
    assert dict(repository.read(commit)) == tree
    git("fsck", "--strict", cwd=repository.path)


def test_plain_git_shows_author_parents_and_trailers(repository: ArtifactRepository) -> None:
    first = repository.commit(TREE, message="first")
    second = repository.commit(
        {"AGENTS.md": File(b"# Better\n")},
        parents=[first],
        message="A rule\n\nReef-Step: 99",
        trailers={"Reef-Scenario": "s", "Reef-Step": 2, "Reef-Summary": "two\nReef-Step: 7"},
    )
    shown = git(
        "show", "-s", "--format=%an <%ae>|%P|%(trailers:key=Reef-Step,valueonly,separator=%x2C)", second, cwd=repository.path
    ).strip()
    assert shown == f"Reef <reef@localhost>|{first}|2"
    trailers = git("show", "-s", "--format=%(trailers)", second, cwd=repository.path)
    assert f"Reef-Content-Id: {content_id({'AGENTS.md': File(b'# Better' + bytes([10]))})}" in trailers


def test_the_branch_can_be_cloned_and_diffed_with_plain_git(repository: ArtifactRepository, tmp_path: Path) -> None:
    first = repository.commit(TREE, message="first")
    second = repository.commit({**TREE, "AGENTS.md": File(b"# Better\n")}, parents=[first], message="second")
    repository.set_ref("releases/default", second)
    git("clone", "-q", str(repository.path), str(tmp_path / "clone"), cwd=tmp_path)
    assert (tmp_path / "clone" / "AGENTS.md").read_bytes() == b"# Better\n"
    assert "+# Better" in repository.diff(first, second)
    assert repository.diff(first, first) == ""


def test_the_users_git_configuration_takes_no_part(repository: ArtifactRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[user]\nname=Somebody\n[commit]\ngpgSign=true\n[core]\nautocrlf=true\nhooksPath=/nonexistent\n[diff]\nexternal=false\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    other = ArtifactRepository(tmp_path / "other.git")
    for each in (repository, other):
        commit = each.commit(TREE, message="first")
        with each.worktree("candidates/x", base=commit) as folder:
            assert (folder / "skills/a/SKILL.md").read_bytes() == b"crlf\r\n"
    assert not (tmp_path / "index").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_attributes_inside_a_tree_do_not_change_what_is_checked_out(repository: ArtifactRepository) -> None:
    commit = repository.commit(
        {".gitattributes": File(b"* text=auto eol=crlf\n*.b filter=lfs\n"), "a": File(b"x\n"), "c.b": File(b"y\n")}, message="m"
    )
    with repository.worktree("w", base=commit) as folder:
        assert (folder / "a").read_bytes() == b"x\n"
        assert (folder / "c.b").read_bytes() == b"y\n"


def test_a_ref_moves_only_from_where_it_is_expected(repository: ArtifactRepository) -> None:
    first, second = repository.commit(TREE, message="first"), repository.commit(TREE, message="second")
    assert repository.ref("releases/s") is None
    repository.set_ref("releases/s", first, old=NO_COMMIT)
    for stale in (NO_COMMIT, second):
        with pytest.raises(Conflict):
            repository.set_ref("releases/s", second, old=stale)
    with pytest.raises(Conflict):
        repository.set_ref("releases/t", second, old=first)
    repository.set_ref("releases/s", second, old=first)
    assert repository.ref("refs/heads/releases/s") == second


def test_of_many_threads_exactly_one_moves_a_ref(repository: ArtifactRepository) -> None:
    first = repository.commit(TREE, message="first")
    repository.set_ref("r", first)
    commits = [repository.commit(TREE, message=f"n{number}") for number in range(6)]

    def move(commit: str) -> bool:
        try:
            repository.set_ref("r", commit, old=first)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(move, commits)) == 1


def test_wrong_names_and_ids_are_refused(repository: ArtifactRepository) -> None:
    commit = repository.commit(TREE, message="first")
    for name in ("../../HEAD", "a b", "a..b", "x.lock", ""):
        with pytest.raises(InvalidRequest):
            repository.set_ref(name, commit)
    with pytest.raises(InvalidRequest, match="not a commit id"):
        repository.read("--help")
    with pytest.raises(NotFound):
        repository.read("0123456789" * 4)
    with pytest.raises(InvalidTree):
        repository.commit({"a/../../b": File(b"")}, message="m")


def test_links_are_refused(repository: ArtifactRepository, tmp_path: Path) -> None:
    base = repository.commit(TREE, message="first")
    with repository.worktree("w", base=base) as folder:
        (folder / "passwd").symlink_to("/etc/passwd")
        git("add", "-A", cwd=folder)
        git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "link", cwd=folder)
    linked = repository.ref("w")
    assert linked is not None
    with pytest.raises(InvalidTree, match="passwd"):
        repository.read(linked)


def test_a_worktree_is_private_and_gone_afterwards_but_its_branch_stays(repository: ArtifactRepository) -> None:
    base = repository.commit(TREE, message="first")
    with pytest.raises(RuntimeError, match="boom"), repository.worktree("candidates/s/1", base=base) as folder:
        assert (folder / "AGENTS.md").read_bytes() == b"# Rules\n"
        assert folder.parent.stat().st_mode & 0o077 == 0
        raise RuntimeError("boom")
    assert not folder.exists()
    assert repository.ref("candidates/s/1") == base
    assert git("worktree", "list", "--porcelain", cwd=repository.path).count("worktree ") == 1
    with pytest.raises(Conflict), repository.worktree("candidates/s/1", base=base):
        pass


def _crash_in_worktree(path: Path, base: str) -> None:
    with ArtifactRepository(path).worktree("candidates/s/crashed", base=base):
        os._exit(9)


def test_the_worktree_of_a_crashed_process_is_pruned_and_a_live_one_is_not(repository: ArtifactRepository) -> None:
    base = repository.commit(TREE, message="first")
    process = multiprocessing.get_context("spawn").Process(target=_crash_in_worktree, args=(repository.path, base))
    process.start()
    process.join(60)
    with repository.worktree("candidates/s/alive", base=base) as alive:
        assert [entry.name for entry in alive.parent.iterdir() if entry.is_dir()] == [alive.name]
        assert repository.prune() == []
        assert alive.exists()
    assert repository.ref("candidates/s/crashed") == base


def _create(path: Path) -> str:
    return ArtifactRepository(path).commit(TREE, message="m", at=1.0)


def test_two_processes_may_create_the_repository_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        commits = pool.map(_create, [tmp_path / "deep" / "artifacts.git"] * 3)
    assert len(set(commits)) == 1
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["artifacts.git"]
