"""The kernels and device models that were requested, which an API that starts reads into memory first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "asked_shelves",
        sa.Column("kernel", sa.String(), nullable=False),
        sa.Column("device_model_id", sa.Integer(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["device_model_id"], ["device_models.id"], name=op.f("fk_asked_shelves_device_model_id_device_models")
        ),
        sa.PrimaryKeyConstraint("kernel", "device_model_id", name=op.f("pk_asked_shelves")),
    )


def downgrade() -> None:
    op.drop_table("asked_shelves")
