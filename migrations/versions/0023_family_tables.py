"""Tables of families, each superseded as a whole."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

REFERENCES = {
    "problem_id": "problems",
    "device_model_id": "device_models",
    "environment_id": "environments",
    "job_id": "tuning_jobs",
}

TELL = """
CREATE FUNCTION tilewright_tell_tables() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tilewright_best', 'model ' || id)
    FROM (SELECT DISTINCT device_model_id AS id FROM changed) AS one;
    RETURN NULL;
END $$
"""


def upgrade() -> None:
    op.create_table(
        "family_tables",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("family_hash", sa.String(), nullable=False),
        sa.Column("low", sa.Integer(), nullable=False),
        sa.Column("high", sa.Integer(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("document", JSONB(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("superseded_by_id", sa.Integer(), nullable=True),
        sa.CheckConstraint("0 < low AND low <= high", name=op.f("ck_family_tables_is_a_range")),
        *(
            sa.ForeignKeyConstraint([column], [f"{table}.id"], name=op.f(f"fk_family_tables_{column}_{table}"))
            for column, table in REFERENCES.items()
        ),
        sa.ForeignKeyConstraint(
            ["superseded_by_id"],
            ["family_tables.id"],
            name=op.f("fk_family_tables_superseded_by_id_family_tables"),
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_family_tables")),
    )
    op.create_index(
        "ix_family_tables_current",
        "family_tables",
        ["problem_id", "device_model_id", "environment_id"],
        unique=True,
        postgresql_where=sa.text("superseded_by_id IS NULL"),
    )
    op.create_index(op.f("ix_family_tables_family_hash"), "family_tables", ["family_hash"])
    # Answers kept in memory may come from a table: processes read their shelves of the model again (0009).
    op.execute(TELL)
    for event in ("INSERT", "UPDATE", "DELETE"):
        seen = "OLD" if event == "DELETE" else "NEW"
        op.execute(
            f"CREATE TRIGGER tell_{event.lower()} AFTER {event} ON family_tables REFERENCING {seen} TABLE AS changed "
            "FOR EACH STATEMENT EXECUTE FUNCTION tilewright_tell_tables()"
        )
