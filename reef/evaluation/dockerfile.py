"""Whether a Dockerfile only lays files down. A sandbox does that as well, and needs no container for it."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reef.artifacts.tree import check_path
from reef.errors import InvalidTree
from reef.evaluation import folders
from reef.types import File

PLAIN_IMAGES = frozenset({"ubuntu", "debian", "python", "bash", "busybox", "scratch"})
"""They bring no more than the sandbox shows: this machine's own programs, and Python."""
_MEANINGLESS = frozenset({"LABEL", "EXPOSE", "CMD", "MAINTAINER"})
"""Instructions that change nothing for an agent that is started by us."""
_SPECIAL = re.compile(r"[*?\[\]$]|://")


class NeedsContainer(Exception):
    """The message says for what."""


@dataclass
class Plain:
    """What a Dockerfile lays down."""

    workdir: str = "/"
    files: dict[str, File] = field(default_factory=dict)
    """By their absolute path."""

    def workspace(self) -> dict[str, File]:
        """The files below the last working folder.

        Raises:
            NeedsContainer: there are others.
        """
        found: dict[str, File] = {}
        for path, file in self.files.items():
            if self.workdir == "/" or not path.startswith(self.workdir + "/"):
                raise NeedsContainer(f"a file outside the working folder: {path}")
            found[path.removeprefix(self.workdir + "/")] = file
        return found


def read(context: Path) -> Plain:
    """What the Dockerfile of a build context lays down.

    Raises:
        NeedsContainer: it does more than that.
        OSError: it cannot be read.
    """
    if (context / ".dockerignore").exists():
        raise NeedsContainer("a .dockerignore")
    plain = Plain()
    images = 0
    for name, rest in _instructions((context / "Dockerfile").read_text(encoding="utf-8", errors="replace")):
        if name == "FROM":
            images += 1
            _check_image(rest, images)
        elif name == "WORKDIR":
            plain.workdir = posixpath.normpath(posixpath.join(plain.workdir, _plain_word(name, rest)))
        elif name in ("COPY", "ADD"):
            _copy(plain, context, name, rest)
        elif name not in _MEANINGLESS:
            raise NeedsContainer(f"{name} in its Dockerfile")
    if not images or plain.workdir == "/":
        raise NeedsContainer("a working folder that its image decides")
    return plain


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name:
            yield name.upper(), rest.strip()


def _check_image(rest: str, images: int) -> None:
    words = rest.split()
    if images > 1 or len(words) != 1 or _SPECIAL.search(rest):
        raise NeedsContainer("a build in stages")
    name = words[0].partition("@")[0].partition(":")[0].removeprefix("docker.io/").removeprefix("library/")
    if name not in PLAIN_IMAGES:
        raise NeedsContainer(f"the image {words[0]}")


def _plain_word(name: str, rest: str) -> str:
    words = shlex.split(rest)
    if len(words) != 1 or _SPECIAL.search(rest):
        raise NeedsContainer(f"{name} {rest}")
    return words[0]


def _copy(plain: Plain, context: Path, name: str, rest: str) -> None:
    try:
        words = [] if rest.startswith(("[", "--", "<<")) or _SPECIAL.search(rest) else shlex.split(rest)
    except ValueError:
        words = []
    if len(words) < 2 or (name == "ADD" and any(re.search(r"\.(tar|tgz|tbz2?|txz)\b", word) for word in words)):
        raise NeedsContainer(f"{name} {rest}")
    *sources, place = words
    target = posixpath.normpath(posixpath.join(plain.workdir, place))
    into = len(sources) > 1 or place.endswith("/") or place in (".", "..") or target == plain.workdir
    for source in sources:
        relative = posixpath.normpath(source.lstrip("/") or ".")
        try:
            found = _source(context, relative)
        except (OSError, InvalidTree) as error:
            raise NeedsContainer(f"{name} {source}: {folders.problem(error)}") from None
        if isinstance(found, File):
            plain.files[posixpath.join(target, posixpath.basename(relative)) if into else target] = found
        else:
            plain.files.update({posixpath.join(target, path): file for path, file in found.items()})


def _source(context: Path, relative: str) -> File | Mapping[str, File]:
    if relative != ".":
        check_path(relative)
    path = context / relative
    return folders.read(path) if path.is_dir() else folders.file(path)
