"""Samples of trials can be deleted while their interval stays; the size of a worker's cache is recorded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

KEPT = "ix_tuning_jobs_samples_kept"


def upgrade() -> None:
    op.add_column("trials", sa.Column("ci_low_ms", sa.Double(), nullable=True))
    op.add_column("trials", sa.Column("ci_high_ms", sa.Double(), nullable=True))
    op.add_column("trials", sa.Column("samples_pruned_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("tuning_jobs", sa.Column("samples_pruned_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(KEPT, "tuning_jobs", ["finished_at"], postgresql_where=sa.text("samples_pruned_at IS NULL"))
    # Which trials are winners is asked for each batch of trials that loses its samples.
    op.create_index("ix_best_configurations_trial_id", "best_configurations", ["trial_id"])
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.add_column("devices", sa.Column("cache_files", sa.Integer(), nullable=True))
    op.add_column("devices", sa.Column("cache_bytes", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("devices", "cache_bytes")
    op.drop_column("devices", "cache_files")
    op.drop_index("ix_idempotency_keys_created_at", "idempotency_keys")
    op.drop_index("ix_best_configurations_trial_id", "best_configurations")
    op.drop_index(KEPT, "tuning_jobs")
    op.drop_column("tuning_jobs", "samples_pruned_at")
    op.drop_column("trials", "samples_pruned_at")
    op.drop_column("trials", "ci_high_ms")
    op.drop_column("trials", "ci_low_ms")
