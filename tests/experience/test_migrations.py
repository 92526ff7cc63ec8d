"""Alembic's history and the schema make the same tables; a database of another revision is refused and stays as it is."""

from __future__ import annotations

import io
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from reef import migrations
from reef.errors import ConfigError
from reef.experience import database, revisions
from tests.cli.test_cli import reef
from tests.support import databases

SECOND = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade():
    with op.batch_alter_table("sessions") as table:
        table.add_column(sa.Column("shape", sa.Text, nullable=False, server_default="round"))
"""
BROKEN = SECOND + '    op.execute("DELETE FROM nowhere")\n'


def shape_of(engine: sa.Engine) -> dict[str, Any]:
    """Everything the database says of what it holds: tables with their columns, indexes, triggers, functions."""
    with engine.connect() as tx:
        if engine.dialect.name == "sqlite":
            return {
                row.name: " ".join(row.sql.split()) for row in tx.execute(sa.text("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL"))
            }
        queries = {
            "columns": "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
            " WHERE table_schema = 'public' ORDER BY table_name, ordinal_position",
            "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname",
            "constraints": "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE connamespace = 'public'::regnamespace ORDER BY conname",
            "triggers": "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgname, tgrelid",
            "functions": "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY proname",
        }
        return {what: [tuple(row) for row in tx.execute(sa.text(query))] for what, query in queries.items()}


def another(database_url: str, folder: Path) -> sa.Engine:
    """A second empty database of the same kind."""
    url = sa.make_url(database_url)
    if url.get_backend_name() == "sqlite":
        return database.connect(f"sqlite:///{folder / 'another.db'}")
    name = f"{url.database}-2"
    admin = sa.create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
    return database.connect(url.set(database=name).render_as_string(hide_password=False))


def with_second(folder: Path, text: str) -> Config:
    """The history, and one revision more."""
    more = folder / "versions"
    more.mkdir()
    (more / "0002_shape.py").write_text(text)
    config = migrations.configuration()
    own = Path(migrations.__file__).parent / "versions"
    config.set_main_option("version_locations", f"{own}:{more}")
    return config


def test_the_history_makes_the_tables_of_the_schema(database_url: str, tmp_path: Path) -> None:
    created, migrated = database.connect(database_url), another(database_url, tmp_path)
    database.create_tables(created)
    migrations.upgrade(migrated)
    with migrated.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, database.metadata) == []
        assert revisions.of(connection) == revisions.HEAD
    assert shape_of(migrated) == shape_of(created)
    assert any("refuse" in str(item) for item in shape_of(migrated).items())
    database.create_tables(migrated)
    migrated.dispose()


def test_the_revisions_named_are_those_there_are() -> None:
    history = ScriptDirectory.from_config(migrations.configuration())
    assert tuple(found.revision for found in history.walk_revisions())[::-1] == revisions.REVISIONS
    assert history.get_current_head() == revisions.HEAD


@pytest.mark.alone
def test_a_fresh_database_is_of_the_newest_revision_and_alembic_is_not_loaded(database_url: str) -> None:
    script = (
        "import sys; from reef.experience import database; from reef.gateway import state; from reef import supervisor;"
        f"engine = database.connect({database_url!r});"
        "[database.create_tables(engine) for _ in range(2)]; print('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout == "False\n"
    engine = database.connect(database_url)
    with engine.connect() as connection:
        assert revisions.of(connection) == revisions.HEAD
    assert not migrations.needed(engine)
    began = time.monotonic()
    database.create_tables(engine)
    assert time.monotonic() - began < 0.5


def test_many_that_start_at_once_create_the_tables_once(database_url: str) -> None:
    script = f"from reef.gateway import state; state.database.create_tables(state.database.connect({database_url!r}))"
    started = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) for _ in range(4)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in started] == [(b"", 0)] * 4
    with database.connect(database_url).connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(revisions.version)).scalar() == 1


def noted(engine: sa.Engine, revision: str | None) -> None:
    with database.write(engine).begin() as tx:
        tx.execute(revisions.version.delete())
        if revision is not None:
            tx.execute(revisions.version.insert().values(version_num=revision))


def test_a_database_of_another_revision_is_refused(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = database.connect(database_url)
    database.create_tables(engine)
    before = shape_of(engine)
    noted(engine, "9999")
    with pytest.raises(ConfigError, match="revision 9999, which this version of Reef does not know"):
        database.create_tables(engine)
    noted(engine, None)
    with pytest.raises(ConfigError, match="before Reef noted revisions"):
        database.create_tables(engine)
    noted(engine, "0001")
    monkeypatch.setattr(revisions, "REVISIONS", ("0001", "0002"))
    monkeypatch.setattr(revisions, "HEAD", "0002")
    with pytest.raises(ConfigError, match="revision 0001, and this version of Reef works with 0002") as refusal:
        database.create_tables(engine)
    assert "reef migrate" in refusal.value.hint
    assert migrations.needed(engine)
    assert shape_of(engine) == before


def test_a_second_revision_changes_tables_and_keeps_what_is_in_them(database_url: str, tmp_path: Path) -> None:
    engine = database.connect(database_url)
    database.create_tables(engine)
    with database.write(engine).begin() as tx:
        tx.execute(sa.text("INSERT INTO sessions (scenario, id, adapter, started_at) VALUES ('s', 'one', 'pi', 1.5)"))
    migrations.upgrade(engine, config=with_second(tmp_path, SECOND))
    with engine.connect() as connection:
        assert tuple(connection.execute(sa.text("SELECT id, started_at, shape FROM sessions")).one()) == ("one", 1.5, "round")
        assert revisions.of(connection) == "0002"
        if engine.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_a_migration_that_fails_changes_nothing(database_url: str, tmp_path: Path) -> None:
    engine = database.connect(database_url)
    database.create_tables(engine)
    before = shape_of(engine)
    with pytest.raises(migrations.MigrationError, match="nowhere"):
        migrations.upgrade(engine, config=with_second(tmp_path, BROKEN))
    assert shape_of(engine) == before
    with engine.connect() as connection:
        assert revisions.of(connection) == "0001"


def test_the_sql_of_a_migration_makes_the_same_tables(database_url: str, tmp_path: Path) -> None:
    written = io.StringIO()
    created, by_hand = database.connect(database_url), another(database_url, tmp_path)
    migrations.script(by_hand, written)
    if by_hand.dialect.name == "sqlite":
        with sqlite3.connect(str(by_hand.url.database)) as connection:
            connection.executescript(written.getvalue())
    else:
        with by_hand.connect() as tx:
            tx.connection.cursor().execute(written.getvalue())
            tx.connection.commit()
    database.create_tables(created)
    assert shape_of(by_hand) == shape_of(created)
    database.create_tables(by_hand)
    by_hand.dispose()


def test_serve_refuses_a_newer_database_and_migrate_says_that_all_is_well(tmp_path: Path) -> None:
    settings = ("--set", f"storage.dir={tmp_path / 'state'}")
    made = reef("migrate", *settings)
    assert (made.returncode, made.stdout) == (0, f"the database is of revision {revisions.HEAD} now\n"), made.stderr
    assert reef("migrate", *settings).stdout == f"the database is of revision {revisions.HEAD} already\n"
    noted(database.connect(f"sqlite:///{tmp_path / 'state' / 'reef.db'}"), "9999")
    for command in (("serve", "--upstream", "rehearsal", "--port", "0"), ("migrate",)):
        refused = reef(*command, *settings)
        assert (refused.returncode, "a newer one made it" in refused.stderr, "Traceback" in refused.stderr) == (1, True, False)


def test_sqlite_is_copied_before(tmp_path: Path) -> None:
    engine = database.connect(databases.url_of(tmp_path))
    assert migrations.copy(engine) is None
    database.create_tables(engine)
    copied = migrations.copy(engine)
    assert copied is not None
    assert copied.name.startswith("reef.db.0001-")
    assert shape_of(database.connect(f"sqlite:///{copied}")) == shape_of(engine)
    assert [item.name for item in tmp_path.iterdir() if "unfinished" in item.name] == []
