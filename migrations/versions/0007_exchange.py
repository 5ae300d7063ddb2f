"""An environment names the installation that its results were imported from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

IMPORTED = "(SELECT id FROM environments WHERE origin IS NOT NULL)"
BESTS = f"(SELECT id FROM best_configurations WHERE environment_id IN {IMPORTED})"  # noqa: S608 - constants
STUDIES = f"(SELECT id FROM studies WHERE environment_id IN {IMPORTED})"  # noqa: S608


def upgrade() -> None:
    op.add_column("environments", sa.Column("origin", sa.String(), nullable=True))


def downgrade() -> None:
    # Without the column, results of other installations would pass for this one's.
    op.execute(f"DELETE FROM comparisons WHERE before_id IN {BESTS} OR after_id IN {BESTS}")  # noqa: S608
    op.execute(f"DELETE FROM best_configurations WHERE environment_id IN {IMPORTED}")  # noqa: S608
    op.execute(f"DELETE FROM trials WHERE study_id IN {STUDIES}")  # noqa: S608
    op.execute(f"DELETE FROM tuning_jobs WHERE study_id IN {STUDIES}")  # noqa: S608
    op.execute(f"DELETE FROM studies WHERE environment_id IN {IMPORTED}")  # noqa: S608
    op.execute("DELETE FROM environments WHERE origin IS NOT NULL")
    op.drop_column("environments", "origin")
