"""The database roles on a real PostgreSQL: what each does, and what none but the migrator may."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from deployed import CLI, DEPLOY, ROLES, ROOT, SQL, Server, running_server
from fleet import TINY, Fleet
from found import find_best
from psycopg import errors
from sqlalchemy.exc import ProgrammingError
from waiting import PATIENCE_S

from tilewright.kernels.problem import Limits, Problem
from tilewright.service.operations import registry
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import ImportOptions
from tilewright.service.operations.fleet.retention import prune_samples
from tilewright.service.operations.jobs.jobs import cancel_job, job
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.registry import devices
from tilewright.service.operations.requests import BudgetRequest, JobRequest, ScheduleProblem, ScheduleRequest
from tilewright.service.operations.schedules.firing import fire_due, forget_old_fires
from tilewright.service.operations.schedules.schedules import create_schedule, delete_schedule, set_enabled
from tilewright.service.settings import settings
from tilewright.service.store import schema
from tilewright.service.store import session as store_session
from tilewright.service.store.models import Base
from tilewright.service.store.session import session_scope
from tilewright.service.worker.maintenance import do_chores
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.device import DeviceModel, Environment


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("postgres"), tmp_path_factory.mktemp("secrets")) as server:
        yield server


@pytest.fixture
def become(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes this process one of the roles, as a program of that role is: by its service file."""

    def become(role: str) -> None:
        monkeypatch.setenv("PGSERVICEFILE", str(server.secrets / role))
        store_session.configure(server.url())

    yield become
    store_session.configure(None)


def test_every_role_logs_in_with_its_own_file(server):
    for role in ROLES:
        with server.connect(role) as connection:
            assert connection.execute("SELECT current_user").fetchone() == (f"tilewright_{role}",)


def test_a_role_without_its_password_is_refused(server):
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://tilewright_migrator@/tilewright?{server.socket}")


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("role", ["api", "worker"])
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE trials ADD COLUMN extra integer",
        "DROP TABLE tuning_jobs",
        "TRUNCATE trials CASCADE",
        "CREATE TABLE mine (id integer)",
        "CREATE TEMPORARY TABLE mine (id integer)",
        "CREATE SCHEMA mine",
        "CREATE INDEX ON trials (number)",
        "CREATE RULE mine AS ON INSERT TO trials DO INSTEAD NOTHING",
        "DELETE FROM trials",
        "UPDATE trials SET log = ''",
        "UPDATE trials SET time_ms = 1",
        "DELETE FROM audit_entries",
        "DELETE FROM tuning_jobs",
        "DELETE FROM best_configurations",
        "UPDATE tilewright_version SET version_num = ''",
        "DROP FUNCTION procrastinate_notify_queue_job_inserted_v1 CASCADE",
        "CREATE ROLE mine",
        "SET ROLE tilewright_migrator",
    ],
)
def test_a_program_s_role_changes_no_table_and_rewrites_no_trial(server, role, statement):
    with server.connect(role) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(statement)


def test_devices_are_written_by_workers_only(server):
    with server.connect("api") as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute("INSERT INTO devices DEFAULT VALUES")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE device_models SET name = ''",
        "UPDATE environments SET origin = NULL",
        "UPDATE kernels SET declaration = '{}'",
        "UPDATE kernel_variants SET source = ''",
        "UPDATE studies SET environment_id = 1",
    ],
)
def test_an_api_adds_what_it_imports_and_changes_nothing_that_is_there(server, statement):
    with server.connect("api") as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(statement)


@pytest.mark.in_turn(2)
def test_an_api_imports_with_what_it_may(server, become):
    """Twice, the second time a faster best, which takes the place of the first."""
    become("api")
    problem = registry.catalogue().get("gemm").problem(dict.fromkeys("mnk", 96))
    for time_ms in (2.0, 1.0):
        body = json.dumps(_exported(problem, time_ms)).encode()
        answer = import_document(body, ImportOptions(origin="lab-7"))
        assert (answer.best, find(problem)) == (1, ("exact", time_ms))


def find(problem: Problem) -> tuple[str, float | None]:
    with session_scope() as session:
        best = find_best(session, "gemm", "imported-gpu", problem.shape)
    return best.match, best.time_ms


