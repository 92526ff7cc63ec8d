"""Git objects made in memory and handed to git as one pack.

One ``git unpack-objects`` per commit stores every blob, tree and the commit, whatever their number, skips what is there already and
makes them durable with one flush (``core.fsyncMethod=batch``). No work tree and no index are involved, so no filter, hook, attribute
or end-of-line setting can change a byte.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reef.types import File, Tree

_KINDS = {"commit": 1, "tree": 2, "blob": 3}
AUTHOR = "Reef <reef@localhost>"


@dataclass(slots=True)
class ObjectSet:
    """Objects to be written, each once, by id."""

    objects: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def add(self, kind: str, data: bytes) -> str:
        """Add an object and return its id."""
        identifier = hashlib.sha1(b"%s %d\0%s" % (kind.encode(), len(data), data), usedforsecurity=False).hexdigest()
        self.objects[identifier] = (kind, data)
        return identifier

    def add_tree(self, tree: Tree) -> str:
        """Add all files and folders of a tree, its paths already checked; return the id of its root."""
        root: dict[str, object] = {}
        for path, file in tree.items():
            *folders, name = path.split("/")
            folder = root
            for part in folders:
                folder = folder.setdefault(part, {})  # type: ignore[assignment]
            folder[name] = file
        return self._add_folder(root)

    def _add_folder(self, folder: Mapping[str, object]) -> str:
        entries = []
        for name, child in folder.items():
            key = name.encode()
            if isinstance(child, File):
                entries.append((key, child.mode, key, self.add("blob", child.data)))
            else:
                assert isinstance(child, dict)
                entries.append((key + b"/", "40000", key, self._add_folder(child)))  # git sorts folders as if they ended in a slash
        entries.sort()
        return self.add("tree", b"".join(b"%s %s\0%s" % (mode.encode(), key, bytes.fromhex(child)) for _, mode, key, child in entries))

    def add_commit(self, *, tree: str, parents: Sequence[str], message: str, trailers: Mapping[str, object], at: float) -> str:
        """Add a commit by Reef and return its id."""
        who = f"{AUTHOR} {int(at)} +0000"
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {who}", f"committer {who}", ""]
        text = "\n".join(lines) + "\n" + _message(message, trailers)
        return self.add("commit", text.encode())

    def pack(self) -> bytes:
        """All objects as a git pack, version 2."""
        parts = [b"PACK" + (2).to_bytes(4, "big") + len(self.objects).to_bytes(4, "big")]
        for kind, data in self.objects.values():
            parts.append(_pack_header(_KINDS[kind], len(data)))
            parts.append(zlib.compress(data, 1))
        body = b"".join(parts)
        return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _pack_header(kind: int, size: int) -> bytes:
    """Type and size in git's variable-length form: four bits of size in the first byte, seven in each after it."""
    byte = (kind << 4) | (size & 0xF)
    size >>= 4
    header = bytearray()
    while size:
        header.append(byte | 0x80)
        byte = size & 0x7F
        size >>= 7
    header.append(byte)
    return bytes(header)


def _message(message: str, trailers: Mapping[str, object]) -> str:
    """The message, cleaned, and the trailers, a line for each value, as its last paragraph: nothing before that can pass for one."""
    clean = "\n".join(line.rstrip() for line in _printable(message).strip().splitlines()) or "(no message)"
    lines = [(key, item) for key, value in trailers.items() for item in (value if isinstance(value, tuple | list) else (value,))]
    block = "\n".join(f"{key}: {' '.join(_printable(str(item)).split())}" for key, item in lines)
    return f"{clean}\n\n{block}\n" if block else f"{clean}\n"


def _printable(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode()
