"""The tables of experience.

``records`` is the log. An agent sends its whole history with every request, so a record keeps only what it adds to an earlier record of its
session, its *base*, and how to copy the rest from there: a session of n turns costs O(n) bytes. ``blobs`` holds what is the same for
many records, by digest: the turns of the system, tools and parameters. A record whose content retention dropped keeps its row, slim:
see :mod:`reef.experience.tombstones`.
"""

from __future__ import annotations

import sqlalchemy as sa

from reef.experience.database import metadata

blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),  # zstd; JSON inside
    sa.Column("touched_at", sa.Float, nullable=False),  # when it was last made sure that it is there
    sa.Column("loose", sa.Boolean, nullable=False),  # a record that used it lost its content: perhaps none uses it now
    sa.Index("blobs_loose", "touched_at", sqlite_where=sa.text("loose"), postgresql_where=sa.text("loose")),
)

_FOUND = sa.text("opening IS NOT NULL")

records = sa.Table(
    "records",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),  # the order of the log
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("scenario", sa.Text, nullable=False),
    sa.Column("session", sa.Text),  # as the client named it, else found by structure
    sa.Column("opening", sa.LargeBinary),  # of a found session: what its first turns mean, to find it by
    sa.Column("release", sa.Integer),
    sa.Column("candidate", sa.Text),  # the one on canary that made it, instead of a release
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("dialect", sa.Text, nullable=False),
    sa.Column("upstream", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("end", sa.Text, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("streamed", sa.Boolean, nullable=False),
    sa.Column("base", sa.Text),  # the record whose turns are copied from
    sa.Column("depth", sa.Integer, nullable=False),  # records to read below this one, base after base
    sa.Column("turns", sa.Integer),  # of the prompt, without the system's; null where the request has none
    sa.Column("system", sa.LargeBinary),  # blob: the leading turns of the system
    sa.Column("request_envelope", sa.LargeBinary, nullable=False),  # blob: the request without its turns
    sa.Column("delta", sa.LargeBinary, nullable=False),  # zstd: see `reef.experience.delta`
    sa.Column("tokens", sa.LargeBinary),  # see `reef.experience.traces`
    sa.Column("prompt_tokens", sa.Integer),
    sa.Column("completion_tokens", sa.Integer),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("first_byte_ms", sa.Float),
    sa.Column("duration_ms", sa.Float, nullable=False),
    sa.Column("error", sa.Text, nullable=False, default=""),
    sa.Column("gone_at", sa.Float),  # when retention dropped the content
    sa.Column("content_digest", sa.LargeBinary),  # of what was dropped: see `reef.experience.tombstones`
    sa.Index("records_by_session", "scenario", "session", "seq"),
    sa.Index("records_by_opening", "opening", "seq", sqlite_where=_FOUND, postgresql_where=_FOUND),
)

reports = sa.Table(
    "reports",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("digest", sa.LargeBinary, nullable=False),  # of the content: the same id with another one is a conflict
    sa.Column("scenario", sa.Text, nullable=False),
    sa.Column("session", sa.Text),
    sa.Column("score", sa.Float),
    sa.Column("feedback", sa.JSON),
    sa.Column("metadata", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Index("reports_by_scenario", "scenario", "seq"),
)

report_references = sa.Table(
    "report_references",
    metadata,
    sa.Column("report", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("record", sa.Text, nullable=False, index=True),
    sqlite_with_rowid=False,
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("scenario", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("adapter", sa.Text, nullable=False),
    sa.Column("release", sa.Integer),
    sa.Column("started_at", sa.Float, nullable=False),
)

consumptions = sa.Table(
    "consumptions",
    metadata,
    sa.Column("report", sa.Text, primary_key=True),
    sa.Column("recipe", sa.Text, primary_key=True),
    sa.Column("scenario", sa.Text, nullable=False),
    sa.Column("candidate", sa.Text),  # what became of it; None where the recipe passed it over
    sa.Column("at", sa.Float, nullable=False),
)
"""A report is consumed once by each recipe, in the transaction that settles the candidate it led to. A recipe that needs no reports
consumes records: then a receipt stands for the report."""

retention = sa.Table(
    "retention",
    metadata,
    sa.Column("scenario", sa.Text, primary_key=True),
    sa.Column("counted_to", sa.Integer, nullable=False),  # up to which record the log is in the sums; the largest of all counts
    sa.Column("records", sa.Integer, nullable=False),  # with their content
    sa.Column("bytes", sa.BigInteger, nullable=False),  # what those hold, as it is stored; without what they share
    sa.Column("dropped", sa.Integer, nullable=False),  # records whose content is gone
    sa.Column("dropped_bytes", sa.BigInteger, nullable=False),
    sa.Column("dropped_unreported", sa.Integer, nullable=False),  # of those: nobody had said how they went
    sa.Column("dropped_waiting", sa.Integer, nullable=False),  # of those: reported on, and not learned from yet
)
"""What each scenario holds, by :mod:`reef.experience.usage`: an estimate, put right whenever retention looks at the scenario."""
