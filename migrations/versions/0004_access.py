"""Keys, browser sessions, the record of changes; a job names the key that requested it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("prefix", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("max_trials", sa.Integer(), nullable=True),
        sa.Column("max_seconds", sa.Double(), nullable=True),
        sa.Column("max_open_jobs", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_api_keys_token_hash")),
    )
    op.create_index(op.f("ix_api_keys_name"), "api_keys", ["name"])
    op.create_table(
        "browser_sessions",
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_browser_sessions_key_id_api_keys"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_browser_sessions")),
    )
    op.create_index(op.f("ix_browser_sessions_key_id"), "browser_sessions", ["key_id"])
    op.create_index(op.f("ix_browser_sessions_expires_at"), "browser_sessions", ["expires_at"])
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=True),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("changed", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_audit_entries_key_id_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
    )
    op.create_index(op.f("ix_audit_entries_at"), "audit_entries", ["at"])
    op.add_column("tuning_jobs", sa.Column("key_id", sa.Uuid(), nullable=True))
    op.create_foreign_key(op.f("fk_tuning_jobs_key_id_api_keys"), "tuning_jobs", "api_keys", ["key_id"], ["id"])


def downgrade() -> None:
    op.drop_constraint(op.f("fk_tuning_jobs_key_id_api_keys"), "tuning_jobs", type_="foreignkey")
    op.drop_column("tuning_jobs", "key_id")
    for table in ("audit_entries", "browser_sessions", "api_keys"):
        op.drop_table(table)
