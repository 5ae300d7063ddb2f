"""Rates of a best configuration may be unknown: a kernel need not count its operations and bytes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

RATES = ("gflops", "gb_per_s")


def upgrade() -> None:
    for rate in RATES:
        op.alter_column("best_configurations", rate, existing_type=sa.Double(), nullable=True)


def downgrade() -> None:
    for rate in RATES:
        column: sa.ColumnClause[float] = sa.column(rate, sa.Double())
        op.execute(sa.table("best_configurations", column).update().where(column.is_(None)).values({rate: 0}))
        op.alter_column("best_configurations", rate, existing_type=sa.Double(), nullable=False)
