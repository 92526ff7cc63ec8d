"""The tables of releases. The database itself refuses to change or delete a release, a verdict or a trial."""

from __future__ import annotations

import sqlalchemy as sa

from reef.experience.database import announce, metadata

scenarios = sa.Table(
    "scenarios",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("created_at", sa.Float, nullable=False),
)

releases = sa.Table(
    "releases",
    metadata,
    sa.Column("scenario", sa.Text, sa.ForeignKey("scenarios.name"), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("content_id", sa.Text, nullable=False),
    sa.Column("commit", sa.Text, nullable=False),
    sa.Column("operation", sa.Text, nullable=False),
    sa.Column("component", sa.Text, nullable=False),
    sa.Column("recipe", sa.Text, nullable=False),
    sa.Column("candidate", sa.Text),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("previous_hash", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.UniqueConstraint("scenario", "previous_hash"),  # a chain has one end
)

heads = sa.Table(
    "heads",
    metadata,
    sa.Column("scenario", sa.Text, primary_key=True),
    sa.Column("step", sa.Integer, nullable=False),
    sa.ForeignKeyConstraint(["scenario", "step"], ["releases.scenario", "releases.step"]),
)
announce(heads)

candidates = sa.Table(
    "candidates",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("scenario", sa.Text, sa.ForeignKey("scenarios.name"), nullable=False),
    sa.Column("component", sa.Text, nullable=False),
    sa.Column("recipe", sa.Text, nullable=False),
    sa.Column("base_step", sa.Integer, nullable=False),
    sa.Column("branch", sa.Text, nullable=False),
    sa.Column("commit", sa.Text, nullable=False),
    sa.Column("content_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("reports", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("judging_at", sa.Float),  # set once: from then on it has spent its share of the chain's error
    sa.Index("candidates_by_scenario", "scenario", "seq"),
    sa.Index("candidates_by_state", "state"),
)

verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("candidate", sa.Text, sa.ForeignKey("candidates.id"), primary_key=True),
    sa.Column("decision", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("effect", sa.Float, nullable=False),
    sa.Column("low", sa.Float, nullable=False),
    sa.Column("high", sa.Float, nullable=False),
    sa.Column("pairs", sa.Integer, nullable=False),
    sa.Column("wins", sa.Integer, nullable=False),
    sa.Column("losses", sa.Integer, nullable=False),
    sa.Column("evidence", sa.Float, nullable=False),
    sa.Column("alpha", sa.Float, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
)

trials = sa.Table(
    "trials",
    metadata,
    sa.Column("candidate", sa.Text, sa.ForeignKey("verdicts.candidate"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("side", sa.Text, nullable=False),
    sa.Column("pair", sa.Integer, nullable=False),
    sa.Column("content_id", sa.Text, nullable=False),
    sa.Column("end", sa.Text, nullable=False),
    sa.Column("score", sa.Float, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("duration_s", sa.Float, nullable=False),
)

recipe_state = sa.Table(
    "recipe_state",
    metadata,
    sa.Column("scenario", sa.Text, primary_key=True),
    sa.Column("recipe", sa.Text, primary_key=True),
    sa.Column("state", sa.JSON, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
)

_REFUSE = {
    "sqlite": "CREATE TRIGGER {table}_refuse_{verb} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END",
    "postgresql": "CREATE TRIGGER {table}_refuse_{verb} BEFORE {verb} ON {table} FOR EACH STATEMENT EXECUTE FUNCTION reef_refuse()",
}
"""How each database is told to refuse."""
_REFUSE_FUNCTION = """
CREATE OR REPLACE FUNCTION reef_refuse() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN RAISE integrity_constraint_violation USING MESSAGE = TG_TABLE_NAME || '' is append-only''; END'
"""
sa.event.listen(metadata, "before_create", sa.DDL(_REFUSE_FUNCTION).execute_if(dialect="postgresql"))

for _table in (releases, verdicts, trials):
    for _dialect, _template in _REFUSE.items():
        for _verb in ("UPDATE", "DELETE"):
            _ddl = sa.DDL(_template.format(table=_table.name, verb=_verb))
            sa.event.listen(_table, "after_create", _ddl.execute_if(dialect=_dialect))
