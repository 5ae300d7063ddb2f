"""The tables of version 0.1.0, and triggers that notify processes which keep best configurations in memory."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0009"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")

# Statement triggers: a statement that changes many rows is one message a device model. (An import inserts row by row,
# which is a message each.) NOTIFY is delivered at the commit, in the order of commits, and a transaction's equal
# messages are one. Of a statement up to 50 rows are named one by one.
BESTS = """
CREATE FUNCTION tilewright_tell_bests() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' AND (SELECT count(*) FROM (SELECT FROM changed LIMIT 51) AS few) <= 50 THEN
        PERFORM pg_notify('tilewright_best', 'best ' || string_agg(id::text, ',')) FROM changed HAVING count(*) > 0;
    ELSE
        PERFORM pg_notify('tilewright_best', 'model ' || id)
        FROM (SELECT DISTINCT device_model_id AS id FROM changed) AS one;
    END IF;
    RETURN NULL;
END $$
"""

# A study that tries a variant for the first time is improvable by one variant less.
TRIALS = """
CREATE FUNCTION tilewright_tell_trials() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    studied integer[] := ARRAY(
        SELECT DISTINCT c.study_id FROM changed AS c
        WHERE NOT EXISTS (SELECT FROM trials AS t
            WHERE t.study_id = c.study_id AND t.kernel_variant_id = c.kernel_variant_id AND t.id < c.id));
BEGIN
    IF cardinality(studied) BETWEEN 1 AND 50 THEN
        PERFORM pg_notify('tilewright_best', 'study ' || array_to_string(studied, ','));
    ELSE
        PERFORM pg_notify('tilewright_best', 'model ' || id)
        FROM (SELECT DISTINCT device_model_id AS id FROM studies WHERE studies.id = ANY (studied)) AS one;
    END IF;
    RETURN NULL;
END $$
"""

STUDIES = """
CREATE FUNCTION tilewright_tell_studies() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tilewright_best', 'study ' || NEW.id);
    RETURN NULL;
END $$
"""

MODELS = """
CREATE FUNCTION tilewright_tell_models() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tilewright_best', 'model ' || NEW.id);
    RETURN NULL;
END $$
"""

# Staleness is against the environments that a model's devices report.
DEVICES = """
CREATE FUNCTION tilewright_tell_devices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM pg_notify('tilewright_best', 'model ' || OLD.model_id);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM pg_notify('tilewright_best', 'model ' || NEW.model_id);
    END IF;
    RETURN NULL;
