"""Sources are known by their code: stored results keep their source where only its hash is taken anew.

A source of this package has the hash that `former_sources.txt` states, where its machine code is today's; any other
has the hash of its stored text.
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

from tilewright.kernels.sources import identity

revision = "0017"
down_revision = "0009"
branch_labels = None
depends_on = None

FLAG = re.compile(r"^// compiled with (.+)$", re.MULTILINE)

SOURCE = sa.text("UPDATE kernel_variants SET source_hash = :now WHERE id = :id")

# As operations.jobs.record_trial.hash_with_source computes it: JSON of Python with sorted keys.
TRIALS = sa.text("""
    UPDATE trials SET configuration_hash = encode(sha256(convert_to(
        '["' || :now || '", {' || (
            SELECT string_agg(to_json(key)::text || ': ' || value::text, ', ' ORDER BY key COLLATE "C")
            FROM jsonb_each(configuration)
        ) || '}]', 'UTF8')), 'hex')
    WHERE kernel_variant_id = :id
""")

STUDIES = sa.text("""
    UPDATE studies SET space_by_source =
        space_by_source - CAST(:then AS text) || jsonb_build_object(CAST(:now AS text), space_by_source -> :then)
    FROM problems WHERE problems.id = studies.problem_id AND problems.kernel_id = :kernel_id
        AND jsonb_exists(space_by_source, :then)
""")


def upgrade() -> None:
    take_hashes_anew(op.get_bind())


def take_hashes_anew(connection: sa.Connection) -> None:
    """Gives every source the hash of its code, and the rows that state the former hash follow."""
    query = sa.text("SELECT id, kernel_id, name, source_hash, source FROM kernel_variants ORDER BY id DESC")
    rows = connection.execute(query).all()
    taken = {(row.kernel_id, row.name, row.source_hash) for row in rows}
    for row in rows:
        now = _code_hash(row.source_hash, row.source)
        if now == row.source_hash or (row.kernel_id, row.name, now) in taken:  # of the same code, the newest counts
            continue
        taken.add((row.kernel_id, row.name, now))
        connection.execute(SOURCE, {"now": now, "id": row.id})
        connection.execute(TRIALS, {"now": now, "id": row.id})
        keys = {"then": f"{row.name}:{row.source_hash}", "now": f"{row.name}:{now}"}
        connection.execute(STUDIES, {**keys, "kernel_id": row.kernel_id})


def _code_hash(stated: str, source: str) -> str:
    former = identity.former(stated)
    if former is not None and former.is_same:
        return former.now
    return identity.code_hash(source, FLAG.findall(source), is_triton="@triton.jit" in source)
