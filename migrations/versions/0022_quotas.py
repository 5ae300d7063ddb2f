"""The turns of jobs in their queues, by which the keys are served alternately."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

TURNS = 200_000_000

# Only entries of ours, where the engine has its tables already: they are made after ours.
ENTRIES = """
DO $$ BEGIN
    IF to_regclass('procrastinate_jobs') IS NOT NULL THEN
        UPDATE procrastinate_jobs SET priority = {priority} WHERE task_name = 'tune' AND status IN ('todo', 'doing');
    END IF;
END $$
"""


def upgrade() -> None:
    op.add_column("tuning_jobs", sa.Column("turn", sa.Integer(), server_default="0", nullable=False))
    op.execute(ENTRIES.format(priority=f"priority * {TURNS}"))
