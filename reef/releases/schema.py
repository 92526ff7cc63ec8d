"""The tables of releases.

The database itself refuses to change or delete a release, a verdict, a trial or a look at the sealed tasks, and to move a head otherwise
than to the next step.
"""

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
    sa.Column("others", sa.JSON, nullable=False),  # the components beside the harness: content id and commit by name
    sa.UniqueConstraint("scenario", "previous_hash"),  # a chain has one end
)

heads = sa.Table(
    "heads",
    metadata,
    sa.Column("scenario", sa.Text, primary_key=True),
    sa.Column("step", sa.Integer, nullable=False),
    sa.ForeignKeyConstraint(["scenario", "step"], ["releases.scenario", "releases.step"]),
)
announce(heads, sa.func.sum(heads.c.step))  # a head moves to the next step only

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
    sa.Column("companions", sa.JSON, nullable=False),  # other components that change with it, as above
    sa.Column("state_at", sa.Float, nullable=False),  # since when it is in its state: its grace period starts at its end
    sa.Column("judging_at", sa.Float),  # set once: from then on it has spent its share of the chain's error
    sa.Column("dropped_at", sa.Float),  # when `reef gc` let go of its bytes
    sa.Index("candidates_by_scenario", "scenario", "seq"),
    sa.Index("candidates_by_state", "state"),
)

rollouts = sa.Table(
    "rollouts",
    metadata,
    sa.Column("candidate", sa.Text, sa.ForeignKey("candidates.id"), primary_key=True),
    sa.Column("mode", sa.Text, nullable=False),  # canary or shadow
    sa.Column("terms", sa.JSON, nullable=False),  # what was planned: see `reef.releases.rollout`
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float),
    sa.Column("finding", sa.JSON),  # what came out of it
)
"""How a candidate that the gate promoted is tried on live or recorded traffic. Under way while it is in its state, canary or held, and
nothing was found."""
announce(rollouts, sa.func.count(rollouts.c.ended_at))

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
    sa.Column("smallest_effect", sa.Float),  # none where the budget could have seen nothing
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("cost", sa.Float, nullable=False),
    sa.Column("terms", sa.JSON, nullable=False),  # with the trials, all that the verdict is computed from
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
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("cached", sa.Boolean, nullable=False),
    sa.Column("setting", sa.Text, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("cost", sa.Float, nullable=False),
    sa.Column("grading_tokens", sa.BigInteger, nullable=False),  # those of them that the grader's model took
    sa.Column("grading_cost", sa.Float, nullable=False),
    sa.Index("trials_by_content", "content_id"),
)

replays = sa.Table(
    "replays",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("scenario", sa.Text, sa.ForeignKey("scenarios.name"), nullable=False),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("candidate", sa.Text, sa.ForeignKey("candidates.id")),  # none: the head
    sa.Column("asked_at", sa.Float, nullable=False),
    sa.Column("answered_at", sa.Float),
    sa.Column("finding", sa.JSON),
)
"""Sessions that somebody wants to be answered again, and what came of it."""

sealed_looks = sa.Table(
    "sealed_looks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("scenario", sa.Text, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("against", sa.Integer, nullable=False),
    sa.Column("pairs", sa.Integer),
    sa.Column("asked_at", sa.Float, nullable=False),
    sa.ForeignKeyConstraint(["scenario", "step"], ["releases.scenario", "releases.step"]),
    sa.ForeignKeyConstraint(["scenario", "against"], ["releases.scenario", "releases.step"]),
)

sealed_answers = sa.Table(
    "sealed_answers",
    metadata,
    sa.Column("look", sa.Text, sa.ForeignKey("sealed_looks.id"), primary_key=True),
    sa.Column("answered_at", sa.Float, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("verdict", sa.JSON),  # with its trials
)

staged = sa.Table(
    "staged",
    metadata,
    sa.Column("engine", sa.Text, primary_key=True),  # its URL
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("scenario", sa.Text, nullable=False),
    sa.Column("step", sa.Integer),  # none: a candidate's
    sa.Column("there", sa.Boolean, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
)
"""The weights that engines have or had: see `reef.releases.staging`."""
announce(staged, sa.func.sum(staged.c.there), sa.func.sum(staged.c.at))

pins = sa.Table(
    "pins",
    metadata,
    sa.Column("scenario", sa.Text, primary_key=True),
    sa.Column("client", sa.Text, primary_key=True),  # an installation's name for itself; empty for the whole scenario
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.ForeignKeyConstraint(["scenario", "step"], ["releases.scenario", "releases.step"]),
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
_REFUSE_REPLACE = """
CREATE TRIGGER {table}_refuse_replace BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {same})
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END
"""
"""SQLite's INSERT OR REPLACE deletes what is in its way without asking the triggers of DELETE."""
_ADVANCE = """
CREATE TRIGGER heads_advance BEFORE UPDATE ON heads WHEN NEW.step <> OLD.step + 1 OR NEW.scenario <> OLD.scenario
BEGIN SELECT RAISE(ABORT, 'heads move one step at a time'); END
"""
_REFUSE_FUNCTION = """
CREATE OR REPLACE FUNCTION reef_refuse() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN RAISE integrity_constraint_violation USING MESSAGE = TG_TABLE_NAME || '' is append-only''; END'
"""
_ADVANCE_FUNCTION = """
CREATE OR REPLACE FUNCTION reef_advance() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN
  IF NEW.step <> OLD.step + 1 OR NEW.scenario <> OLD.scenario THEN
    RAISE integrity_constraint_violation USING MESSAGE = ''heads move one step at a time'';
  END IF;
  RETURN NEW;
END'
"""
_ADVANCE_ROWS = "CREATE TRIGGER heads_advance BEFORE UPDATE ON heads FOR EACH ROW EXECUTE FUNCTION reef_advance()"


def _run(table: sa.Table, dialect: str, statement: str) -> None:
    sa.event.listen(table, "after_create", sa.DDL(statement).execute_if(dialect=dialect))


for _function in (_REFUSE_FUNCTION, _ADVANCE_FUNCTION):
    sa.event.listen(metadata, "before_create", sa.DDL(_function).execute_if(dialect="postgresql"))

for _table, _verbs in (
    (releases, ("UPDATE", "DELETE")),
    (verdicts, ("UPDATE", "DELETE")),
    (trials, ("UPDATE", "DELETE")),
    (sealed_looks, ("UPDATE", "DELETE")),
    (sealed_answers, ("UPDATE", "DELETE")),
    (heads, ("DELETE",)),
):
    for _verb in _verbs:
        for _dialect, _template in _REFUSE.items():
            _run(_table, _dialect, _template.format(table=_table.name, verb=_verb))
    _run(_table, "postgresql", _REFUSE["postgresql"].format(table=_table.name, verb="TRUNCATE"))
    _same = " AND ".join(f"{column.name} = NEW.{column.name}" for column in _table.primary_key)
    if _table is releases:
        _same += " OR scenario = NEW.scenario AND previous_hash = NEW.previous_hash"
    _run(_table, "sqlite", _REFUSE_REPLACE.format(table=_table.name, same=_same))
_run(heads, "sqlite", _ADVANCE)
_run(heads, "postgresql", _ADVANCE_ROWS)
