"""The tables of experience.

``blobs`` holds bytes once each, by digest. ``nodes`` is the turn tree: a message below the message before it, so that a session of n
turns costs O(n) although the agent resends everything with every request. ``records`` point at a prompt leaf and an answer.
"""

from __future__ import annotations

import sqlalchemy as sa

from reef.experience.database import metadata

blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),  # zstd; a raw JSON message or envelope inside
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("id", sa.LargeBinary, primary_key=True),  # BLAKE2b(parent id ‖ body digest): exact, so what was sent is given back
    sa.Column("parent", sa.LargeBinary),
    sa.Column("canonical", sa.LargeBinary, nullable=False),  # the same over canonical messages: equal for turns that mean the same
    sa.Column("depth", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

records = sa.Table(
    "records",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),  # the order of the log
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("scenario", sa.Text, nullable=False),
    sa.Column("session", sa.Text),
    sa.Column("release", sa.Integer),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("dialect", sa.Text, nullable=False),
    sa.Column("upstream", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("end", sa.Text, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("streamed", sa.Boolean, nullable=False),
    sa.Column("prompt", sa.LargeBinary),  # node of the last message sent
    sa.Column("answer", sa.LargeBinary),  # node of the message answered, a child of `prompt`
    sa.Column("request_envelope", sa.LargeBinary, nullable=False),  # blob: the request without its messages
    sa.Column("response_envelope", sa.LargeBinary),  # zstd: the response without the first choice's message; no two are equal
    sa.Column("prompt_tokens", sa.Integer),
    sa.Column("completion_tokens", sa.Integer),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("first_byte_ms", sa.Float),
    sa.Column("duration_ms", sa.Float, nullable=False),
    sa.Column("error", sa.Text, nullable=False, default=""),
    sa.Index("records_by_session", "scenario", "session", "seq"),
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
"""A report is consumed once by each recipe, in the transaction that settles the candidate it led to."""
