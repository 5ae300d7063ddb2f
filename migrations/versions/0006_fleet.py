"""Webhooks and their deliveries; a device names its worker and its GPU and may drain; priorities from 0 to 9."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

PRIORITISED = ("tuning_jobs", "schedules")


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("states", sa.ARRAY(sa.String()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
        sa.UniqueConstraint("name", name=op.f("uq_webhooks_name")),
    )
    _create_deliveries()
    op.add_column("devices", sa.Column("physical_uuid", sa.String(), nullable=True))
    op.add_column("devices", sa.Column("worker", sa.String(), nullable=True))
    op.add_column("devices", sa.Column("worker_started_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("devices", sa.Column("drain_requested_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("tuning_jobs", sa.Column("devices_lost", sa.Integer(), server_default="0", nullable=False))
    # 0 was the middle of -100 to 100, 5 is the middle now. The engine's entries keep their numbers, and their order.
    for table in PRIORITISED:
        op.execute(f"UPDATE {table} SET priority = least(9, greatest(0, 5 + priority))")  # noqa: S608 - our own names
        op.alter_column(table, "priority", server_default="5")
        op.create_check_constraint(op.f(f"ck_{table}_priority_is_a_digit"), table, "priority BETWEEN 0 AND 9")


def downgrade() -> None:
    for table in PRIORITISED:
        op.drop_constraint(op.f(f"ck_{table}_priority_is_a_digit"), table, type_="check")
        op.execute(f"UPDATE {table} SET priority = priority - 5")  # noqa: S608 - our own names
        op.alter_column(table, "priority", server_default="0")
    op.drop_column("tuning_jobs", "devices_lost")
    for column in ("drain_requested_at", "worker_started_at", "worker", "physical_uuid"):
        op.drop_column("devices", column)
    for table in ("webhook_deliveries", "webhooks"):
        op.drop_table(table)


def _create_deliveries() -> None:
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("webhook_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "waiting", "delivered", "failed", name="state", native_enum=False, length=32, create_constraint=True
            ),
            server_default="waiting",
            nullable=False,
        ),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_webhook_deliveries_webhook_id_webhooks"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["tuning_jobs.id"], name=op.f("fk_webhook_deliveries_job_id_tuning_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("webhook_id", "job_id", name=op.f("uq_webhook_deliveries_webhook_id_job_id")),
    )
    op.create_index(op.f("ix_webhook_deliveries_job_id"), "webhook_deliveries", ["job_id"])
    op.create_index(op.f("ix_webhook_deliveries_created_at"), "webhook_deliveries", ["created_at"])
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["webhook_id", "next_at"],
        postgresql_where=sa.text("state = 'waiting'"),
    )
