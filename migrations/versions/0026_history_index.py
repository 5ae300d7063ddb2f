"""An index by which the best before another is found."""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

INDEX = "ix_best_configurations_problem_id_device_model_id_verified_at"


def upgrade() -> None:
    op.create_index(op.f(INDEX), "best_configurations", ["problem_id", "device_model_id", "verified_at"])


def downgrade() -> None:
    op.drop_index(op.f(INDEX), "best_configurations")
