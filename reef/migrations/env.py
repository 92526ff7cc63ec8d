"""What Alembic runs around the versions; :mod:`reef.migrations` hands it the connection."""

from __future__ import annotations

from typing import Any

from alembic import context

from reef.experience.database import metadata

_attributes = context.config.attributes
_options: dict[str, Any] = {"target_metadata": metadata, "render_as_batch": True, "transactional_ddl": True}

if context.is_offline_mode():
    context.configure(dialect_name=_attributes["dialect"], literal_binds=True, **_options)
    with context.begin_transaction():
        context.run_migrations()
else:
    context.configure(connection=_attributes["connection"], **_options)
    context.run_migrations()  # in the transaction of the connection
