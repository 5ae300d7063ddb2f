"""gemm and linear got the option `accuracy`; a best configuration keeps the library's error beside its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Options = dict[str, Any]

ADDED = {"accuracy": "fp32"}
"""The accuracy that existing results were verified with, and the default from now on."""

KERNELS = sa.table("kernels", sa.column("id"), sa.column("name"))
PROBLEMS = sa.table(
    "problems",
    sa.column("id"),
    sa.column("hash"),
    sa.column("kernel_id"),
    sa.column("shape", postgresql.JSONB),
    sa.column("dtype"),
    sa.column("options", postgresql.JSONB),
)
JOBS = sa.table(
    "tuning_jobs",
    *(
        sa.column(name)
        for name in ("id", "problem_id", "state", "queue", "variants", "compiler", "sampler", "seed", "coalesce_hash")
    ),
    *(sa.column(f"budget_{limit}") for limit in ("trials", "seconds", "target_ms")),
)


def upgrade() -> None:
    op.add_column("best_configurations", sa.Column("library_bound_ratio", sa.Double(), nullable=True))
    _change_options(lambda options: options if "accuracy" in options else options | ADDED)


def downgrade() -> None:
    # Problems of another accuracy stay as they are: the version before never asks for them.
    _change_options(lambda options: _without_accuracy(options) if options.get("accuracy") == "fp32" else options)
    op.drop_column("best_configurations", "library_bound_ratio")


def _without_accuracy(options: Options) -> Options:
    return {name: value for name, value in options.items() if name != "accuracy"}


def _change_options(change: Callable[[Options], Options]) -> None:
    """Changes the options of every problem of the two kernels, and every hash made from them."""
    connection = op.get_bind()
    rows = connection.execute(
        sa.select(PROBLEMS, KERNELS.c.name)
        .join_from(PROBLEMS, KERNELS, KERNELS.c.id == PROBLEMS.c.kernel_id)
        .where(KERNELS.c.name.in_(["gemm", "linear"]))
    ).all()
    for row in rows:
        options = change(row.options)
        if options == row.options:
            continue
        problem = {"kernel": row.name, "shape": row.shape, "dtype": row.dtype, "options": options}
        problem_hash = _sha256(problem)
        connection.execute(
            sa.update(PROBLEMS).where(PROBLEMS.c.id == row.id).values(options=options, hash=problem_hash)
        )
        _change_open_jobs(connection, row.id, problem_hash)


def _change_open_jobs(connection: sa.Connection, problem_id: int, problem_hash: str) -> None:
    """Changes the hash by which identical requests find an open job."""
    is_open = JOBS.c.state.in_(["queued", "running"]) & JOBS.c.coalesce_hash.is_not(None)
    for job in connection.execute(sa.select(JOBS).where(JOBS.c.problem_id == problem_id, is_open)).all():
        work = [
            problem_hash,
            job.queue,
            sorted(job.variants) if job.variants else None,
            {"trials": job.budget_trials, "seconds": job.budget_seconds, "target_ms": job.budget_target_ms},
            [job.compiler, job.sampler, job.seed],
        ]
        connection.execute(sa.update(JOBS).where(JOBS.c.id == job.id).values(coalesce_hash=_sha256(work)))


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
