"""Claims of times, beside those of wrong results."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("claims", sa.Column("seen_ms", JSONB(), nullable=True))


def downgrade() -> None:
    op.execute("DELETE FROM claims WHERE seen_ms IS NOT NULL")  # nobody had claimed that the configuration is wrong
    op.drop_column("claims", "seen_ms")
