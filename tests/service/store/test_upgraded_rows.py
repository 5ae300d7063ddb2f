"""Rows of earlier versions after an upgrade: owners of idempotency keys, the order of queues, projects of keys."""

from __future__ import annotations

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tilewright.service.operations.caller import DEFAULT_PROJECT_ID
from tilewright.service.operations.jobs.turns import engine_priority
from tilewright.service.store import schema
from tilewright.service.store.session import sqlalchemy_url

VERSION_0_1_0 = "0009"
ROWS_OF_0_1_0 = """
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


def engine_of(url):
    return create_engine(sqlalchemy_url(url), poolclass=NullPool)


def test_idempotency_keys_of_0_1_0_get_the_owner_of_their_job(empty_database_url):
    schema.upgrade(empty_database_url, VERSION_0_1_0)
    engine = engine_of(empty_database_url)
    with engine.begin() as connection:
        for statement in ROWS_OF_0_1_0.split(";\n"):
            connection.execute(text(statement))
    schema.upgrade(empty_database_url)
    with engine.begin() as connection:
        found = connection.execute(text("SELECT owner, key = 'here' FROM idempotency_keys ORDER BY owner")).all()
        assert [tuple(row) for row in found] == [("", True), ("ci", False)]
        connection.execute(
            text(
                "INSERT INTO idempotency_keys (owner, key, body_hash, job_id)"
                " SELECT 'other', key, 'c', job_id FROM idempotency_keys"
            )
        )
    schema.check(empty_database_url)


def test_entries_of_before_there_were_turns_keep_their_place(empty_database_url):
    schema.upgrade(empty_database_url, "0021")
    engine = engine_of(empty_database_url)
    add = text("INSERT INTO procrastinate_jobs (queue_name, task_name, priority) VALUES ('q', 'tune', :priority)")
    with engine.begin() as connection:
        connection.execute(add, [{"priority": priority} for priority in (0, 5, 9)])
    schema.upgrade(empty_database_url)
    with engine.begin() as connection:
        found = connection.scalars(text("SELECT priority FROM procrastinate_jobs ORDER BY id")).all()
    assert found == [engine_priority(p, 0) for p in (0, 5, 9)]


def test_keys_belong_to_the_default_project_also_those_that_the_version_before_adds(empty_database_url):
    schema.upgrade(empty_database_url, "0024")
    engine = engine_of(empty_database_url)
    add = text(
        "INSERT INTO api_keys (id, name, token_hash, prefix, scope)"
        " VALUES (gen_random_uuid(), :name, :name, 'tw_', 'tune')"
    )
    with engine.begin() as connection:
        connection.execute(add, {"name": "before"})
    schema.upgrade(empty_database_url)
    with engine.begin() as connection:
        connection.execute(add, {"name": "older program"})
        projects = text("SELECT k.name, p.name, p.id FROM api_keys k JOIN projects p ON p.id = k.project_id ORDER BY 1")
        default = ("default", DEFAULT_PROJECT_ID)
        assert connection.execute(projects).all() == [("before", *default), ("older program", *default)]
