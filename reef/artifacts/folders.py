"""Between folders and the repository: a folder taken in as a tree, and a commit laid out as a folder, large files never copied."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from reef.artifacts import lfs
from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import LargeFile, check_path, check_paths
from reef.errors import InvalidTree, NotFound
from reef.types import Component, File, Tree

MAX_FILES = 10_000
_PASSED_OVER = (".git", ".cache", "__pycache__")


class Kind(StrEnum):
    """What a tree is."""

    HARNESS = "harness"
    CHECKPOINT = "checkpoint"
    LORA = "lora"
    ROUTING = "routing"

    @property
    def component(self) -> Component:
        """The component of a release that it is the content of."""
        return Component.MODEL if self in (Kind.CHECKPOINT, Kind.LORA) else Component(self.value)


def kind_of(tree: Tree) -> Kind:
    """What a tree is, by its files.

    Raises:
        InvalidTree: none of the kinds.
    """
    weights = any(path.endswith((".safetensors", ".gguf", ".bin", ".pt")) for path in tree)
    if "harness.yaml" in tree:
        return Kind.HARNESS
    if "adapter_config.json" in tree and weights:
        return Kind.LORA
    if weights and ("config.json" in tree or any(path.endswith(".gguf") for path in tree)):
        return Kind.CHECKPOINT
    if tree.keys() & {"routing.yaml", "routing.json"}:
        return Kind.ROUTING
    raise InvalidTree(
        "this is no artifact of a kind that is known",
        hint="A harness has harness.yaml, a checkpoint config.json and weights, a LoRA adapter_config.json and weights, a routing policy "
        "routing.yaml.",
    )


def take_in(artifacts: ArtifactRepository, folder: Path) -> Tree:
    """A folder's files; the large ones are in the repository from here on, and those of the folder may have become read-only.

    ``.git`` and caches are passed over. A symbolic link to a file is followed, as the model caches of others are made of them.

    Raises:
        NotFound: there is no such folder.
        InvalidTree: a path that may not be stored, a link to a folder, or too many files.
    """
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}", hint="Give the folder whose files are to be released.")
    found: dict[str, Path] = {}
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in _PASSED_OVER)
        for name in names:
            if Path(parent, name).is_symlink():
                raise InvalidTree(f"{Path(parent, name)} links to a folder", hint="Put the folder itself there.")
        for name in sorted(files):
            path = Path(parent, name)
            relative = path.relative_to(folder).as_posix()
            check_path(relative)
            if not path.is_file():
                raise InvalidTree(f"{path} is not a plain file", hint="Move it out of the folder.")
            found[relative] = path.resolve()
            if len(found) > MAX_FILES:
                raise InvalidTree(f"{folder} has more than {MAX_FILES} files", hint="Is it the right folder?")
    return {relative: _file(artifacts, path, relative) for relative, path in found.items()}


def _file(artifacts: ArtifactRepository, path: Path, relative: str) -> File:
    about = path.stat()
    executable = bool(about.st_mode & 0o100)
    if lfs.is_large(relative, about.st_size) and about.st_size:
        return artifacts.large.put(path, executable=executable)
    return File(path.read_bytes(), executable)


def lay_out(artifacts: ArtifactRepository, tree: Tree, folder: Path) -> None:
    """Write a tree into a new folder. Large files are shared with the repository, and read-only.

    Raises:
        FileExistsError: the folder is there.
    """
    check_paths(tree)
    folder.mkdir(parents=True)
    for relative, file in tree.items():
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(file, LargeFile):
            lfs.share(artifacts.large.path(file.sha256), target)
        else:
            target.write_bytes(file.data)
            target.chmod(0o755 if file.executable else 0o644)
