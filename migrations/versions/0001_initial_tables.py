"""Initial tables: devices, kernels, problems, studies, jobs, trials, best configurations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "device_models",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("slug", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("compute_capability", sa.String(), nullable=False),
        sa.Column("multiprocessors", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("details", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_models")),
        sa.UniqueConstraint("slug", name=op.f("uq_device_models_slug")),
    )
    op.create_table(
        "environments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("driver", sa.String(), nullable=False),
        sa.Column("toolkit", sa.String(), nullable=False),
        sa.Column("compiler", sa.String(), nullable=False),
        sa.Column("compiler_version", sa.String(), nullable=False),
        sa.Column("runtime", sa.String(), nullable=False),
        sa.Column("clocks", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environments")),
        sa.UniqueConstraint("hash", name=op.f("uq_environments_hash")),
    )
    op.create_table(
        "kernels",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("declaration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kernels")),
        sa.UniqueConstraint("name", name=op.f("uq_kernels_name")),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=True),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("ordinal", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "state",
            sa.Enum("ready", "lost", name="state", native_enum=False, create_constraint=True, length=32),
            server_default="ready",
            nullable=False,
        ),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_devices_environment_id_environments")
        ),
        sa.ForeignKeyConstraint(["model_id"], ["device_models.id"], name=op.f("fk_devices_model_id_device_models")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        sa.UniqueConstraint("uuid", name=op.f("uq_devices_uuid")),
    )
    op.create_table(
        "kernel_variants",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kernel_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("source_hash", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["kernel_id"], ["kernels.id"], name=op.f("fk_kernel_variants_kernel_id_kernels")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kernel_variants")),
        sa.UniqueConstraint(
            "kernel_id", "name", "source_hash", name=op.f("uq_kernel_variants_kernel_id_name_source_hash")
        ),
    )
    op.create_table(
        "problems",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("kernel_id", sa.Integer(), nullable=False),
        sa.Column("shape", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("options", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(["kernel_id"], ["kernels.id"], name=op.f("fk_problems_kernel_id_kernels")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_problems")),
        sa.UniqueConstraint("hash", name=op.f("uq_problems_hash")),
    )
    op.create_index(op.f("ix_problems_kernel_id_dtype"), "problems", ["kernel_id", "dtype"], unique=False)
    op.create_table(
        "studies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("next_number", sa.Integer(), server_default="0", nullable=False),
        sa.Column("space_hash", sa.String(), nullable=False),
        sa.Column("space_size", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["device_model_id"], ["device_models.id"], name=op.f("fk_studies_device_model_id_device_models")
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_studies_environment_id_environments")
        ),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name=op.f("fk_studies_problem_id_problems")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
        sa.UniqueConstraint(
            "problem_id",
            "device_model_id",
            "environment_id",
            name=op.f("uq_studies_problem_id_device_model_id_environment_id"),
        ),
    )
    op.create_index(op.f("ix_studies_device_model_id"), "studies", ["device_model_id"], unique=False)
    op.create_table(
        "tuning_jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), nullable=True),
        sa.Column("device_id", sa.Integer(), nullable=True),
        sa.Column("study_id", sa.Integer(), nullable=True),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("compiler", sa.String(), nullable=True),
        sa.Column("sampler", sa.String(), server_default="tpe", nullable=False),
        sa.Column("seed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("variants", postgresql.ARRAY(sa.String()), nullable=True),
        sa.Column("budget_trials", sa.Integer(), nullable=True),
        sa.Column("budget_seconds", sa.Double(), nullable=True),
        sa.Column("budget_target_ms", sa.Double(), nullable=True),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "queued",
                "running",
                "done",
                "failed",
                "cancelled",
                name="state",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            server_default="queued",
            nullable=False,
        ),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("crashes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("state_revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("engine_id", sa.BigInteger(), nullable=True),
        sa.Column("worker", sa.String(), nullable=True),
        sa.Column("coalesce_hash", sa.String(), nullable=True),
        sa.Column("trials_done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("phase", sa.String(), server_default="queued", nullable=False),
        sa.Column("elapsed_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("result", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "budget_trials > 0 OR budget_seconds > 0 OR budget_target_ms > 0", name=op.f("ck_tuning_jobs_has_a_budget")
        ),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_tuning_jobs_device_id_devices")),
        sa.ForeignKeyConstraint(
            ["device_model_id"], ["device_models.id"], name=op.f("fk_tuning_jobs_device_model_id_device_models")
        ),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name=op.f("fk_tuning_jobs_problem_id_problems")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_tuning_jobs_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tuning_jobs")),
    )
    op.create_index(
        "ix_tuning_jobs_open",
        "tuning_jobs",
        ["state"],
        unique=False,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_index(op.f("ix_tuning_jobs_state_created_at"), "tuning_jobs", ["state", "created_at"], unique=False)
    op.create_index(op.f("ix_tuning_jobs_study_id"), "tuning_jobs", ["study_id"], unique=False)
    op.create_index(
        "uq_tuning_jobs_open_coalesce_hash",
        "tuning_jobs",
        ["coalesce_hash"],
        unique=True,
        postgresql_where=sa.text("state IN ('queued', 'running') AND NOT cancel_requested"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("body_hash", sa.String(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["tuning_jobs.id"], name=op.f("fk_idempotency_keys_job_id_tuning_jobs")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_job_id"), "idempotency_keys", ["job_id"], unique=False)
    op.create_table(
        "trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("job_revision", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=True),
        sa.Column("kernel_variant_id", sa.Integer(), nullable=False),
        sa.Column("configuration", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("configuration_hash", sa.String(), nullable=False),
        sa.Column(
            "outcome",
            sa.Enum(
                "measured",
                "constraint_violated",
                "compile_failed",
                "launch_failed",
                "wrong_result",
                "timed_out",
                "device_lost",
                name="outcome",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("time_ms", sa.Double(), nullable=True),
        sa.Column("ranking_l2", sa.String(), nullable=False),
        sa.Column("warm_ms", sa.Double(), nullable=True),
        sa.Column("warm_spread_ms", sa.Double(), nullable=True),
        sa.Column("warm_samples_ms", postgresql.ARRAY(sa.Double()), nullable=True),
        sa.Column("cold_ms", sa.Double(), nullable=True),
        sa.Column("cold_spread_ms", sa.Double(), nullable=True),
        sa.Column("cold_samples_ms", postgresql.ARRAY(sa.Double()), nullable=True),
        sa.Column("gflops", sa.Double(), nullable=True),
        sa.Column("gb_per_s", sa.Double(), nullable=True),
        sa.Column("registers", sa.Integer(), nullable=True),
        sa.Column("shared_bytes", sa.Integer(), nullable=True),
        sa.Column("spill_bytes", sa.Integer(), nullable=True),
        sa.Column("occupancy", sa.Double(), nullable=True),
        sa.Column("bound_ratio", sa.Double(), nullable=True),
        sa.Column("compile_ms", sa.Double(), nullable=True),
        sa.Column("clock_mhz", sa.Integer(), nullable=True),
        sa.Column("temperature_c", sa.Integer(), nullable=True),
        sa.Column("log", sa.String(), server_default="", nullable=False),
        sa.Column("started_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("wall_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "(outcome = 'measured') = (time_ms IS NOT NULL)", name=op.f("ck_trials_time_only_when_measured")
        ),
        sa.CheckConstraint("time_ms > 0 AND time_ms < 'Infinity'", name=op.f("ck_trials_time_is_a_time")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_trials_device_id_devices")),
        sa.ForeignKeyConstraint(["job_id"], ["tuning_jobs.id"], name=op.f("fk_trials_job_id_tuning_jobs")),
        sa.ForeignKeyConstraint(
            ["kernel_variant_id"], ["kernel_variants.id"], name=op.f("fk_trials_kernel_variant_id_kernel_variants")
        ),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_trials_study_id_studies")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint("study_id", "configuration_hash", name=op.f("uq_trials_study_id_configuration_hash")),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_trials_study_id_number")),
    )
    op.create_index(op.f("ix_trials_job_id"), "trials", ["job_id"], unique=False)
    op.create_index(op.f("ix_trials_study_id_time_ms"), "trials", ["study_id", "time_ms"], unique=False)
    op.create_table(
        "best_configurations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("time_ms", sa.Double(), nullable=False),
        sa.Column("ci_low_ms", sa.Double(), nullable=False),
        sa.Column("ci_high_ms", sa.Double(), nullable=False),
        sa.Column("l2", sa.String(), nullable=False),
        sa.Column("gflops", sa.Double(), nullable=False),
        sa.Column("gb_per_s", sa.Double(), nullable=False),
        sa.Column("roof_ratio", sa.Double(), nullable=True),
        sa.Column("default_ms", sa.Double(), nullable=True),
        sa.Column("slowest_ms", sa.Double(), nullable=True),
        sa.Column("library_name", sa.String(), nullable=True),
        sa.Column("library_ms", sa.Double(), nullable=True),
        sa.Column("library_faster", sa.Boolean(), nullable=True),
        sa.Column("ties", sa.Integer(), server_default="0", nullable=False),
        sa.Column("bound_ratio", sa.Double(), nullable=True),
        sa.Column("verified_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("superseded_by_id", sa.Integer(), nullable=True),
        sa.Column("retracted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("retracted_reason", sa.String(), nullable=True),
        sa.CheckConstraint("time_ms > 0 AND time_ms < 'Infinity'", name=op.f("ck_best_configurations_time_is_a_time")),
        sa.ForeignKeyConstraint(
            ["device_model_id"], ["device_models.id"], name=op.f("fk_best_configurations_device_model_id_device_models")
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_best_configurations_environment_id_environments")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["tuning_jobs.id"], name=op.f("fk_best_configurations_job_id_tuning_jobs")),
        sa.ForeignKeyConstraint(
            ["problem_id"], ["problems.id"], name=op.f("fk_best_configurations_problem_id_problems")
        ),
        sa.ForeignKeyConstraint(
            ["superseded_by_id"],
            ["best_configurations.id"],
            name=op.f("fk_best_configurations_superseded_by_id_best_configurations"),
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_best_configurations_trial_id_trials")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_best_configurations")),
    )
    op.create_index(
        "ix_best_configurations_current",
        "best_configurations",
        ["problem_id", "device_model_id", "environment_id"],
        unique=True,
        postgresql_where=sa.text("superseded_by_id IS NULL AND retracted_at IS NULL"),
    )
    op.create_index(
        op.f("ix_best_configurations_device_model_id"), "best_configurations", ["device_model_id"], unique=False
    )


def downgrade() -> None:
    for table in (
        "best_configurations",
        "trials",
        "idempotency_keys",
        "tuning_jobs",
        "studies",
        "problems",
        "kernel_variants",
        "devices",
        "kernels",
        "environments",
        "device_models",
    ):
        op.drop_table(table)
