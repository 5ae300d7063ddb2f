"""Schedules, their problems and their fires; jobs name the due time that they were made for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("body_hash", sa.String(), nullable=False),
        sa.Column("cron", sa.String(), nullable=False),
        sa.Column("time_zone", sa.String(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=True),
        sa.Column("budget_trials", sa.Integer(), nullable=True),
        sa.Column("budget_seconds", sa.Double(), nullable=True),
        sa.Column("budget_target_ms", sa.Double(), nullable=True),
        sa.Column("variants", sa.ARRAY(sa.String()), nullable=True),
        sa.Column("compiler", sa.String(), nullable=True),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "overlap",
            sa.Enum("skip", "queue", name="overlap", native_enum=False, create_constraint=True, length=32),
            server_default="skip",
            nullable=False,
        ),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_fire_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "budget_trials > 0 OR budget_seconds > 0 OR budget_target_ms > 0", name=op.f("ck_schedules_has_a_budget")
        ),
        sa.CheckConstraint("enabled = (next_at IS NOT NULL)", name=op.f("ck_schedules_due_when_enabled")),
        sa.ForeignKeyConstraint(
            ["device_model_id"], ["device_models.id"], name=op.f("fk_schedules_device_model_id_device_models")
        ),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_schedules_device_id_devices")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
        sa.UniqueConstraint("name", name=op.f("uq_schedules_name")),
    )
    op.create_index(op.f("ix_schedules_next_at"), "schedules", ["next_at"])
    op.create_table(
        "schedule_problems",
        sa.Column("schedule_id", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["schedule_id"],
            ["schedules.id"],
            name=op.f("fk_schedule_problems_schedule_id_schedules"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name=op.f("fk_schedule_problems_problem_id_problems")),
        sa.PrimaryKeyConstraint("schedule_id", "place", name=op.f("pk_schedule_problems")),
        sa.UniqueConstraint("schedule_id", "problem_id", name=op.f("uq_schedule_problems_schedule_id_problem_id")),
    )
    op.create_table(
        "schedule_fires",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("schedule_id", sa.Integer(), nullable=False),
        sa.Column("fire_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("manual", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "outcome",
            sa.Enum("fired", "skipped", name="outcome", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_fires_schedule_id_schedules"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule_fires")),
        sa.UniqueConstraint("schedule_id", "fire_at", name=op.f("uq_schedule_fires_schedule_id_fire_at")),
    )
    op.create_index(op.f("ix_schedule_fires_schedule_id_id"), "schedule_fires", ["schedule_id", "id"])
    op.create_index(op.f("ix_schedule_fires_created_at"), "schedule_fires", ["created_at"])
    op.add_column("tuning_jobs", sa.Column("schedule_id", sa.Integer(), nullable=True))
    op.add_column("tuning_jobs", sa.Column("fire_at", sa.DateTime(timezone=True), nullable=True))
    op.create_foreign_key(
        op.f("fk_tuning_jobs_schedule_id_schedules"),
        "tuning_jobs",
        "schedules",
        ["schedule_id"],
        ["id"],
        ondelete="SET NULL",
    )
    op.create_index(
        "uq_tuning_jobs_schedule_fire",
        "tuning_jobs",
        ["schedule_id", "fire_at", "problem_id"],
        unique=True,
        postgresql_where=sa.text("schedule_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("uq_tuning_jobs_schedule_fire", "tuning_jobs")
    op.drop_constraint(op.f("fk_tuning_jobs_schedule_id_schedules"), "tuning_jobs", type_="foreignkey")
    op.drop_column("tuning_jobs", "fire_at")
    op.drop_column("tuning_jobs", "schedule_id")
    for table in ("schedule_fires", "schedule_problems", "schedules"):
        op.drop_table(table)
