"""The deployment's images, compose file and units, checked without a container engine; backup and restore."""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from deployed import CLI, DEPLOY, ROLES, Server, commands_of, run_cli, running_server, shell
from psycopg import errors

from tilewright.service.cli import main
from tilewright.service.operations.fleet.observed import Observed
from tilewright.service.settings_model import Settings
from tilewright.service.store import schema
from tilewright.service.store.embedded import EmbeddedPostgres

ROOT = Path(__file__).parents[1]
OBSERVED = Observed({}, {}, 0.0, None, {}, {}, 0.0, 0.0, {}, 0, 0)

# --- images, checked without an engine

Instruction = tuple[str, list[str]]


def instructions(name: str) -> list[Instruction]:
    """A Dockerfile's instructions with their words."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / name).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split()[1:]) for line in text.splitlines() if line.strip()]


def copied(name: str) -> list[str]:
    """What a Dockerfile takes from the build's context."""
    words = [words for kind, words in instructions(name) if kind == "COPY"]
    return [source for one in words if not one[0].startswith("--from=") for source in one[:-1]]


DOCKERFILES = ["Dockerfile.api", "Dockerfile.worker"]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_an_image_copies_is_there_and_in_the_context(name):
    allowed = (DEPLOY / f"{name}.dockerignore").read_text().splitlines()
    assert allowed[0] == "*"
    admitted = [line[1:] for line in allowed if line.startswith("!")]
    for source in copied(name):
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in admitted), f"{source} is not admitted"
    for pattern in admitted:
        assert list(ROOT.glob(pattern)), f"{pattern} admits nothing"
        if "*" not in pattern:
            assert pattern in copied(name), f"{pattern} is admitted and not copied"


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_installs_from_locks_with_hashes_and_runs_as_nobody_special(name):
    text = (DEPLOY / name).read_text()
    for lock in re.findall(r"-r (\S+)", text):
        assert lock in copied(name)
        assert "--hash=sha256:" in (ROOT / lock).read_text()
    installs = re.findall(r"pip install (.*)", text)
    assert installs
    for arguments in installs:
        assert "--no-deps" in arguments
        assert (
            "--require-hashes" in arguments or "--no-index" in arguments or arguments.endswith("--no-build-isolation .")
        )
    final = list(itertools.takewhile(lambda one: one[0] != "FROM", reversed(instructions(name))))
    users = [words[0] for kind, words in final if kind == "USER"]
    assert users == ["tilewright"]
    assert not re.search(r"https?://|--(extra-)?index|--trusted-host", text)
    assert "devel" not in text


BY_DIGEST = re.compile(r"[a-z]+:[0-9][0-9A-Za-z.-]+@sha256:[0-9a-f]{64}")


def test_images_of_others_are_named_by_digest(compose):
    bases = {words[0] for name in DOCKERFILES for kind, words in instructions(name) if kind == "ARG"}
    assert len(bases) == 1  # both images stand on the same Python
    assert BY_DIGEST.fullmatch(bases.pop().removeprefix("PYTHON="))
    for name in DOCKERFILES:
        assert {words[0] for kind, words in instructions(name) if kind == "FROM"} == {"${PYTHON}"}
    for service in compose["services"].values():
        assert "build" in service or BY_DIGEST.fullmatch(service["image"])


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_s_command_is_one_of_ours(name):
    found = dict(instructions(name))
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    entry, words = (yaml.safe_load(" ".join(found[kind])) for kind in ("ENTRYPOINT", "CMD"))
    assert entry == ["tilewright"]
    assert entry[0] in scripts
    assert main([*words, "--help"]) == 0


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_copied_files_are_enough_for_the_package(name, tmp_path):
    """The image's own build step, on nothing but what the image copies."""
    for source in copied(name):
        target = tmp_path / "src" / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / source, target)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path / "src", check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    expected = [ROOT / "service/cli/application.py", ROOT / "service/dashboard/pages/overview.py"]
    expected += [*ROOT.glob("kernels/*/*.cu"), *ROOT.glob("migrations/versions/*.py")]
    assert {f"tilewright/{path.relative_to(ROOT)}" for path in expected} <= names


# --- docker-compose.yml


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def seconds(duration: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m)", duration).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


def programs(compose: dict[str, Any]) -> dict[str, Any]:
    return {name: compose["services"][name] for name in ("postgres", "api", "worker")}


def test_compose_keeps_the_three_running_and_watches_them(compose):
    for name, service in programs(compose).items():
        assert service["init"] is True, name
        assert service["restart"] == "always", name
        assert service["healthcheck"]["test"][0] == "CMD", name