def _exported(problem: Problem, time_ms: float) -> dict[str, Any]:
    """A document with one verified result, as another installation writes it."""
    limits = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=1 << 30)
    model = DeviceModel("imported-gpu", "Imported GPU", "cuda", limits, 1 << 20, {}, None)
    trial = {
        "variant": "tiled",
        "configuration": {"TILE_WIDTH": 16},
        "source_hash": registry.catalogue().get("gemm").source_hash("tiled"),
        "outcome": "measured",
        "l2": "warm",
        "warm_ms": time_ms,
        "bound_ratio": 0.5,
    }
    figures = dict.fromkeys(("default_ms", "slowest_ms", "library"))
    best = {"trial": 0, "time_ms": time_ms, "ci_ms": [time_ms, time_ms], "ties": 0, "bound_ratio": 0.5} | figures
    environment = Environment("580.1", "13.0", "nvrtc", "13.0", "PyCUDA 2026.1", "default")
    study = {
        "problem": problem.as_json(),
        "device_model": model.slug,
        "environment": asdict(environment),
        "space_size": 10,
        "trials": [trial],
        "best": best | {"verified_at": "2026-11-21T12:00:00Z"},
    }
    described = asdict(model) | {"limits": asdict(limits) | {"features": sorted(limits.features)}}
    head = {"format": "tilewright/1", "made_by": "a test", "created_at": "2026-11-21T12:00:00Z"}
    return head | {"device_models": [described], "studies": [study]}


def test_a_worker_makes_messages_of_webhooks_and_never_sees_a_secret(server):
    with server.connect("worker") as connection:
        assert connection.execute("SELECT id, states FROM webhooks").fetchall() == []
        connection.execute("DELETE FROM webhook_deliveries WHERE false")
    for statement in ("SELECT secret FROM webhooks", "SELECT url FROM webhooks", "INSERT INTO webhooks DEFAULT VALUES"):
        with server.connect("worker") as connection, pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement)


def test_an_api_drains_a_device_and_changes_nothing_else_of_it(server):
    with server.connect("api") as connection:
        connection.execute("UPDATE devices SET drain_requested_at = now() WHERE false")
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("UPDATE devices SET state = 'ready' WHERE false")


def test_every_table_has_its_line_in_the_grants():
    named = set(re.findall(r"^  \('(\w+)',", (SQL / "grants.sql").read_text(), re.MULTILINE))
    assert set(Base.metadata.tables) | {schema.VERSION_TABLE} <= named


def test_a_table_of_a_later_migration_can_be_read_at_once_and_written_by_nobody_else(server):
    with server.connect("migrator") as owner:
        owner.execute("CREATE TABLE later (id serial)")
        try:
            for role in ("api", "worker"):
                with server.connect(role) as connection:
                    assert connection.execute("SELECT count(*) FROM later").fetchone() == (0,)
                    with pytest.raises(errors.InsufficientPrivilege):
                        connection.execute("INSERT INTO later DEFAULT VALUES")
        finally:
            owner.execute("DROP TABLE later")


def test_grants_can_be_repeated_and_take_back_what_is_too_much(server):
    with server.connect("migrator") as owner, server.connect("api") as connection:
        owner.execute("GRANT DELETE ON trials TO tilewright_api")
        connection.execute("DELETE FROM trials WHERE false")
        server.psql("grants.sql", role="migrator")
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("DELETE FROM trials WHERE false")


def test_a_database_that_the_superuser_migrated_is_handed_over(server):
    with psycopg.connect(server.superuser_url, autocommit=True) as superuser:
        superuser.execute("CREATE DATABASE earlier")
        try:
            schema.upgrade(server.superuser_url.replace("/tilewright?", "/earlier?"))
            for file, role in (("roles.sql", None), ("grants.sql", "migrator")):
                server.psql(file, role, "earlier")
            with server.connect("migrator", "earlier") as owner:
                owner.execute("ALTER TABLE trials ADD COLUMN extra integer")
                owner.execute("ALTER TYPE procrastinate_job_status ADD VALUE 'extra'")
                owner.execute("DROP TABLE best_configurations, procrastinate_jobs CASCADE")
                strangers = owner.execute(
                    "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace "
                    "AND pg_get_userbyid(relowner) <> 'tilewright_migrator'"
                )
                assert strangers.fetchall() == []
        finally:
            superuser.execute("DROP DATABASE earlier WITH (FORCE)")


@pytest.mark.in_turn(2)
def test_api_and_worker_do_their_work_with_what_they_may(server, become, tmp_path):
    """A job from request to best configuration, as in a fleet; the health check says what it sees meanwhile."""
    environment = server.environment("worker") | {"TILEWRIGHT_DATA_DIR": str(tmp_path), "TILEWRIGHT_HEARTBEAT_S": "0.5"}
    fleet = Fleet(server.superuser_url, tmp_path)
    assert "never started" in check_health(environment)
    with (tmp_path / "worker.log").open("wb") as log:
        command = [*CLI, "worker", "--device", "cpu"]
        fleet.workers.append(subprocess.Popen(command, env=os.environ | environment, stderr=log))
    try:
        fleet.wait_for_device()
        fleet.until(lambda: check_health(environment) == "")
        become("api")
        with session_scope() as session:
            model = next(one.model for one in devices(session) if one.uuid == CpuDevice().uuid)
        wanted = JobRequest(
            kernel="gemm",
            shape=TINY,
            device_model=model,
            variants=["naive"],
            budget=BudgetRequest(trials=2),
            sampler="random",
        )
        with session_scope() as session:
            job_id = request_job(session, wanted, idempotency_key="once")[0].id
        fleet.wait_for_state(job_id, "done")
        with session_scope() as session:
            assert job(session, job_id).trials_done == 2
            assert find_best(session, "gemm", model, TINY, "float32", {}).match == "exact"
    finally:
        fleet.workers[0].terminate()
        assert fleet.workers[0].wait(PATIENCE_S) == 0, (tmp_path / "worker.log").read_text()
    with session_scope() as session:
        never = request_job(session, wanted.model_copy(update={"seed": 1}))[0].id
        assert cancel_job(session, never).state == "cancelled"


