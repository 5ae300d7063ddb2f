"""Entries of the engine from before there were turns stay in their order, before and after those that are added."""

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tilewright.service.operations.jobs.turns import engine_priority
from tilewright.service.store import schema
from tilewright.service.store.session import sqlalchemy_url

ADD = text("INSERT INTO procrastinate_jobs (queue_name, task_name, priority) VALUES ('q', 'tune', :priority)")
PRIORITIES = text("SELECT priority FROM procrastinate_jobs ORDER BY id")


def test_entries_of_before_keep_their_place(empty_database_url):
    schema.upgrade(empty_database_url, "0021")
    engine = create_engine(sqlalchemy_url(empty_database_url), poolclass=NullPool)
    with engine.begin() as connection:
        for priority in (0, 5, 9):
            connection.execute(ADD, {"priority": priority})
    schema.upgrade(empty_database_url)
    with engine.begin() as connection:
        assert connection.scalars(PRIORITIES).all() == [engine_priority(p, 0) for p in (0, 5, 9)]
        connection.execute(text("UPDATE procrastinate_jobs SET priority = priority - 7"))  # of the seventh turn
    schema.downgrade(empty_database_url, "0021")
    with engine.begin() as connection:
        assert connection.scalars(PRIORITIES).all() == [0, 5, 9]
