"""Notes on studies, saved views, and predictions that outlive the process that made them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

NOW = sa.text("now()")


def upgrade() -> None:
    op.add_column("predictors", sa.Column("predictions", JSONB(), server_default="{}", nullable=False))
    op.create_table(
        "study_notes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("acknowledged_result_id", sa.Integer(), nullable=True),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("written_by", sa.String(), nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_study_notes_study_id_studies")),
        sa.ForeignKeyConstraint(
            ["acknowledged_result_id"],
            ["best_configurations.id"],
            name=op.f("fk_study_notes_acknowledged_result_id_best_configurations"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_study_notes")),
    )
    for column in ("study_id", "acknowledged_result_id"):
        op.create_index(op.f(f"ix_study_notes_{column}"), "study_notes", [column])
    op.create_table(
        "saved_views",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("saved_by", sa.String(), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_saved_views")),
    )
