from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import NullPool

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.store import schema
from tilewright.service.store.models import Base
from tilewright.service.store.session import sqlalchemy_url


def tables(url: str) -> set[str]:
    engine = create_engine(sqlalchemy_url(url), poolclass=NullPool)
    return set(inspect(engine).get_table_names())


def test_upgrade_makes_every_table_and_the_engines_too(empty_database_url):
    assert not schema.at_head(empty_database_url)
    schema.upgrade(empty_database_url)
    assert set(Base.metadata.tables) | {"procrastinate_jobs", schema.VERSION_TABLE} <= tables(empty_database_url)
    assert schema.at_head(empty_database_url)


def test_the_names_of_files_tell_the_one_head_that_the_revisions_have():
    revisions = ScriptDirectory.from_config(schema._config(None))
    assert revisions.get_heads() == [schema.head()]
    assert all(Path(one.path).name.startswith(f"{one.revision}_") for one in revisions.walk_revisions())


def test_importing_what_asks_for_the_head_does_not_import_alembic():
    code = "import sys, tilewright.service.app, tilewright.service.worker.main; sys.exit('alembic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_last_step_is_reverted_and_applied_again(empty_database_url):
    schema.upgrade(empty_database_url)
    schema.downgrade_last(empty_database_url)
    assert not schema.at_head(empty_database_url)
    schema.upgrade(empty_database_url)
    schema.check(empty_database_url)


def test_revisions_and_models_say_the_same(database_url):
    schema.check(database_url)


def catalogue(url: str) -> dict[str, str]:
    """What PostgreSQL says of our tables' columns, constraints and indexes."""
    asked = """
        SELECT conrelid::regclass::text AS of, 'constraint ' || conname, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conrelid <> 0
        UNION ALL SELECT tablename, 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL SELECT table_name, 'column ' || column_name,
            concat_ws(' ', udt_name, character_maximum_length, is_nullable, column_default, is_identity)
        FROM information_schema.columns WHERE table_schema = 'public'"""
    with create_engine(sqlalchemy_url(url), poolclass=NullPool).connect() as connection:
        rows = connection.execute(text(asked)).all()
    return {f"{table} {name}": definition for table, name, definition in rows if table in Base.metadata.tables}


def test_models_make_the_tables_of_the_revisions(empty_database_url, database_url):
    Base.metadata.create_all(create_engine(sqlalchemy_url(empty_database_url), poolclass=NullPool))
    assert catalogue(empty_database_url) == catalogue(database_url)


def test_a_difference_is_found(database_url):
    engine = create_engine(sqlalchemy_url(database_url), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE trials DROP COLUMN registers"))
    with pytest.raises(Exception, match="registers"):
        schema.check(database_url)


def test_processes_that_upgrade_at_once_take_turns(empty_database_url):
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(schema.upgrade, [empty_database_url] * 3))
    assert schema.at_head(empty_database_url)


@pytest.mark.parametrize("time_ms", ["NaN", "Infinity", "0", "-1"])
def test_what_is_no_time_is_refused(session, time_ms):
    with pytest.raises(IntegrityError, match="ck_trials_time_is_a_time"):
        session.execute(
            text(
                "INSERT INTO trials (study_id, number, job_id, epoch, job_revision, kernel_variant_id, configuration,"
                " configuration_hash, outcome, ranking_l2, time_ms)"
                " VALUES (1, 0, gen_random_uuid(), 1, 1, 1, '{}', 'x', 'measured', 'warm', CAST(:time AS float8))"
            ),
            {"time": time_ms},
        )


def test_a_state_that_does_not_exist_is_refused(session):
    with pytest.raises(IntegrityError, match="ck_devices_state"):
        session.execute(text("INSERT INTO devices (uuid, model_id, host, state) VALUES ('u', 1, 'h', 'melted')"))


def test_a_database_that_is_away_is_named_so():
    with pytest.raises(DatabaseUnavailableError):
        schema.at_head("postgresql://postgres@/nowhere?host=/nonexistent")
