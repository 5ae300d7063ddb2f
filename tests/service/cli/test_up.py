"""The main job with everything real; what `serve` refuses before it serves, and https."""

import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psycopg
import pytest
from fleet import free_port
from tls_proxy import certificate_of
from waiting import PATIENCE_S, until

from tilewright.service.cli.commands.serve import bound
from tilewright.service.cli.failure import CommandError
from tilewright.service.client import Client
from tilewright.service.operations import registry
from tilewright.service.operations.access import keys
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.settings import settings
from tilewright.service.store.embedded import EmbeddedPostgres
from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.errors import NoCompilerError

CLI = [sys.executable, "-m", "tilewright.service.cli"]
TUNE = ["--tune", "gemm", "--shape", "m=16,n=24,k=8", "--trials", "3"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Environment of a machine on which Tilewright never ran; its database is stopped in the end."""
    try:
        find_compiler()
    except NoCompilerError:
        pytest.skip("the CPU device needs a C++ compiler")
    data = tmp_path_factory.mktemp("machine")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TILEWRIGHT_")}
    yield environment | {
        "TILEWRIGHT_DATA_DIR": str(data),
        "TILEWRIGHT_CACHE_DIR": str(data / "cache"),
        "TILEWRIGHT_PORT": str(free_port()),
        "CUDA_VISIBLE_DEVICES": "",
    }
    EmbeddedPostgres(data / "postgres").stop()


def url_of(machine):
    return f"http://127.0.0.1:{machine['TILEWRIGHT_PORT']}"


def processes_of(machine):
    """Processes that still work for this machine, by their environment."""
    wanted = f"TILEWRIGHT_DATA_DIR={machine['TILEWRIGHT_DATA_DIR']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # One may end while it is looked at, and others belong to other users.
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes())
    return found


def tilewright(machine, *arguments):
    """A finished command."""
    return subprocess.run([*CLI, *arguments], env=machine, capture_output=True, text=True, timeout=250, check=False)


@contextmanager
def running(machine, *arguments):
    """`tilewright up` until the block ends; the block gets the process once the API is ready."""
    process = subprocess.Popen(
        [*CLI, "up", *arguments], env=machine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        with Client(url_of(machine)) as client:
            until(lambda: client.is_ready() or process.poll() is not None)
            assert process.poll() is None, process.communicate()
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.in_turn(2)  # the longest test, sixteen processes; what they do is tried without them
def test_up_once_tunes_and_leaves_nothing_and_a_second_up_tunes_nothing_and_answers_the_printed_curl_line(machine):
    once = tilewright(machine, "up", *TUNE, "--once")
    assert once.returncode == 0, once.stderr
    assert once.stdout.startswith("gemm m=16,n=24,k=8 float32 on cpu:")
    assert re.search(r"^time +\S+ ms", once.stdout, re.MULTILINE)
    assert "times as fast as the default configuration" in once.stdout
    assert "times as fast as the slowest" in once.stdout
    assert "3 of 3 trials" in once.stderr
    assert processes_of(machine) == []

    (line,) = (line for line in once.stdout.splitlines() if line.startswith("query it"))
    address = shlex.split(line)[-1]
    with running(machine, *TUNE) as process:
        while (line := process.stderr.readline()).startswith(("starting", "ready")):
            pass
        assert line == "gemm m=16,n=24,k=8 float32 has been tuned already; --again tunes it anew\n"
        assert process.stdout.readline() == once.stdout.splitlines(keepends=True)[0]
        answer = httpx.get(address, trust_env=False, timeout=PATIENCE_S).json()
        listed = tilewright(machine, "jobs", "--json")
        third = tilewright(machine, "up")
    assert answer["match"] == "exact"
    assert answer["time_ms"] > 0
    assert [job["state"] for job in json.loads(listed.stdout)["items"]] == ["done"]
    assert third.returncode == 1
    assert "Is Tilewright running already?" in third.stderr
    assert process.returncode == 0  # SIGTERM is no failure either
    assert processes_of(machine) == []


@pytest.mark.faults
def test_an_up_whose_worker_finds_the_device_taken_is_never_ready(machine):
    with running(machine):
        other = tilewright(machine | {"TILEWRIGHT_PORT": str(free_port())}, "up")
    assert (other.returncode, "ready" in other.stderr) == (1, False)
    assert "holds the device" in other.stderr


@pytest.mark.faults
def test_a_killed_up_leaves_no_postgresql_behind(machine):
    with running(machine) as process:
        process.kill()
    until(lambda: processes_of(machine) == [])


@pytest.mark.faults
def test_ctrl_c_is_no_failure_and_stops_all_even_a_postgresql_of_killed_users(machine):
    with running(machine) as process:
        programs = [int(path.name) for path in Path("/proc").glob("[0-9]*") if is_program_of(machine, path)]
        for pid in (process.pid, *programs):  # up first, so that it starts none of them again
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    server = EmbeddedPostgres(Path(machine["TILEWRIGHT_DATA_DIR"]) / "postgres")
    assert server.running()
    with running(machine) as process:
        first_line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    assert first_line == f"serving on {url_of(machine)} until Ctrl-C\n"
    assert process.returncode == 0
    assert processes_of(machine) == []


def is_program_of(machine, process):
    """Whether it is an interpreter that works for this machine."""
    with suppress(OSError):
        mine = f"TILEWRIGHT_DATA_DIR={machine['TILEWRIGHT_DATA_DIR']}".encode() in (process / "environ").read_bytes()
        return mine and b"tilewright" in (process / "cmdline").read_bytes()
    return False


@pytest.mark.faults
def test_a_command_leaves_no_postgresql_running_unless_it_hands_out_the_address(machine):
    assert tilewright(machine, "devices").returncode == 0
    assert processes_of(machine) == []
    told = tilewright(machine, "db", "url")
    assert "tilewright db stop" in told.stderr
    assert tilewright(machine, "devices").returncode == 0
    with psycopg.connect(told.stdout.strip()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with running(machine):
        refused = tilewright(machine, "db", "stop")
    assert (refused.returncode, "in use" in refused.stderr) == (1, True)
    stopped = tilewright(machine, "db", "stop", "--json")
    assert json.loads(stopped.stdout) == {"was_running": True}
    assert processes_of(machine) == []


@pytest.fixture
def folder_of_kernels(local, monkeypatch):
    """A function: names this folder in the settings."""

    def name(path):
        monkeypatch.setenv("TILEWRIGHT_KERNEL_FOLDERS", path)
        settings.cache_clear()
        registry.watched_catalogue.cache_clear()

    yield name
    registry.watched_catalogue.cache_clear()


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("host", ["999.1.1.1", "192.0.2.1"])
def test_an_address_that_is_not_of_this_machine_is_refused_by_name(run, host, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_HOST", "127.0.0.1")  # so that what --host sets is taken back
    ran = run("serve", "--host", host)
    assert ran.status == 1
    assert f"cannot listen on {host}: it is not an address of this machine" in ran.err
    assert "TILEWRIGHT_HOST" in ran.err


def test_localhost_is_listened_to_at_each_of_its_addresses_that_there_is(monkeypatch):
    absent = (socket.AF_INET6, "2001:db8::1")  # as ::1 is where IPv6 is switched off
    named = [absent, (socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.0.0.2")]
    port = free_port()
    found = [(family, socket.SOCK_STREAM, 0, "", (address, port)) for family, address in named]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    first, second = made = bound("localhost", port)
    with first, second:
        assert [one.getsockname() for one in made] == [("127.0.0.1", port), ("127.0.0.2", port)]
    with socket.create_server(("127.0.0.2", port)), pytest.raises(CommandError, match="Is Tilewright running already"):
        bound("localhost", port)
    socket.create_server(("127.0.0.1", port)).close()  # what was bound before that is free again


def test_a_folder_of_kernels_that_is_not_there_ends_it(run, folder_of_kernels):
    folder_of_kernels("/nowhere")
    ran = run("serve")
    assert ran.status == 1
    assert "/nowhere/declaration.py: there is no such file" in ran.err


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_certificate_that_cannot_be_used_ends_it(run, command, monkeypatch, tmp_path):
    (tmp_path / "empty.pem").touch()
    monkeypatch.setenv("TILEWRIGHT_TLS_CERTIFICATE", str(tmp_path / "empty.pem"))
    settings.cache_clear()
    ran = run(command)
    assert ran.status == 1
    assert "TILEWRIGHT_TLS_CERTIFICATE" in ran.err


@pytest.mark.usefixtures("local")
def test_a_provider_without_the_library_for_it_ends_it_and_says_what_to_install(run, monkeypatch):
    given = {"OIDC_ISSUER": "https://login.example", "OIDC_CLIENT_ID": "tilewright", "OIDC_RIGHTS": "*=read"}
    for name, value in (given | {"REQUIRE_KEYS": "true", "PUBLIC_URL": "https://tiles.example"}).items():
        monkeypatch.setenv(f"TILEWRIGHT_{name}", value)
    settings.cache_clear()
    monkeypatch.setattr("tilewright.service.cli.commands.serve.find_spec", lambda _name: None)
    ran = run("serve")
    assert (ran.status, "pip install 'tilewright[service,oidc]'" in ran.err) == (1, True)


@pytest.mark.in_turn(3)
def test_with_a_certificate_it_speaks_https_and_its_cookies_are_for_https(fleet, tmp_path):
    certificate, port = certificate_of("localhost", tmp_path), free_port()
    fleet.start_api(port, TILEWRIGHT_TLS_CERTIFICATE=str(certificate), TILEWRIGHT_REQUIRE_KEYS="true")
    trusting = ssl.create_default_context(cafile=certificate)
    with httpx.Client(base_url=f"https://localhost:{port}", verify=trusting) as client:

        def is_ready():
            try:
                return client.get("/ready").status_code == 200
            except httpx.TransportError:
                return False

        fleet.until(is_ready)
        with fleet.session() as session:
            token = keys.create_key(session, KeyRequest(name="ci")).token
        origin = {"Origin": f"https://localhost:{port}"}
        signed_in = client.post("/v1/session", json={"key": token}, headers=origin)
        assert signed_in.headers["set-cookie"].startswith("__Host-tilewright_session=")
        assert client.get("/v1/kernels").status_code == 200, "by the cookie"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{port}/health")
    assert not list(fleet.folder.glob("api-*.address")), "launchers could not verify it by its address"
