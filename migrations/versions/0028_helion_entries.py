"""Entries of Helion's remote cache."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "helion_entries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("data", sa.String(), nullable=False),
        sa.Column("stored_by", sa.String(), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_helion_entries")),
        sa.UniqueConstraint("key", name=op.f("uq_helion_entries_key")),
    )
    op.create_index(op.f("ix_helion_entries_stored_by_id"), "helion_entries", ["stored_by", "id"])


def downgrade() -> None:
    op.drop_table("helion_entries")
