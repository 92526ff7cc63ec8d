"""The databases that tests run on: SQLite in the test's folder, and a PostgreSQL cluster that lives as long as the test session."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

NAMES = ("sqlite", "postgresql")
URL_FILE = "database-url"
"""In a test's folder: where its database is, for the test's own subprocesses too."""


def url_of(folder: Path) -> str:
    """The database of a test's folder."""
    file = folder / URL_FILE
    return file.read_text() if file.exists() else f"sqlite:///{folder / 'reef.db'}"


def find_postgresql() -> Path | None:
    """The folder of PostgreSQL's programs; Debian does not put them on PATH."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


@contextlib.contextmanager
def cluster(programs: Path) -> Iterator[sa.URL]:
    """A private PostgreSQL on a unix socket. It refuses to run as root, so root lends it to the user Debian made for it."""
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    prefix = ["runuser", "-u", user, "--"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="reef-pg-"))
    if prefix:
        shutil.chown(folder, user)
    data = folder / "data"
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c max_connections=200 -c fsync=off -c synchronous_commit=off"

    def run(*command: str) -> None:
        subprocess.run([*prefix, *command], check=True, stdout=subprocess.DEVNULL, timeout=60, cwd=folder)

    run(str(programs / "initdb"), "-D", str(data), "--auth=trust", "--username=reef", "--encoding=UTF8", "--no-sync")
    run(str(programs / "pg_ctl"), "-D", str(data), "-l", str(folder / "log"), "-w", "-o", options, "start")
    try:
        yield sa.URL.create("postgresql+psycopg", username="reef", database="postgres", query={"host": str(folder)})
    finally:
        run(str(programs / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def fresh(server: sa.URL, name: str) -> Iterator[str]:
    """A database of its own on ``server``."""
    admin = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f'DROP DATABASE "{name}" WITH (FORCE)')
