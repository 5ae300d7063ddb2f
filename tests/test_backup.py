"""Backup and restore, by the very commands that docs/operating.md gives."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator

import psycopg
import pytest
from deployed import CLI, DEPLOY, ROLES, Server, commands_of, run_cli, running_server, shell
from psycopg import errors

from tilewright.service.store import schema
from tilewright.service.store.embedded import EmbeddedPostgres


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("postgres"), tmp_path_factory.mktemp("secrets")) as server:
        yield server


@pytest.mark.in_turn(2)
def test_backup_and_restore_as_the_documentation_says(server, tmp_path):
    backup, restore = commands_of("operating.md", "Backup and restore")[:2]
    with psycopg.connect(server.superuser_url, autocommit=True) as superuser:
        superuser.execute("INSERT INTO kernels (name, declaration) VALUES ('kept', '{}') ON CONFLICT DO NOTHING")
        shell(backup, tmp_path, server.environment("migrator"))
        environment = server.environment("migrator", "restored") | {
            "SUPERUSER": server.superuser_url.replace("/tilewright?", "/postgres?"),
            "RESTORED": server.superuser_url.replace("/tilewright?", "/restored?"),
            "DEPLOY": str(DEPLOY),
        }
        try:
            shell(restore, tmp_path, environment)
            assert run_cli(environment, "db", "current") == "at head\n"
            for role in set(ROLES) - {"compiler"}:  # which reads nothing of this
                with server.connect(role, "restored") as connection:
                    kept = connection.execute("SELECT count(*) FROM kernels WHERE name = 'kept'").fetchone()
                    assert kept == (1,)
            with server.connect("worker", "restored") as connection:
                connection.execute("UPDATE kernels SET updated_at = now() WHERE name = 'kept'")
            with server.connect("api", "restored") as connection, pytest.raises(errors.InsufficientPrivilege):
                connection.execute("DELETE FROM kernels")
        finally:
            superuser.execute("DROP DATABASE IF EXISTS restored WITH (FORCE)")


@pytest.mark.exhaustive
def test_the_embedded_database_is_backed_up_and_restored_as_the_documentation_says(server, tmp_path):
    """From the server of these tests, by its superuser, as an embedded one has no other roles."""
    backup, restore = commands_of("operating.md", "Backup and restore")[2:4]
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, command in (("python", [sys.executable]), ("tilewright", CLI)):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    with psycopg.connect(server.superuser_url, autocommit=True) as superuser:
        superuser.execute("INSERT INTO kernels (name, declaration) VALUES ('carried', '{}') ON CONFLICT DO NOTHING")
    shell(backup, tmp_path, environment | {"TILEWRIGHT_DATABASE_URL": server.superuser_url})
    fresh = EmbeddedPostgres(tmp_path / "data" / "postgres")
    try:
        shell(
            f"{backup.splitlines()[0]}\n{restore}",
            tmp_path,
            environment | {"TILEWRIGHT_DATA_DIR": str(tmp_path / "data")},
        )
        with psycopg.connect(fresh.ensure()) as connection:
            assert connection.execute("SELECT count(*) FROM kernels WHERE name = 'carried'").fetchone() == (1,)
        assert schema.at_head(fresh.ensure())
    finally:
        fresh.stop()
