"""Demand, targets of schedules and their comparisons, and retractions with their author and replacement."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Which variants a study has seen is asked with every answer: one look into this index each.
    op.create_index(op.f("ix_trials_study_id_kernel_variant_id"), "trials", ["study_id", "kernel_variant_id"])
    op.add_column("studies", sa.Column("space_by_source", postgresql.JSONB(), nullable=True))
    op.add_column("best_configurations", sa.Column("retracted_by", sa.String(), nullable=True))
    op.add_column("best_configurations", sa.Column("stands_in_for_id", sa.Integer(), nullable=True))
    op.create_foreign_key(
        op.f("fk_best_configurations_stands_in_for_id_best_configurations"),
        "best_configurations",
        "best_configurations",
        ["stands_in_for_id"],
        ["id"],
    )
    _create_demand()
    target = sa.Enum(
        "problems",
        "stale",
        "improvable",
        "demand",
        name="target",
        native_enum=False,
        create_constraint=False,
        length=32,
    )
    op.add_column("schedules", sa.Column("target", target, server_default="problems", nullable=False))
    op.create_check_constraint(
        op.f("ck_schedules_target"), "schedules", "target IN ('problems', 'stale', 'improvable', 'demand')"
    )
    op.add_column("schedules", sa.Column("top", sa.Integer(), nullable=True))
    op.add_column("schedules", sa.Column("kernel", sa.String(), nullable=True))
    op.create_check_constraint(
        op.f("ck_schedules_top_where_it_looks"), "schedules", "(target = 'problems') = (top IS NULL)"
    )
    _create_comparisons()


def downgrade() -> None:
    op.drop_table("comparisons")
    # What they would tune is found when they fire: without that, they have nothing to do.
    op.execute("DELETE FROM schedules WHERE target <> 'problems'")
    op.drop_constraint(op.f("ck_schedules_top_where_it_looks"), "schedules", type_="check")
    op.drop_constraint(op.f("ck_schedules_target"), "schedules", type_="check")
    for column in ("kernel", "top", "target"):
        op.drop_column("schedules", column)
    op.drop_table("demand")
    op.drop_constraint(
        op.f("fk_best_configurations_stands_in_for_id_best_configurations"), "best_configurations", type_="foreignkey"
    )
    op.drop_column("best_configurations", "stands_in_for_id")
    op.drop_column("best_configurations", "retracted_by")
    op.drop_column("studies", "space_by_source")
    op.drop_index(op.f("ix_trials_study_id_kernel_variant_id"), "trials")


def _create_demand() -> None:
    op.create_table(
        "demand",
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), nullable=False),
        sa.Column("problem_hash", sa.String(), nullable=False),
        sa.Column("kernel", sa.String(), nullable=False),
        sa.Column("shape", postgresql.JSONB(), nullable=False),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("options", postgresql.JSONB(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first_asked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_asked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("count > 0", name=op.f("ck_demand_was_asked_for")),
        sa.ForeignKeyConstraint(
            ["device_model_id"], ["device_models.id"], name=op.f("fk_demand_device_model_id_device_models")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_demand")),
        sa.UniqueConstraint("device_model_id", "problem_hash", name=op.f("uq_demand_device_model_id_problem_hash")),
    )
    op.create_index(op.f("ix_demand_count_id"), "demand", ["count", "id"])
    op.create_index(
        op.f("ix_demand_device_model_id_kernel_last_asked_at"), "demand", ["device_model_id", "kernel", "last_asked_at"]
    )


def _create_comparisons() -> None:
    op.create_table(
        "comparisons",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("schedule_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("before_id", sa.Integer(), nullable=True),
        sa.Column("after_id", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.String(), nullable=True),
        sa.Column("ratio", sa.Double(), nullable=True),
        sa.Column("threshold", sa.Double(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("compared_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "verdict IN ('better', 'same', 'worse', 'missing')", name=op.f("ck_comparisons_verdict_is_a_word")
        ),
        sa.CheckConstraint(
            "(verdict IS NULL) = (compared_at IS NULL)", name=op.f("ck_comparisons_verdict_when_compared")
        ),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_comparisons_schedule_id_schedules"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["tuning_jobs.id"], name=op.f("fk_comparisons_job_id_tuning_jobs")),
        sa.ForeignKeyConstraint(
            ["before_id"], ["best_configurations.id"], name=op.f("fk_comparisons_before_id_best_configurations")
        ),
        sa.ForeignKeyConstraint(
            ["after_id"], ["best_configurations.id"], name=op.f("fk_comparisons_after_id_best_configurations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comparisons")),
        sa.UniqueConstraint("job_id", name=op.f("uq_comparisons_job_id")),
    )
    op.create_index(op.f("ix_comparisons_schedule_id_id"), "comparisons", ["schedule_id", "id"])
    op.create_index("ix_comparisons_waiting", "comparisons", ["id"], postgresql_where=sa.text("verdict IS NULL"))
