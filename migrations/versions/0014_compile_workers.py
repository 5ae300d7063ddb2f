"""Compile workers on other hosts: what jobs offer them, their leases on it, and the signed cubins."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

NOW = sa.text("now()")


def _moment(name: str, *, nullable: bool = False, default: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=NOW if default else None, nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "compile_workers",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("processes", sa.Integer(), nullable=False),
        sa.Column("compiler_version", sa.String(), nullable=False),
        sa.Column("signer", sa.String(), nullable=False),
        _moment("started_at"),
        _moment("heartbeat_at", nullable=True),
        sa.Column("refused", sa.Integer(), server_default="0", nullable=False),
        sa.CheckConstraint("octet_length(name) <= 255", name=op.f("ck_compile_workers_name_is_short")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_compile_workers")),
    )
    op.create_table(
        "compile_sources",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        _moment("offered_at"),
        sa.CheckConstraint("octet_length(source) <= 4194304", name=op.f("ck_compile_sources_source_is_short")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_compile_sources")),
    )
    op.create_table(
        "compile_requests",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("source_hash", sa.String(), nullable=False),
        sa.Column("facts", JSONB(), nullable=False),
        sa.Column("compiler_version", sa.String(), nullable=False),
        _moment("offered_at"),
        sa.Column("worker", sa.String(), nullable=True),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        _moment("leased_until", nullable=True, default=False),
        _moment("ended_at", nullable=True, default=False),
        sa.Column("refusal", sa.String(), nullable=True),
        sa.CheckConstraint("octet_length(facts::text) <= 65536", name=op.f("ck_compile_requests_facts_are_short")),
        sa.ForeignKeyConstraint(
            ["source_hash"], ["compile_sources.hash"], name=op.f("fk_compile_requests_source_hash_compile_sources")
        ),
        sa.ForeignKeyConstraint(
            ["worker"], ["compile_workers.name"], name=op.f("fk_compile_requests_worker_compile_workers")
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_compile_requests")),
    )
    op.create_index(op.f("ix_compile_requests_source_hash"), "compile_requests", ["source_hash"])
    op.create_index(op.f("ix_compile_requests_worker"), "compile_requests", ["worker"])
    op.create_index(op.f("ix_compile_requests_offered_at"), "compile_requests", ["offered_at"])
    op.create_index(
        "ix_compile_requests_open",
        "compile_requests",
        ["compiler_version", "offered_at"],
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "compiled_cubins",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        _moment("stored_at"),
        sa.CheckConstraint("octet_length(body) <= 8388608", name=op.f("ck_compiled_cubins_body_is_short")),
        sa.CheckConstraint("octet_length(signature) <= 64", name=op.f("ck_compiled_cubins_signature_is_short")),
        sa.ForeignKeyConstraint(
            ["key"],
            ["compile_requests.key"],
            name=op.f("fk_compiled_cubins_key_compile_requests"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["worker"], ["compile_workers.name"], name=op.f("fk_compiled_cubins_worker_compile_workers")
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_compiled_cubins")),
    )
    op.create_index(op.f("ix_compiled_cubins_worker"), "compiled_cubins", ["worker"])


def downgrade() -> None:
    for table in ("compiled_cubins", "compile_requests", "compile_sources", "compile_workers"):
        op.drop_table(table)