@pytest.mark.parametrize("role", ["api", "worker"])
def test_either_may_do_the_chores(server, become, role, monkeypatch):
    """A job whose worker fell silent, and one that the engine forgot, are put right by either role."""
    monkeypatch.setattr("tilewright.service.worker.maintenance.is_database_new", lambda _session: False)
    with psycopg.connect(server.superuser_url, autocommit=True) as superuser:
        worker = superuser.execute(
            "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '1 day') RETURNING id"
        ).fetchone()[0]
        entry = superuser.execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args, status, worker_id) "
            "VALUES ('model:none', 'tune', '{}', 'doing', %s) RETURNING id",
            (worker,),
        ).fetchone()[0]
        become(role)
        with session_scope() as session:
            assert prune_samples(session, timedelta(days=1)).trials == 0
        assert do_chores()
        found = superuser.execute("SELECT status FROM procrastinate_jobs WHERE id = %s", (entry,)).fetchone()
        assert found == ("todo",)
        superuser.execute("DELETE FROM procrastinate_jobs WHERE id = %s", (entry,))


IDLE = DeviceModel("cpu:idle", "Idle", "cpu", Limits((0, 0), 1, 1 << 30, features=frozenset()), 1 << 20, {}, None)


def test_schedules_are_made_by_the_api_and_fired_by_either(server, become):
    with psycopg.connect(server.superuser_url, autocommit=True) as superuser:
        become("worker")
        with session_scope() as session:
            registry.register_kernels(session, registry.catalogue())
            registry.register_device(session, IDLE, "CPU-idle", "elsewhere", 0, Environment("", "", "g++", "", "", ""))
        become("api")
        wanted = ScheduleRequest(
            name="roles",
            cron="* * * * * *",
            problems=[ScheduleProblem(kernel="gemm", shape=TINY)],
            device_model="cpu:idle",
            variants=["naive"],
        )
        with session_scope() as session:
            made = create_schedule(session, wanted)
        for role in ("api", "worker"):
            become(role)
            superuser.execute("UPDATE schedules SET next_at = now() - interval '2 seconds' WHERE id = %s", (made.id,))
            with session_scope() as session:
                assert fire_due(session) > 0
                forget_old_fires(session)
        become("api")
        with session_scope() as session:
            set_enabled(session, made.id, enabled=False)
            delete_schedule(session, made.id)
    become("worker")
    with pytest.raises(ProgrammingError, match="permission denied"), session_scope() as session:
        create_schedule(session, wanted)


def check_health(environment: dict[str, str]) -> str:
    """What the worker's health check says of the CPU device; nothing where all is well."""
    command = [sys.executable, DEPLOY / "worker_health.py", "cpu"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


def test_secrets_differ_and_stay_when_made_again(tmp_path):
    folder = tmp_path / "new"
    made = []
    for _ in range(2):
        subprocess.run([DEPLOY / "make-secrets.sh", folder], check=True, capture_output=True)
        made.append({path.name: path.read_text() for path in folder.iterdir()})
    assert made[0] == made[1]
    assert set(made[0]) == {"superuser", *ROLES}
    assert len(set(re.findall(r"[0-9a-f]{48}", " ".join(made[0].values())))) == 1 + len(ROLES)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_the_addresses_in_compose_are_understood_with_their_service_files(compose, server, monkeypatch):
    """Role and password come from the file; host, port and database from the address, its variables filled in."""
    for name in ("migrate", "api", "worker"):
        environment = compose["services"][name]["environment"]
        url = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", environment["TILEWRIGHT_DATABASE_URL"])
        role = Path(environment["PGSERVICEFILE"]).name
        monkeypatch.setenv("TILEWRIGHT_DATABASE_URL", url)
        settings.cache_clear()
        store_session.configure(None)
        assert "service=tilewright" in store_session.database_url()
        # The same address, sent to the socket of the server that is here.
        monkeypatch.setenv("PGSERVICEFILE", str(server.secrets / role))
        local = re.sub(r"//[^/]*/", "///", url) + f"&{server.socket}"
        assert schema.at_head(local)
    settings.cache_clear()
    store_session.configure(None)
