"""How long a trial's operand takes to pack, which is no part of the time of a launch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("pack_ms", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("trials", "pack_ms")
