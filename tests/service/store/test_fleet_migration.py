"""Revision 0006 on the rows of a service at work: priorities keep their order in a narrower range."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import NullPool

from tilewright.service.store import schema
from tilewright.service.store.session import sqlalchemy_url

BEFORE = "0005"
JOB = (
    "INSERT INTO tuning_jobs (id, problem_id, queue, budget_trials, priority, state)"
    " VALUES (gen_random_uuid(), 1, 'q', 1, :priority, 'done')"
)


@pytest.fixture
def run(database_url):
    engine = create_engine(sqlalchemy_url(database_url), poolclass=NullPool)

    def run(statement: str, **values: object) -> list[tuple[object, ...]]:
        with engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    return run


def test_priorities_move_to_zero_to_nine_and_back(database_url, run):
    schema.downgrade(database_url, BEFORE)
    run("INSERT INTO kernels (name, declaration) VALUES ('own', '{}')")
    run(
        "INSERT INTO problems (hash, kernel_id, shape, dtype, options)"
        " SELECT 'h', id, '{}', 'float32', '{}' FROM kernels WHERE name = 'own'"
    )
    for priority in (-100, -1, 0, 3, 100):
        run(JOB.replace(" 1, 'q'", " (SELECT id FROM problems), 'q'"), priority=priority)
    schema.upgrade(database_url)
    assert [row[0] for row in run("SELECT priority FROM tuning_jobs ORDER BY priority")] == [0, 4, 5, 8, 9]
    with pytest.raises(IntegrityError, match="ck_tuning_jobs_priority_is_a_digit"):
        run("UPDATE tuning_jobs SET priority = 10")
    schema.downgrade(database_url, BEFORE)
    assert [row[0] for row in run("SELECT priority FROM tuning_jobs ORDER BY priority")] == [-5, -1, 0, 3, 4]
