"""Claims of clients, and the jobs that verify them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

REFERENCES = {
    "key_id": "api_keys",
    "problem_id": "problems",
    "device_model_id": "device_models",
    "job_id": "tuning_jobs",
}


def upgrade() -> None:
    op.add_column("tuning_jobs", sa.Column("verifies", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_table(
        "claims",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=True),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), nullable=False),
        sa.Column("driver", sa.String(), nullable=False),
        sa.Column("configuration", JSONB(), nullable=False),
        sa.Column("source_hash", sa.String(), nullable=False),
        sa.Column("seen", sa.String(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=32), server_default="open", nullable=False),
        sa.Column("found", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('open', 'confirmed', 'refuted')", name=op.f("ck_claims_state")),
        *(
            sa.ForeignKeyConstraint([column], [f"{table}.id"], name=op.f(f"fk_claims_{column}_{table}"))
            for column, table in REFERENCES.items()
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_claims")),
    )
    op.create_index(op.f("ix_claims_job_id"), "claims", ["job_id"])
    op.create_index(op.f("ix_claims_created_at"), "claims", ["created_at"])
    op.create_index(op.f("ix_claims_problem_id_device_model_id"), "claims", ["problem_id", "device_model_id"])
    op.create_index(
        "ix_claims_confirmed", "claims", ["device_model_id"], postgresql_where=sa.text("state = 'confirmed'")
    )
