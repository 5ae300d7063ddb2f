"""Revision 0010 on the rows of a service at work: idempotency keys get their owners, schedules stay everybody's."""

from __future__ import annotations

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tilewright.service.store import schema
from tilewright.service.store.session import sqlalchemy_url

BEFORE = "0009"
ROWS = """
INSERT INTO kernels (name, declaration) VALUES ('own', '{}');
INSERT INTO problems (hash, kernel_id, shape, dtype, options)
SELECT 'h', id, '{}', 'float32', '{}' FROM kernels WHERE name = 'own';
INSERT INTO api_keys (id, name, token_hash, prefix, scope) VALUES (gen_random_uuid(), 'ci', 't', 'tw_', 'tune');
INSERT INTO tuning_jobs (id, problem_id, queue, budget_trials, state, key_id)
SELECT gen_random_uuid(), problems.id, 'q', 1, 'done', api_keys.id FROM problems, api_keys
UNION ALL SELECT gen_random_uuid(), problems.id, 'q', 1, 'done', NULL FROM problems;
INSERT INTO idempotency_keys (key, body_hash, job_id) SELECT coalesce('of ' || key_id::text, 'here'), 'b', id
FROM tuning_jobs
"""


def test_idempotency_keys_get_the_owner_of_their_job_and_lose_it_again(database_url):
    engine = create_engine(sqlalchemy_url(database_url), poolclass=NullPool)
    schema.downgrade(database_url, BEFORE)
    with engine.begin() as connection:
        for statement in ROWS.split(";\n"):
            connection.execute(text(statement))
    schema.upgrade(database_url)
    with engine.begin() as connection:
        found = connection.execute(text("SELECT owner, key = 'here' FROM idempotency_keys ORDER BY owner")).all()
        assert [tuple(row) for row in found] == [("", True), ("ci", False)]
        connection.execute(
            text(
                "INSERT INTO idempotency_keys (owner, key, body_hash, job_id)"
                " SELECT 'other', key, 'c', job_id FROM idempotency_keys"
            )
        )
    schema.downgrade(database_url, BEFORE)
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM idempotency_keys")) == 2
    schema.upgrade(database_url)
    schema.check(database_url)
