"""The schema and its upgrades: rows of earlier versions keep what they mean."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from factories import SHAPE
from found import find_best
from sqlalchemy import create_engine, inspect, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import NullPool

from tilewright.kernels.sources.identity import code_hash, text_hash
from tilewright.kernels.space import Configuration
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations import registry
from tilewright.service.operations.caller import DEFAULT_PROJECT_ID
from tilewright.service.operations.jobs.record_trial import configuration_hash, hash_with_source
from tilewright.service.operations.jobs.turns import engine_priority
from tilewright.service.operations.staleness.standing import source_key, source_keys
from tilewright.service.store import models, schema
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


@pytest.mark.in_turn(2)
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
    schema.upgrade(empty_database_url, VERSION_0_1_0)
    engine = engine_of(empty_database_url)
    add = text("INSERT INTO procrastinate_jobs (queue_name, task_name, priority) VALUES ('q', 'tune', :priority)")
    with engine.begin() as connection:
        connection.execute(add, [{"priority": priority} for priority in (0, 5, 9)])
    schema.upgrade(empty_database_url)
    with engine.begin() as connection:
        found = connection.scalars(text("SELECT priority FROM procrastinate_jobs ORDER BY id")).all()
    assert found == [engine_priority(p, 0) for p in (0, 5, 9)]


def test_keys_belong_to_the_default_project_also_those_that_the_version_before_adds(empty_database_url):
    schema.upgrade(empty_database_url, VERSION_0_1_0)
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


take_hashes_anew = import_module("tilewright.migrations.versions.0017_code_identity").take_hashes_anew


def test_a_best_of_the_version_before_stays_fresh(rows):
    best = rows.best()
    trial = rows.trial_of(best)
    kernel = registry.catalogue().get("gemm")
    source = rows.session.get_one(models.KernelVariant, trial.kernel_variant_id)
    study = rows.session.get_one(models.Study, trial.study_id)
    rows.session.execute(
        models.KernelVariant.__table__.delete().where(
            models.KernelVariant.id != source.id, models.KernelVariant.name == source.name
        )
    )
    then = text_hash(kernel.source(source.name))
    source.source_hash = then
    declared = Configuration.from_json(trial.configuration)
    trial.configuration_hash = hash_with_source(then, declared)
    study.space_by_source = {source_key(source.name, then): 7, "other:" + "0" * 64: 3}
    rows.session.flush()
    assert find_best(rows.session, "gemm", "nvidia-h200", SHAPE).stale

    take_hashes_anew(rows.session.connection())
    rows.session.expire_all()

    assert source.source_hash == kernel.source_hash(source.name) == code_hash(source.source)
    assert trial.configuration_hash == configuration_hash(kernel, declared)
    assert study.space_by_source == {source_keys(kernel)[source.name]: 7, "other:" + "0" * 64: 3}
    assert not find_best(rows.session, "gemm", "nvidia-h200", SHAPE).stale


def test_of_two_states_that_differ_in_comments_the_newest_counts(rows):
    rows.device()
    kernel_id = rows.session.scalars(select(models.Kernel.id).where(models.Kernel.name == "gemm")).one()
    texts = ["int a;", "int a; // b", "int c;"]
    added = [
        models.KernelVariant(kernel_id=kernel_id, name="made", source_hash=text_hash(text), source=text)
        for text in texts
    ]
    rows.session.add_all(added)
    rows.session.flush()
    take_hashes_anew(rows.session.connection())
    rows.session.expire_all()
    assert [one.source_hash for one in added] == [text_hash("int a;"), code_hash("int a;"), code_hash("int c;")]