def test_compose_gives_no_service_more_than_it_needs(compose):
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        assert "/tmp" in service["tmpfs"], name
        assert service["pids_limit"] > 0, name
        assert service["mem_limit"], name
        image = service["image"]
        assert service.get("user") == ("postgres" if image.startswith("postgres:") else None), name
        assert "restart" in service, name
    writes = [volume.partition(":")[0] for volume in compose["services"]["postgres"]["volumes"] if ":ro" not in volume]
    assert writes == ["postgres"]
    assert [one.partition(":")[0] for one in compose["services"]["postgres"]["tmpfs"]] == [
        "/tmp",
        "/var/run/postgresql",
    ]


def test_compose_gives_a_worker_longer_to_stop_than_its_job_may_take(compose):
    worker = compose["services"]["worker"]
    grace_s = float(worker["environment"]["TILEWRIGHT_STOP_GRACE_S"])
    assert grace_s == Settings.model_fields["stop_grace_s"].default
    assert seconds(worker["stop_grace_period"]) > 2 * grace_s  # once for the job, once for the worker around it


def test_compose_sets_only_settings_that_exist(compose):
    known = {f"TILEWRIGHT_{name.upper()}" for name in Settings.model_fields}
    for service in compose["services"].values():
        ours = {name for name in service.get("environment", {}) if name.startswith("TILEWRIGHT_")}
        assert ours <= known


def test_compose_holds_no_secret_and_gives_each_role_its_own(compose):
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"postgres(ql)?://[^/\s]*:[^/\s@]*@", text)
    assert all("file" in secret for secret in compose["secrets"].values())
    holders = {"migrate": "migrator", "grants": "migrator", "api": "api", "worker": "worker"}
    for name, role in holders.items():
        service = compose["services"][name]
        assert service["secrets"] == [role]
        assert service["environment"]["PGSERVICEFILE"] == f"/run/secrets/{role}"
    assert "password" not in {name.lower() for name in compose["services"]["postgres"]["environment"]}


def test_compose_keeps_the_keyless_api_on_the_host_s_loopback(compose):
    api = compose["services"]["api"]
    assert api["network_mode"] == "host"
    assert "ports" not in api
    assert api["environment"]["TILEWRIGHT_HOST"] == "127.0.0.1"
    (port,) = compose["services"]["postgres"]["ports"]
    assert port.startswith("${TILEWRIGHT_POSTGRES_ADDRESS:-127.0.0.1}:")
    assert not any("ports" in service for name, service in compose["services"].items() if name != "postgres")


def test_compose_starts_nobody_before_tables_and_rights_are_there(compose):
    services = compose["services"]
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["grants"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    for name in ("api", "worker"):
        assert services[name]["depends_on"] == {"grants": {"condition": "service_completed_successfully"}}


def test_compose_names_files_and_commands_that_exist(compose):
    for service in compose["services"].values():
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (ROOT / source).is_file() if source.startswith(".") else source in compose["volumes"]
    assert main([*compose["services"]["migrate"]["command"], "--help"]) == 0
    checked = compose["services"]["worker"]["healthcheck"]["test"][-1]
    copies = [words for kind, words in instructions("Dockerfile.worker") if kind == "COPY"]
    assert ["deploy/worker_health.py", checked.removesuffix("worker_health.py")] in copies


def test_compose_reserves_the_gpus(compose):
    (device,) = compose["services"]["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]


def test_docker_itself_accepts_the_compose_file(tmp_path):
    if shutil.which("docker") is None:
        pytest.skip("no docker client here")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("the docker client here has no compose plugin")
    done = subprocess.run(["docker", "compose", "config", "-q"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- systemd


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def directives(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_of_ours_as_an_ordinary_user_and_comes_back(unit):
    found = directives(unit)
    program, *words = shlex.split(found["ExecStart"][0].replace("%i", "cpu"))
    assert program == "/opt/tilewright/bin/tilewright"
    assert main([*words, "--help"]) == 0
    assert found["User"] == ["tilewright"]
    assert found["Restart"] == ["always"]
    assert int(found["TimeoutStopSec"][0]) > Settings.model_fields["stop_grace_s"].default
    known = {f"TILEWRIGHT_{name.upper()}" for name in Settings.model_fields} | {"TILEWRIGHT_CACHE_DIR", "PGSERVICEFILE"}
    assert {value.partition("=")[0] for value in found["Environment"]} <= known


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_knows_every_word_of_a_unit(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/tilewright/bin/tilewright", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


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
