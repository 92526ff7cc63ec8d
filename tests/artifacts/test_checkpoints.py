"""Checkpoints in the repository and out of it again: the same bytes, once on the disk, and nobody can write to them."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from reef.artifacts import checkpoints
from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import content_id
from reef.errors import Conflict, InvalidTree
from reef.types import File


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactRepository:
    return ArtifactRepository(tmp_path / "artifacts.git")


def lora(folder: Path, *, weights: bytes = b"weights") -> Path:
    (folder / "state").mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "state" / "optimizer.safetensors").write_bytes(b"moments")
    return folder


def published(artifacts: ArtifactRepository, folder: Path, *, branch: str = "candidates/one") -> str:
    parent = artifacts.commit({"README": File(b"before")}, message="the parent")
    return checkpoints.publish(artifacts, folder, branch=branch, parent=parent, message="a LoRA")


def test_a_published_checkpoint_is_laid_out_with_the_same_bytes_that_nobody_can_write_to(
    tmp_path: Path, artifacts: ArtifactRepository
) -> None:
    commit = published(artifacts, lora(tmp_path / "made"))
    assert artifacts.ref("candidates/one") == commit
    folder = checkpoints.materialise(artifacts, commit, cache=tmp_path / "cache")
    assert folder.name == content_id(artifacts.read(commit))
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights", "state/optimizer.safetensors": b"moments"}
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o222 for path in (folder, *folder.rglob("*")))
    assert checkpoints.materialise(artifacts, commit, cache=tmp_path / "cache") == folder


def test_weights_are_on_the_disk_once(tmp_path: Path, artifacts: ArtifactRepository) -> None:
    made = lora(tmp_path / "made")
    folder = checkpoints.materialise(artifacts, published(artifacts, made), cache=tmp_path / "cache")
    large = artifacts.large.path(next(iter(artifacts.large.all())).name)
    if large.stat().st_nlink > 1:  # else the file system has reflinks, which share bytes and not the file
        assert (folder / "adapter_model.safetensors").samefile(made / "adapter_model.safetensors")


def test_many_who_ask_at_once_get_the_same_folder(tmp_path: Path, artifacts: ArtifactRepository) -> None:
    commit = published(artifacts, lora(tmp_path / "made"))
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(checkpoints.materialise(artifacts, commit, cache=tmp_path / "cache")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [found[0].name]


def test_what_is_not_kept_is_dropped_and_can_be_had_again(tmp_path: Path, artifacts: ArtifactRepository) -> None:
    commits = [published(artifacts, lora(tmp_path / name, weights=name.encode()), branch=f"candidates/{name}") for name in ("one", "two")]
    one, two = (checkpoints.materialise(artifacts, commit, cache=tmp_path / "cache") for commit in commits)
    assert checkpoints.drop(tmp_path / "cache", keep={two.name}) == [one.name]
    assert two.is_dir() and not one.exists()
    assert (checkpoints.materialise(artifacts, commits[0], cache=tmp_path / "cache") / "adapter_model.safetensors").read_bytes() == b"one"


def test_a_checkpoint_whose_weights_are_missing_is_refused(tmp_path: Path, artifacts: ArtifactRepository) -> None:
    commit = published(artifacts, lora(tmp_path / "made"))
    for path in list(artifacts.large.all()):
        path.unlink()
    with pytest.raises(InvalidTree, match="is missing"):
        checkpoints.materialise(artifacts, commit, cache=tmp_path / "cache")
    assert not any((tmp_path / "cache").glob("*"))


def test_another_kind_of_folder_and_a_branch_that_is_there_are_refused(tmp_path: Path, artifacts: ArtifactRepository) -> None:
    (harness := tmp_path / "harness").mkdir()
    (harness / "harness.yaml").write_text("name: x\n")
    with pytest.raises(InvalidTree, match="not a checkpoint"):
        published(artifacts, harness)
    published(artifacts, lora(tmp_path / "made"))
    with pytest.raises(Conflict):
        published(artifacts, lora(tmp_path / "again"))
