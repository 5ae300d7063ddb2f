"""Chores are done once for the whole fleet, and a job is found by its entry in the engine."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "chore_rounds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chore_rounds")),
    )
    op.execute("INSERT INTO chore_rounds VALUES (1, now())")
    op.create_index(op.f("ix_tuning_jobs_engine_id"), "tuning_jobs", ["engine_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_tuning_jobs_engine_id"), "tuning_jobs")
    op.drop_table("chore_rounds")
