"""Schedules have an owner, the key that made them; an idempotency key belongs to its caller."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

KEYS = "pk_idempotency_keys"


def upgrade() -> None:
    op.add_column("schedules", sa.Column("key_id", sa.Uuid(), nullable=True))
    op.create_foreign_key(op.f("fk_schedules_key_id_api_keys"), "schedules", "api_keys", ["key_id"], ["id"])
    op.add_column("idempotency_keys", sa.Column("owner", sa.String(), server_default="", nullable=False))
    op.execute(
        "UPDATE idempotency_keys SET owner = api_keys.name FROM tuning_jobs JOIN api_keys"
        " ON api_keys.id = tuning_jobs.key_id WHERE tuning_jobs.id = idempotency_keys.job_id"
    )
    op.drop_constraint(KEYS, "idempotency_keys", type_="primary")
    op.create_primary_key(KEYS, "idempotency_keys", ["owner", "key"])


def downgrade() -> None:
    # Two callers may have used the same word: the older one keeps it.
    op.execute(
        "DELETE FROM idempotency_keys AS newer USING idempotency_keys AS older WHERE newer.key = older.key"
        " AND (newer.created_at, newer.owner) > (older.created_at, older.owner)"
    )
    op.drop_constraint(KEYS, "idempotency_keys", type_="primary")
    op.create_primary_key(KEYS, "idempotency_keys", ["key"])
    op.drop_column("idempotency_keys", "owner")
    op.drop_constraint(op.f("fk_schedules_key_id_api_keys"), "schedules", type_="foreignkey")
    op.drop_column("schedules", "key_id")
