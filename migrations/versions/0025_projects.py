"""Projects, to which keys, jobs, schedules and webhooks belong, with quotas; all that exists belongs to `default`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

OF_PROJECTS = ("api_keys", "tuning_jobs", "schedules")


def upgrade() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("max_open_jobs", sa.Integer(), nullable=True),
        sa.Column("max_queued_seconds", sa.Float(), nullable=True),
        sa.Column("max_schedules", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.execute("INSERT INTO projects (name) VALUES ('default')")  # its id is 1
    for table in OF_PROJECTS:
        op.add_column(table, sa.Column("project_id", sa.Integer(), server_default="1", nullable=False))
    op.add_column("webhooks", sa.Column("project_id", sa.Integer(), nullable=True))
    for table in (*OF_PROJECTS, "webhooks"):
        op.create_foreign_key(op.f(f"fk_{table}_project_id_projects"), table, "projects", ["project_id"], ["id"])
    op.create_index(op.f("ix_tuning_jobs_project_id_id"), "tuning_jobs", ["project_id", "id"])
