"""All tables, indexes and triggers.

While this is the only revision, it makes what the schema says. The next one must first write down here what it said until then.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from reef.experience.database import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    context = op.get_context()
    if not context.as_sql:
        metadata.create_all(op.get_bind())
        return

    def write_down(statement: Any, *_: Any, **__: Any) -> None:
        op.execute(statement)

    assert context.dialect is not None
    metadata.create_all(sa.create_mock_engine(f"{context.dialect.name}://", write_down), checkfirst=False)


def downgrade() -> None:
    raise NotImplementedError("there is nothing below the first revision")
