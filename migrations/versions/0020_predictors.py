"""Fitted predictors are kept, so that neither a request nor a restart fits again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "predictors",
        sa.Column("records_hash", sa.String(), nullable=False),
        sa.Column("series", sa.String(), nullable=False),
        sa.Column("arrays", sa.LargeBinary(), nullable=False),
        sa.Column("fitted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("records_hash", name=op.f("pk_predictors")),
    )
    op.create_index("ix_predictors_series_fitted_at", "predictors", ["series", "fitted_at"])
    # Numbers of eight random-looking bytes: an attempt to compress them takes longer than it saves.
    op.execute("ALTER TABLE predictors ALTER COLUMN arrays SET STORAGE EXTERNAL")
