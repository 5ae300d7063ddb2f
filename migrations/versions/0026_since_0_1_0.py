"""The tables and columns that came after version 0.1.0."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0026"
down_revision = "0017"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
NOW = sa.text("now()")
OUTCOMES = "measured constraint_violated compile_failed launch_failed wrong_result timed_out device_lost interrupted"

# Keys are served alternately. Only entries of ours, where the engine has its tables already: they are made after ours.
TURNS = """
DO $$ BEGIN
    IF to_regclass('procrastinate_jobs') IS NOT NULL THEN
        UPDATE procrastinate_jobs SET priority = priority * 200000000
        WHERE task_name = 'tune' AND status IN ('todo', 'doing');
    END IF;
END $$
"""

# Answers kept in memory may come from a table: processes read their shelves of the model again (0009).
TELL_TABLES = """
CREATE FUNCTION tilewright_tell_tables() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tilewright_best', 'model ' || id)
    FROM (SELECT DISTINCT device_model_id AS id FROM changed) AS one;
    RETURN NULL;
END $$
"""


def upgrade() -> None:
    _create_projects()
    _own_idempotency_keys()
    _add_columns()
    _create_small_tables()
    _create_claims()
    _create_family_tables()
    _create_notes_and_views()


def _create_projects() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(), unique=True, nullable=False),
        sa.Column("max_open_jobs", sa.Integer()),
        sa.Column("max_queued_seconds", sa.Double()),
        sa.Column("max_schedules", sa.Integer()),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
    )
    op.execute("INSERT INTO projects (name) VALUES ('default')")  # its id is 1: all that exists belongs to it
    for table in ("api_keys", "tuning_jobs", "schedules"):
        op.add_column(
            table, sa.Column("project_id", sa.Integer(), _reference("projects"), server_default="1", nullable=False)
        )
    op.add_column("webhooks", sa.Column("project_id", sa.Integer(), _reference("projects")))
    op.create_index("ix_tuning_jobs_project_id_id", "tuning_jobs", ["project_id", "id"])


def _own_idempotency_keys() -> None:
    op.add_column("idempotency_keys", sa.Column("owner", sa.String(), server_default="", nullable=False))
    op.execute(
        "UPDATE idempotency_keys SET owner = api_keys.name FROM tuning_jobs JOIN api_keys"
        " ON api_keys.id = tuning_jobs.key_id WHERE tuning_jobs.id = idempotency_keys.job_id"
    )
    op.drop_constraint("pk_idempotency_keys", "idempotency_keys", type_="primary")
    op.create_primary_key("pk_idempotency_keys", "idempotency_keys", ["owner", "key"])


def _add_columns() -> None:
    op.add_column("schedules", sa.Column("key_id", sa.Uuid(), _reference("api_keys")))
    op.add_column("trials", sa.Column("pack_ms", sa.Double()))
    op.drop_constraint(op.f("ck_trials_outcome"), "trials", type_="check")
    op.create_check_constraint(op.f("ck_trials_outcome"), "trials", sa.column("outcome").in_(OUTCOMES.split()))
    for rate in ("gflops", "gb_per_s"):
        op.alter_column("best_configurations", rate, existing_type=sa.Double(), nullable=True)
    before = ["problem_id", "device_model_id", "verified_at"]
    op.create_index("_".join(["ix_best_configurations", *before]), "best_configurations", before)
    op.add_column("tuning_jobs", sa.Column("starts", JSONB()))
    op.add_column("tuning_jobs", sa.Column("verifies", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("tuning_jobs", sa.Column("turn", sa.Integer(), server_default="0", nullable=False))
    op.create_index("ix_tuning_jobs_engine_id", "tuning_jobs", ["engine_id"])
    op.execute(TURNS)


def _create_small_tables() -> None:
    op.create_table(
        "asked_shelves",
        sa.Column("kernel", sa.String(), primary_key=True),
        sa.Column("device_model_id", sa.Integer(), _reference("device_models"), primary_key=True),
        sa.Column("asked_at", TIME, server_default=NOW, nullable=False),
    )
    op.create_table(
        "chore_rounds",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("begun_at", TIME, nullable=False),
    )
    op.execute("INSERT INTO chore_rounds VALUES (1, now())")
    op.create_table(
        "trial_retries",
        sa.Column("trial_id", sa.Integer(), _reference("trials"), primary_key=True, autoincrement=False),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
    )
    op.create_table(
        "predictors",
        sa.Column("records_hash", sa.String(), primary_key=True),
        sa.Column("series", sa.String(), nullable=False),
        sa.Column("arrays", sa.LargeBinary(), nullable=False),
        sa.Column("fitted_at", TIME, server_default=NOW, nullable=False),
        sa.Column("predictions", JSONB(), server_default="{}", nullable=False),
    )
    op.create_index("ix_predictors_series_fitted_at", "predictors", ["series", "fitted_at"])
    # Numbers of eight random-looking bytes: an attempt to compress them takes longer than it saves.
    op.execute("ALTER TABLE predictors ALTER COLUMN arrays SET STORAGE EXTERNAL")


def _create_claims() -> None:
    op.create_table(
        "claims",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("key_id", sa.Uuid(), _reference("api_keys")),
        sa.Column("problem_id", sa.Integer(), _reference("problems"), nullable=False),
        sa.Column("device_model_id", sa.Integer(), _reference("device_models"), nullable=False),
        sa.Column("driver", sa.String(), nullable=False),
        sa.Column("configuration", JSONB(), nullable=False),
        sa.Column("source_hash", sa.String(), nullable=False),
        sa.Column("seen", sa.String(), nullable=False),
        sa.Column("job_id", sa.Uuid(), _reference("tuning_jobs"), nullable=False),
        sa.Column("state", sa.String(length=32), server_default="open", nullable=False),
        sa.Column("found", sa.String()),
        sa.Column("created_at", TIME, server_default=NOW, nullable=False),
        sa.Column("settled_at", TIME),
        sa.Column("seen_ms", JSONB()),
        sa.CheckConstraint("state IN ('open', 'confirmed', 'refuted')", name="state"),
    )
    for columns in (["job_id"], ["created_at"], ["problem_id", "device_model_id"]):
        op.create_index("_".join(["ix_claims", *columns]), "claims", columns)
    confirmed = sa.text("state = 'confirmed'")
    op.create_index("ix_claims_confirmed", "claims", ["device_model_id"], postgresql_where=confirmed)


def _create_family_tables() -> None:
    itself = sa.ForeignKey("family_tables.id", initially="DEFERRED", deferrable=True)
    op.create_table(
        "family_tables",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("problem_id", sa.Integer(), _reference("problems"), nullable=False),
        sa.Column("family_hash", sa.String(), nullable=False),
        sa.Column("low", sa.Integer(), nullable=False),
        sa.Column("high", sa.Integer(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), _reference("device_models"), nullable=False),
        sa.Column("environment_id", sa.Integer(), _reference("environments"), nullable=False),
        sa.Column("job_id", sa.Uuid(), _reference("tuning_jobs")),
        sa.Column("document", JSONB(), nullable=False),
        sa.Column("made_at", TIME, server_default=NOW, nullable=False),
        sa.Column("superseded_by_id", sa.Integer(), itself),
        sa.CheckConstraint("0 < low AND low <= high", name="is_a_range"),
    )
    op.create_index(
        "ix_family_tables_current",
        "family_tables",
        ["problem_id", "device_model_id", "environment_id"],
        unique=True,
        postgresql_where=sa.text("superseded_by_id IS NULL"),
    )
    op.create_index("ix_family_tables_family_hash", "family_tables", ["family_hash"])
    op.execute(TELL_TABLES)
    for event, seen in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
        op.execute(
            f"CREATE TRIGGER tell_{event.lower()} AFTER {event} ON family_tables REFERENCING {seen} TABLE AS changed "
            "FOR EACH STATEMENT EXECUTE FUNCTION tilewright_tell_tables()"
        )


def _create_notes_and_views() -> None:
    op.create_table(
        "study_notes",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("study_id", sa.Integer(), _reference("studies"), index=True, nullable=False),
        sa.Column("acknowledged_result_id", sa.Integer(), _reference("best_configurations"), index=True),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("written_by", sa.String(), nullable=False),
        sa.Column("written_at", TIME, server_default=NOW, nullable=False),
    )
    op.create_table(
        "saved_views",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("saved_by", sa.String(), nullable=False),
        sa.Column("saved_at", TIME, server_default=NOW, nullable=False),
    )


def _reference(table: str) -> sa.ForeignKey:
    return sa.ForeignKey(f"{table}.id")