END $$
"""

FUNCTIONS = {"bests": BESTS, "trials": TRIALS, "studies": STUDIES, "models": MODELS, "devices": DEVICES}
MOVED = "(OLD.environment_id, OLD.model_id) IS DISTINCT FROM (NEW.environment_id, NEW.model_id)"
SPACE = "OLD.space_by_source IS DISTINCT FROM NEW.space_by_source"
# Table, event, which rows the function sees, condition, function.
TRIGGERS = (
    ("best_configurations", "INSERT", "NEW TABLE", "", "bests"),
    ("best_configurations", "UPDATE", "NEW TABLE", "", "bests"),
    ("best_configurations", "DELETE", "OLD TABLE", "", "bests"),
    ("trials", "INSERT", "NEW TABLE", "", "trials"),
    ("studies", "UPDATE", "", SPACE, "studies"),
    ("device_models", "INSERT", "", "", "models"),
    ("device_models", "UPDATE", "", "OLD.* IS DISTINCT FROM NEW.*", "models"),
    ("devices", "INSERT", "", "", "devices"),
    ("devices", "UPDATE", "", MOVED, "devices"),
    ("devices", "DELETE", "", "", "devices"),
)


def upgrade() -> None:
    _create_api_keys()
    _create_device_models()
    _create_environments()
    _create_kernels()
    _create_webhooks()
    _create_audit_entries()
    _create_browser_sessions()
    _create_demand()
    _create_devices()
    _create_kernel_variants()
    _create_problems()
    _create_schedules()
    _create_studies()
    _create_schedule_fires()
    _create_schedule_problems()
    _create_tuning_jobs()
    _create_idempotency_keys()
    _create_trials()
    _create_webhook_deliveries()
    _create_best_configurations()
    _create_comparisons()
    _create_triggers()


def _create_api_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("token_hash", sa.String(), unique=True, nullable=False),
        sa.Column("prefix", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("max_trials", sa.Integer()),
        sa.Column("max_seconds", sa.Double()),
        sa.Column("max_open_jobs", sa.Integer()),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("expires_at", TIME),
        sa.Column("revoked_at", TIME),
        sa.Column("last_used_at", TIME),
    )
    op.create_index("ix_api_keys_name", "api_keys", ["name"])


def _create_device_models() -> None:
    op.create_table(
        "device_models",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("slug", sa.String(), unique=True, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("compute_capability", sa.String(), nullable=False),
        sa.Column("multiprocessors", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("details", JSONB(), nullable=False),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
    )


def _create_environments() -> None:
    op.create_table(
        "environments",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("hash", sa.String(), unique=True, nullable=False),
        sa.Column("driver", sa.String(), nullable=False),
        sa.Column("toolkit", sa.String(), nullable=False),
        sa.Column("compiler", sa.String(), nullable=False),
        sa.Column("compiler_version", sa.String(), nullable=False),
        sa.Column("runtime", sa.String(), nullable=False),
        sa.Column("clocks", sa.String(), nullable=False),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("origin", sa.String()),
    )


def _create_kernels() -> None:
    op.create_table(
        "kernels",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(), unique=True, nullable=False),
        sa.Column("declaration", JSONB(), nullable=False),
        sa.Column("updated_at", TIME, server_default=NOW, nullable=False),
    )


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(), unique=True, nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("states", ARRAY(sa.String()), nullable=False),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
    )


def _create_audit_entries() -> None:
    op.create_table(
        "audit_entries",
        sa.Column(
            "id",
            sa.BigInteger(),
            sa.Identity(
                always=True, start=1, increment=1, minvalue=1, maxvalue=9223372036854775807, cycle=False, cache=1
            ),
            primary_key=True,
        ),
        sa.Column("at", TIME, server_default=NOW, nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("key_id", sa.Uuid(), sa.ForeignKey("api_keys.id")),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("request_id", sa.String()),
        sa.Column("changed", JSONB(), nullable=False),
    )
    op.create_index("ix_audit_entries_at", "audit_entries", ["at"])


def _create_browser_sessions() -> None:
    op.create_table(
        "browser_sessions",
        sa.Column("token_hash", sa.String(), primary_key=True),
        sa.Column("key_id", sa.Uuid(), sa.ForeignKey("api_keys.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
    )
    op.create_index("ix_browser_sessions_expires_at", "browser_sessions", ["expires_at"])
    op.create_index("ix_browser_sessions_key_id", "browser_sessions", ["key_id"])


def _create_demand() -> None:
    op.create_table(
        "demand",
        sa.Column("id", sa.BigInteger(), primary_key=True),
        sa.Column("device_model_id", sa.Integer(), sa.ForeignKey("device_models.id"), nullable=False),
        sa.Column("problem_hash", sa.String(), nullable=False),
        sa.Column("kernel", sa.String(), nullable=False),
        sa.Column("shape", JSONB(), nullable=False),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("options", JSONB(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first_asked_at", TIME, server_default=NOW, nullable=False),
        sa.Column("last_asked_at", TIME, server_default=NOW, nullable=False),
        sa.CheckConstraint("count > 0", name="was_asked_for"),
        sa.UniqueConstraint("device_model_id", "problem_hash"),
    )
    op.create_index("ix_demand_count_id", "demand", ["count", "id"])
    op.create_index(
        "ix_demand_device_model_id_kernel_last_asked_at", "demand", ["device_model_id", "kernel", "last_asked_at"]
    )


def _create_devices() -> None:
    op.create_table(
        "devices",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("uuid", sa.String(), unique=True, nullable=False),
        sa.Column("model_id", sa.Integer(), sa.ForeignKey("device_models.id"), nullable=False),
        sa.Column("environment_id", sa.Integer(), sa.ForeignKey("environments.id")),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("ordinal", sa.Integer(), server_default="0", nullable=False),
        sa.Column("state", sa.String(length=32), server_default="ready", nullable=False),
        sa.Column("heartbeat_at", TIME, server_default=NOW, nullable=False),
        sa.Column("physical_uuid", sa.String()),
        sa.Column("worker", sa.String()),
        sa.Column("worker_started_at", TIME),
        sa.Column("drain_requested_at", TIME),
        sa.Column("cache_files", sa.Integer()),
        sa.Column("cache_bytes", sa.BigInteger()),
        sa.CheckConstraint("state IN ('ready', 'lost')", name="state"),
    )


def _create_kernel_variants() -> None:
    op.create_table(
        "kernel_variants",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("kernel_id", sa.Integer(), sa.ForeignKey("kernels.id"), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("source_hash", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.UniqueConstraint("kernel_id", "name", "source_hash"),
    )


def _create_problems() -> None:
    op.create_table(
        "problems",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("hash", sa.String(), unique=True, nullable=False),
        sa.Column("kernel_id", sa.Integer(), sa.ForeignKey("kernels.id"), nullable=False),
        sa.Column("shape", JSONB(), nullable=False),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("options", JSONB(), nullable=False),
    )
    op.create_index("ix_problems_kernel_id_dtype", "problems", ["kernel_id", "dtype"])


def _create_schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(), unique=True, nullable=False),
        sa.Column("body_hash", sa.String(), nullable=False),
        sa.Column("cron", sa.String(), nullable=False),
        sa.Column("time_zone", sa.String(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), sa.ForeignKey("device_models.id"), nullable=False),
        sa.Column("device_id", sa.Integer(), sa.ForeignKey("devices.id")),
        sa.Column("budget_trials", sa.Integer()),
        sa.Column("budget_seconds", sa.Double()),
        sa.Column("budget_target_ms", sa.Double()),
        sa.Column("variants", ARRAY(sa.String())),
        sa.Column("compiler", sa.String()),
        sa.Column("priority", sa.Integer(), server_default="5", nullable=False),
        sa.Column("overlap", sa.String(length=32), server_default="skip", nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default="true", nullable=False),
        sa.Column("next_at", TIME),
        sa.Column("last_fire_at", TIME),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("target", sa.String(length=32), server_default="problems", nullable=False),
        sa.Column("top", sa.Integer()),
        sa.Column("kernel", sa.String()),
        sa.CheckConstraint("(target = 'problems') = (top IS NULL)", name="top_where_it_looks"),
        sa.CheckConstraint("overlap IN ('skip', 'queue')", name="overlap"),
        sa.CheckConstraint("target IN ('problems', 'stale', 'improvable', 'demand')", name="target"),
        sa.CheckConstraint("budget_trials > 0 OR budget_seconds > 0 OR budget_target_ms > 0", name="has_a_budget"),
        sa.CheckConstraint("enabled = (next_at IS NOT NULL)", name="due_when_enabled"),
        sa.CheckConstraint("priority >= 0 AND priority <= 9", name="priority_is_a_digit"),
    )
    op.create_index("ix_schedules_next_at", "schedules", ["next_at"])


def _create_studies() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("problem_id", sa.Integer(), sa.ForeignKey("problems.id"), nullable=False),
        sa.Column("device_model_id", sa.Integer(), sa.ForeignKey("device_models.id"), nullable=False),
        sa.Column("environment_id", sa.Integer(), sa.ForeignKey("environments.id"), nullable=False),
        sa.Column("next_number", sa.Integer(), server_default="0", nullable=False),
        sa.Column("space_hash", sa.String(), nullable=False),
        sa.Column("space_size", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("space_by_source", JSONB()),
        sa.UniqueConstraint("problem_id", "device_model_id", "environment_id"),
    )
    op.create_index("ix_studies_device_model_id", "studies", ["device_model_id"])


def _create_schedule_fires() -> None:
    op.create_table(
        "schedule_fires",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("schedule_id", sa.Integer(), sa.ForeignKey("schedules.id", ondelete="CASCADE"), nullable=False),
        sa.Column("fire_at", TIME, nullable=False),
        sa.Column("manual", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String()),
        sa.Column("created_at", TIME, server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.CheckConstraint("outcome IN ('fired', 'skipped')", name="outcome"),
        sa.UniqueConstraint("schedule_id", "fire_at"),
    )
    op.create_index("ix_schedule_fires_created_at", "schedule_fires", ["created_at"])
    op.create_index("ix_schedule_fires_schedule_id_id", "schedule_fires", ["schedule_id", "id"])


def _create_schedule_problems() -> None:
    op.create_table(
        "schedule_problems",
        sa.Column("schedule_id", sa.Integer(), sa.ForeignKey("schedules.id", ondelete="CASCADE"), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), sa.ForeignKey("problems.id"), nullable=False),
        sa.PrimaryKeyConstraint("schedule_id", "place"),
        sa.UniqueConstraint("schedule_id", "problem_id"),
    )


def _create_tuning_jobs() -> None:
    op.create_table(
        "tuning_jobs",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("problem_id", sa.Integer(), sa.ForeignKey("problems.id"), nullable=False),
        sa.Column("device_model_id", sa.Integer(), sa.ForeignKey("device_models.id")),
        sa.Column("device_id", sa.Integer(), sa.ForeignKey("devices.id")),
        sa.Column("study_id", sa.Integer(), sa.ForeignKey("studies.id")),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("compiler", sa.String()),
        sa.Column("sampler", sa.String(), server_default="tpe", nullable=False),
        sa.Column("seed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("variants", ARRAY(sa.String())),
        sa.Column("budget_trials", sa.Integer()),
        sa.Column("budget_seconds", sa.Double()),
        sa.Column("budget_target_ms", sa.Double()),
        sa.Column("priority", sa.Integer(), server_default="5", nullable=False),
        sa.Column("state", sa.String(length=32), server_default="queued", nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("crashes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("state_revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("engine_id", sa.BigInteger()),
        sa.Column("worker", sa.String()),
        sa.Column("coalesce_hash", sa.String()),
        sa.Column("trials_done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("phase", sa.String(), server_default="queued", nullable=False),
        sa.Column("elapsed_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("error", sa.String()),
        sa.Column("result", JSONB()),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("finished_at", TIME),
        sa.Column("schedule_id", sa.Integer(), sa.ForeignKey("schedules.id", ondelete="SET NULL")),
        sa.Column("fire_at", TIME),
        sa.Column("key_id", sa.Uuid(), sa.ForeignKey("api_keys.id")),
        sa.Column("devices_lost", sa.Integer(), server_default="0", nullable=False),
        sa.Column("samples_pruned_at", TIME),
        sa.CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name="state"),
        sa.CheckConstraint("budget_trials > 0 OR budget_seconds > 0 OR budget_target_ms > 0", name="has_a_budget"),
        sa.CheckConstraint("priority >= 0 AND priority <= 9", name="priority_is_a_digit"),
    )
    op.create_index(
        "ix_tuning_jobs_open", "tuning_jobs", ["state"], postgresql_where=sa.text("state IN ('queued', 'running')")
    )
    op.create_index(
        "ix_tuning_jobs_samples_kept",
        "tuning_jobs",
        ["finished_at"],
        postgresql_where=sa.text("samples_pruned_at IS NULL"),
    )
    op.create_index("ix_tuning_jobs_state_created_at", "tuning_jobs", ["state", "created_at"])
    op.create_index("ix_tuning_jobs_study_id", "tuning_jobs", ["study_id"])
    op.create_index(
        "uq_tuning_jobs_open_coalesce_hash",
        "tuning_jobs",
        ["coalesce_hash"],
        unique=True,
        postgresql_where=sa.text("state IN ('queued', 'running') AND NOT cancel_requested"),
    )
    op.create_index(
        "uq_tuning_jobs_schedule_fire",
        "tuning_jobs",
        ["schedule_id", "fire_at", "problem_id"],
        unique=True,
        postgresql_where=sa.text("schedule_id IS NOT NULL"),
    )


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(), primary_key=True),
        sa.Column("body_hash", sa.String(), nullable=False),
        sa.Column("job_id", sa.Uuid(), sa.ForeignKey("tuning_jobs.id"), nullable=False),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_index("ix_idempotency_keys_job_id", "idempotency_keys", ["job_id"])


def _create_trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("study_id", sa.Integer(), sa.ForeignKey("studies.id"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Uuid(), sa.ForeignKey("tuning_jobs.id"), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("job_revision", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), sa.ForeignKey("devices.id")),
        sa.Column("kernel_variant_id", sa.Integer(), sa.ForeignKey("kernel_variants.id"), nullable=False),
        sa.Column("configuration", JSONB(), nullable=False),
        sa.Column("configuration_hash", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("time_ms", sa.Double()),
        sa.Column("ranking_l2", sa.String(), nullable=False),
        sa.Column("warm_ms", sa.Double()),
        sa.Column("warm_spread_ms", sa.Double()),
        sa.Column("warm_samples_ms", ARRAY(sa.Double())),
        sa.Column("cold_ms", sa.Double()),
        sa.Column("cold_spread_ms", sa.Double()),
        sa.Column("cold_samples_ms", ARRAY(sa.Double())),
        sa.Column("gflops", sa.Double()),
        sa.Column("gb_per_s", sa.Double()),
        sa.Column("registers", sa.Integer()),
        sa.Column("shared_bytes", sa.Integer()),
        sa.Column("spill_bytes", sa.Integer()),
        sa.Column("occupancy", sa.Double()),
        sa.Column("bound_ratio", sa.Double()),
        sa.Column("compile_ms", sa.Double()),
        sa.Column("clock_mhz", sa.Integer()),
        sa.Column("temperature_c", sa.Integer()),
        sa.Column("log", sa.String(), server_default="", nullable=False),
        sa.Column("started_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("wall_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("ci_low_ms", sa.Double()),
        sa.Column("ci_high_ms", sa.Double()),
        sa.Column("samples_pruned_at", TIME),
        sa.CheckConstraint("(outcome = 'measured') = (time_ms IS NOT NULL)", name="time_only_when_measured"),
        sa.CheckConstraint(
            "outcome IN ('measured', 'constraint_violated', 'compile_failed', 'launch_failed',"
            " 'wrong_result', 'timed_out', 'device_lost')",
            name="outcome",
        ),
        sa.CheckConstraint("time_ms > 0 AND time_ms < 'Infinity'::float8", name="time_is_a_time"),
        sa.UniqueConstraint("study_id", "configuration_hash"),
        sa.UniqueConstraint("study_id", "number"),
    )
    op.create_index("ix_trials_job_id", "trials", ["job_id"])
    op.create_index("ix_trials_study_id_kernel_variant_id", "trials", ["study_id", "kernel_variant_id"])
    op.create_index("ix_trials_study_id_time_ms", "trials", ["study_id", "time_ms"])


def _create_webhook_deliveries() -> None:
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("webhook_id", sa.Integer(), sa.ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("job_id", sa.Uuid(), sa.ForeignKey("tuning_jobs.id"), nullable=False),
        sa.Column("state", sa.String(length=32), server_default="waiting", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_at", TIME, server_default=NOW, nullable=False),
        sa.Column("status_code", sa.Integer()),
        sa.Column("error", sa.String()),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("delivered_at", TIME),
        sa.CheckConstraint("state IN ('waiting', 'delivered', 'failed')", name="state"),
        sa.UniqueConstraint("webhook_id", "job_id"),
    )
    op.create_index("ix_webhook_deliveries_created_at", "webhook_deliveries", ["created_at"])
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["webhook_id", "next_at"],
        postgresql_where=sa.text("state = 'waiting'"),
    )
    op.create_index("ix_webhook_deliveries_job_id", "webhook_deliveries", ["job_id"])


def _create_best_configurations() -> None:
    op.create_table(
        "best_configurations",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("problem_id", sa.Integer(), sa.ForeignKey("problems.id"), nullable=False),
        sa.Column("device_model_id", sa.Integer(), sa.ForeignKey("device_models.id"), nullable=False),
        sa.Column("environment_id", sa.Integer(), sa.ForeignKey("environments.id"), nullable=False),
        sa.Column("trial_id", sa.Integer(), sa.ForeignKey("trials.id"), nullable=False),
        sa.Column("job_id", sa.Uuid(), sa.ForeignKey("tuning_jobs.id"), nullable=False),
        sa.Column("time_ms", sa.Double(), nullable=False),
        sa.Column("ci_low_ms", sa.Double(), nullable=False),
        sa.Column("ci_high_ms", sa.Double(), nullable=False),
        sa.Column("l2", sa.String(), nullable=False),
        sa.Column("gflops", sa.Double(), nullable=False),
        sa.Column("gb_per_s", sa.Double(), nullable=False),
        sa.Column("roof_ratio", sa.Double()),
        sa.Column("default_ms", sa.Double()),
        sa.Column("slowest_ms", sa.Double()),
        sa.Column("library_name", sa.String()),
        sa.Column("library_ms", sa.Double()),
        sa.Column("library_faster", sa.Boolean()),
        sa.Column("ties", sa.Integer(), server_default="0", nullable=False),
        sa.Column("bound_ratio", sa.Double()),
        sa.Column("verified_at", TIME, server_default=NOW, nullable=False),
        sa.Column(
            "superseded_by_id",
            sa.Integer(),
            sa.ForeignKey("best_configurations.id", initially="DEFERRED", deferrable=True),
        ),
        sa.Column("retracted_at", TIME),
        sa.Column("retracted_reason", sa.String()),
        sa.Column("library_bound_ratio", sa.Double()),
        sa.Column("retracted_by", sa.String()),
        sa.Column("stands_in_for_id", sa.Integer(), sa.ForeignKey("best_configurations.id")),
        sa.CheckConstraint("time_ms > 0 AND time_ms < 'Infinity'::float8", name="time_is_a_time"),
    )
    op.create_index(
        "ix_best_configurations_current",
        "best_configurations",
        ["problem_id", "device_model_id", "environment_id"],
        unique=True,
        postgresql_where=sa.text("(superseded_by_id IS NULL) AND (retracted_at IS NULL)"),
    )
    op.create_index("ix_best_configurations_device_model_id", "best_configurations", ["device_model_id"])
    op.create_index("ix_best_configurations_trial_id", "best_configurations", ["trial_id"])


def _create_comparisons() -> None:
    op.create_table(
        "comparisons",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("schedule_id", sa.Integer(), sa.ForeignKey("schedules.id", ondelete="CASCADE"), nullable=False),
        sa.Column("job_id", sa.Uuid(), sa.ForeignKey("tuning_jobs.id"), unique=True, nullable=False),
        sa.Column("before_id", sa.Integer(), sa.ForeignKey("best_configurations.id")),
        sa.Column("after_id", sa.Integer(), sa.ForeignKey("best_configurations.id")),
        sa.Column("verdict", sa.String()),
        sa.Column("ratio", sa.Double()),
        sa.Column("threshold", sa.Double()),
        sa.Column("reason", sa.String()),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("compared_at", TIME),
        sa.CheckConstraint("verdict IN ('better', 'same', 'worse', 'missing')", name="verdict_is_a_word"),
        sa.CheckConstraint("(verdict IS NULL) = (compared_at IS NULL)", name="verdict_when_compared"),
    )
    op.create_index("ix_comparisons_schedule_id_id", "comparisons", ["schedule_id", "id"])
    op.create_index("ix_comparisons_waiting", "comparisons", ["id"], postgresql_where=sa.text("verdict IS NULL"))


def _create_triggers() -> None:
    for function in FUNCTIONS.values():
        op.execute(function)
    for table, event, seen, condition, function in TRIGGERS:
        rows = f"REFERENCING {seen} AS changed FOR EACH STATEMENT" if seen else "FOR EACH ROW"
        when = f"WHEN ({condition})" if condition else ""
        op.execute(
            f"CREATE TRIGGER tell_{event.lower()} AFTER {event} ON {table} {rows} {when} "
            f"EXECUTE FUNCTION tilewright_tell_{function}()"
        )
