"""Trials that the surroundings interrupted, and trials that are to be tried again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0017"
branch_labels = None
depends_on = None

BEFORE = (
    "measured",
    "constraint_violated",
    "compile_failed",
    "launch_failed",
    "wrong_result",
    "timed_out",
    "device_lost",
)
CHECK = "ck_trials_outcome"


def upgrade() -> None:
    _allow(*BEFORE, "interrupted")
    op.create_table(
        "trial_retries",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_trial_retries_trial_id_trials")),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("pk_trial_retries")),
    )


def _allow(*outcomes: str) -> None:
    op.drop_constraint(op.f(CHECK), "trials", type_="check")
    op.create_check_constraint(op.f(CHECK), "trials", sa.column("outcome").in_(outcomes))
