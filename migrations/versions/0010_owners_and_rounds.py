"""Owners of idempotency keys and schedules, asked shelves, packing times, uncounted work, starts, rounds of chores."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

KEYS = "pk_idempotency_keys"
RATES = ("gflops", "gb_per_s")


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
    op.create_table(
        "asked_shelves",
        sa.Column("kernel", sa.String(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["device_model_id"], ["device_models.id"], name=op.f("fk_asked_shelves_device_model_id_device_models")
        ),
        sa.PrimaryKeyConstraint("kernel", "device_model_id", name=op.f("pk_asked_shelves")),
    )
    op.add_column("trials", sa.Column("pack_ms", sa.Double(), nullable=True))
    for rate in RATES:
        op.alter_column("best_configurations", rate, existing_type=sa.Double(), nullable=True)
    op.add_column("tuning_jobs", sa.Column("starts", JSONB(), nullable=True))
    op.create_table(
        "chore_rounds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chore_rounds")),
    )
    op.execute("INSERT INTO chore_rounds VALUES (1, now())")
    op.create_index(op.f("ix_tuning_jobs_engine_id"), "tuning_jobs", ["engine_id"])
