"""Large files are genuine Git LFS objects, on the disk once."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from reef.artifacts import lfs
from reef.artifacts.folders import Kind, kind_of, lay_out, take_in
from reef.artifacts.reading import Contents, ObjectReader
from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import LargeFile, content_id
from reef.errors import InvalidTree, NotFound, StorageError
from reef.types import File

needs_git_lfs = pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")
WEIGHTS = bytes(range(256)) * 4096


@pytest.fixture
def repository(tmp_path: Path) -> ArtifactRepository:
    return ArtifactRepository(tmp_path / "artifacts.git")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "a folder").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "a folder" / "odd [name]*.bin").write_bytes(b"x" * 1000)
    return folder


def git(*arguments: str, cwd: Path) -> str:
    return subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_content_id_is_that_of_the_folder_and_comes_back_from_git(repository: ArtifactRepository, checkpoint: Path) -> None:
    lines = [
        f"{path}\x00100644\x00{hashlib.sha256((checkpoint / path).read_bytes()).hexdigest()}\n"
        for path in (".gitattributes", "a folder/odd [name]*.bin", "config.json", "model.safetensors")
    ]
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    tree = take_in(repository, checkpoint)
    assert content_id(tree) == expected
    commit = repository.commit(tree, message="weights")
    again = ArtifactRepository(repository.path).read(commit)
    assert dict(again) == tree
    assert content_id(again) == expected
    with ObjectReader(repository) as reader:
        contents = Contents(reader)
        found, large = contents.of(contents.commit(commit).tree)
    assert found == expected
    assert {file.size_bytes for file in large} == {len(WEIGHTS), 1000}


def test_the_bytes_are_on_the_disk_once(repository: ArtifactRepository, checkpoint: Path, tmp_path: Path) -> None:
    source = checkpoint / "model.safetensors"
    file = take_in(repository, checkpoint)["model.safetensors"]
    assert isinstance(file, LargeFile)
    kept = repository.large.path(file.sha256)
    assert kept.read_bytes() == WEIGHTS
    shared_blocks = kept.stat().st_ino != source.stat().st_ino  # a reflink: another file, the same blocks
    assert shared_blocks or kept.stat().st_nlink == 2
    assert kept.stat().st_mode & 0o222 == 0
    lay_out(repository, take_in(repository, checkpoint), tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == WEIGHTS
    assert (tmp_path / "out" / ".gitattributes").read_text() == (checkpoint / ".gitattributes").read_text()
    assert list(repository.large.unfinished()) == []


@needs_git_lfs
def test_git_lfs_checks_pushes_and_clones_them(repository: ArtifactRepository, checkpoint: Path, tmp_path: Path) -> None:
    commit = repository.commit(take_in(repository, checkpoint), message="weights")
    repository.set_ref("releases/default", commit)
    assert "OK" in git("lfs", "fsck", "releases/default", cwd=repository.path)
    assert "model.safetensors" in git("lfs", "ls-files", "releases/default", cwd=repository.path)
    remote = tmp_path / "remote.git"
    git("init", "-q", "--bare", str(remote), cwd=tmp_path)
    git("lfs", "push", "--all", f"file://{remote}", "releases/default", cwd=repository.path)
    git("push", "-q", f"file://{remote}", "releases/default:refs/heads/main", cwd=repository.path)
    lfs_filter = ("-c", "filter.lfs.smudge=git-lfs smudge -- %f", "-c", "filter.lfs.process=git-lfs filter-process")
    git(*lfs_filter, "clone", "-q", "-b", "main", f"file://{remote}", str(tmp_path / "clone"), cwd=tmp_path)
    assert (tmp_path / "clone" / "model.safetensors").read_bytes() == WEIGHTS
    assert (tmp_path / "clone" / "a folder" / "odd [name]*.bin").read_bytes() == b"x" * 1000
    damaged = repository.large.path(hashlib.sha256(WEIGHTS).hexdigest())
    damaged.chmod(0o644)
    damaged.write_bytes(b"?" + WEIGHTS[1:])
    assert subprocess.run(["git", "lfs", "fsck", "releases/default"], cwd=repository.path, capture_output=True, timeout=60).returncode != 0


def test_a_damaged_or_missing_large_file_is_told(repository: ArtifactRepository, checkpoint: Path) -> None:
    tree = take_in(repository, checkpoint)
    file = tree["model.safetensors"]
    assert isinstance(file, LargeFile)
    assert repository.large.problem(file, read=True) == ""
    kept = repository.large.path(file.sha256)
    kept.chmod(0o644)
    kept.write_bytes(b"?" + WEIGHTS[1:])
    assert repository.large.problem(file) == ""
    assert "other bytes" in repository.large.problem(file, read=True)
    kept.write_bytes(b"short")
    assert "5 bytes" in repository.large.problem(file)
    kept.unlink()
    with pytest.raises(InvalidTree, match="missing"):
        repository.commit(tree, message="weights")


def test_a_pointer_in_place_of_its_file_is_refused(repository: ArtifactRepository) -> None:
    with pytest.raises(InvalidTree, match="pointer"):
        repository.commit({"model.safetensors": File(lfs.pointer("0" * 64, 7))}, message="m")


def test_kinds_are_told_by_their_files(repository: ArtifactRepository, checkpoint: Path, tmp_path: Path) -> None:
    weights = File(b"")
    assert kind_of(take_in(repository, checkpoint)) is Kind.CHECKPOINT
    assert kind_of({"adapter_config.json": File(b"{}"), "adapter_model.safetensors": weights}) is Kind.LORA
    assert kind_of({"harness.yaml": File(b"")}) is Kind.HARNESS
    assert kind_of({"routing.yaml": File(b"")}) is Kind.ROUTING
    with pytest.raises(InvalidTree, match="no artifact"):
        kind_of({"README.md": File(b"")})
    with pytest.raises(NotFound):
        take_in(repository, tmp_path / "nowhere")


def test_a_damaged_or_missing_object_is_told(repository: ArtifactRepository) -> None:
    repository.commit({"a": File(b"some bytes")}, message="m")
    with ObjectReader(repository) as reader:
        with pytest.raises(StorageError, match="missing"):
            reader.get("0" * 40)
        assert reader.get(hashlib.sha1(b"blob 10\0some bytes").hexdigest()) == ("blob", b"some bytes")
