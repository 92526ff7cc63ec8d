"""Room that is kept for a full disk: without any, SQLite cannot even delete.

What was stored last is in the log (`-wal`, 16 MB and more), and a full disk has no room to write it to where it belongs, so the log can
neither begin anew nor grow. A file of no use, as large as two logs, is given up then: the log is written out, begins anew, and takes
the deletions, which free pages inside the database for all that follows.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import sqlalchemy as sa

SIZE = 32 * 1024 * 1024
"""Two logs of 4,000 pages: what is stored meanwhile takes some of it."""
ROOM = 8 * SIZE
"""Nothing is set aside on a disk with less room than this."""


class Reserve:
    """The file, beside a SQLite database. PostgreSQL has none: it keeps room for its own log."""

    def __init__(self, engine: sa.Engine, *, room: int = ROOM) -> None:
        name = engine.url.database
        self._file = Path(f"{name}.reserve") if engine.dialect.name == "sqlite" and name else None
        self._room = room

    def hold(self) -> None:
        """Set it aside, where it is not yet and there is room for it."""
        if self._file is None or self._file.exists() or shutil.disk_usage(self._file.parent).free < self._room:
            return
        file = os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.posix_fallocate(file, 0, SIZE)
        finally:
            os.close(file)

    def give_up(self) -> bool:
        """Give the room back to the disk; whether there was any."""
        if self._file is None or not self._file.exists():
            return False
        self._file.unlink(missing_ok=True)
        return True
