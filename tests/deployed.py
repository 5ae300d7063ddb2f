"""A PostgreSQL with the deployment's roles, and the commands that pages tell operators to type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tilewright.service.store.embedded import EmbeddedPostgres, binary

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SQL = DEPLOY / "postgres"
ROLES = ("migrator", "api", "worker")
CLI = (sys.executable, "-m", "tilewright.service.cli")


@dataclass(frozen=True)
class Server:
    """A PostgreSQL that asks our roles for passwords, migrated by one of them."""

    superuser_url: str
    secrets: Path

    @property
    def socket(self) -> str:
        return self.superuser_url.partition("?")[2]

    def url(self, database: str = "tilewright") -> str:
        """Names neither role nor password: both come from the service file."""
        return f"postgresql:///{database}?{self.socket}&service=tilewright"

    def environment(self, role: str, database: str = "tilewright") -> dict[str, str]:
        return {
            "PGSERVICEFILE": str(self.secrets / role),
            "TILEWRIGHT_DATABASE_URL": self.url(database),
            "DATABASE": self.url(database),
            "PATH": f"{binary('psql').parent}:{os.environ['PATH']}",
        }

    def psql(self, file: str, role: str | None = None, database: str = "tilewright", **variables: str) -> None:
        url = self.url(database) if role else self.superuser_url.replace("/tilewright?", f"/{database}?")
        arguments = [f"--set={name}={value}" for name, value in variables.items()]
        command = [binary("psql"), "-X", "-q", *arguments, "-f", SQL / file, url]
        environment = os.environ | (self.environment(role) if role else {})
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def connect(self, role: str, database: str = "tilewright") -> psycopg.Connection[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGSERVICEFILE", str(self.secrets / role))
            return psycopg.connect(self.url(database), autocommit=True)


@contextmanager
def running_server(home: Path, secrets: Path) -> Iterator[Server]:
    """A server set up as the documentation says: roles, passwords, migration, grants."""
    subprocess.run([DEPLOY / "make-secrets.sh", secrets], check=True, capture_output=True)
    postgres = EmbeddedPostgres(home)
    server = Server(postgres.ensure(), secrets)
    try:
        with psycopg.connect(server.superuser_url, autocommit=True) as connection:
            access = Path(connection.execute("SHOW hba_file").fetchone()[0])
            access = access if access.exists() else next(home.rglob("pg_hba.conf"))
            access.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
            connection.execute("SELECT pg_reload_conf()")
        server.psql("roles.sql")
        server.psql("passwords.sql", secrets=str(secrets))
        run_cli(server.environment("migrator"), "db", "upgrade")
        server.psql("grants.sql", role="migrator")
        yield server
    finally:
        postgres.stop()


def run_cli(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run([*CLI, *arguments], env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands_of(document: str, heading: str) -> list[str]:
    """The shell blocks below a heading."""
    section = (ROOT / "docs" / document).read_text().split(f"## {heading}\n", 1)[1]
    section = re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def shell(commands: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-euc", commands],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
