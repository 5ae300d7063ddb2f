"""Configurations that the caller of a job asked to try first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tuning_jobs", sa.Column("starts", JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("tuning_jobs", "starts")
