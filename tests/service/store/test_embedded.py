"""The embedded PostgreSQL survives what laptops do to it. Every test runs the real server."""

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest
from waiting import PATIENCE_S, until

from tilewright.service.store import embedded, embedded_identity
from tilewright.service.store.embedded import EmbeddedPostgres, EmbeddedPostgresError, binary, default_home

STARTER = """
import pathlib, sys, psycopg
from tilewright.service.store.embedded import EmbeddedPostgres
with psycopg.connect(EmbeddedPostgres(pathlib.Path(sys.argv[1])).ensure()) as connection:
    print(connection.execute("SELECT pg_postmaster_start_time()").fetchone()[0])
"""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


@contextlib.contextmanager
def server_in(folder):
    """A server without data, stopped at the end."""
    made = EmbeddedPostgres(folder / "postgres")
    yield made
    made.stop()
    if not made._data.is_relative_to(folder):  # root where namespaces are refused: pytest removes only its own folder
        shutil.rmtree(made._data.parent)


@pytest.fixture
def new_server(tmp_path):
    """One that has never been started."""
    with server_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def used_server(tmp_path_factory):
    """One for all tests that find data: to create them takes a second of CPU time."""
    with server_in(tmp_path_factory.mktemp("used")) as made:
        made.ensure()
        yield made


@pytest.fixture
def server(used_server):
    """It has data and does not run."""
    used_server.stop()
    return used_server


def processes_of(server):
    """Process ids of the server's processes: those that work in its data folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").samefile(server._data):
                found.append(int(entry.name))
    return found


def kill_all(server):
    processes = processes_of(server)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return processes


def ask(server, query):
    with psycopg.connect(server.ensure()) as connection:
        return connection.execute(query).fetchone()[0]


def test_starts_once_and_keeps_its_rows_over_a_restart(server):
    assert not server.running()
    with psycopg.connect(server.ensure()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS x")
    first = ask(server, "SELECT pg_postmaster_start_time()")
    assert ask(server, "SELECT pg_postmaster_start_time()") == first
    server.stop()
    assert not server.running()
    assert processes_of(server) == []
    assert ask(server, "SELECT x FROM kept") == 7


def test_durable_utf8_and_not_on_the_network(server):
    assert ask(server, "SELECT current_setting('fsync') || current_setting('synchronous_commit')") == "onon"
    assert ask(server, "SELECT current_setting('server_encoding')") == "UTF8"
    assert ask(server, "SELECT current_setting('listen_addresses')") == ""
    assert stat.S_IMODE(server._socket_path().parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.home.stat().st_mode) == 0o700


def test_stop_without_a_server_does_nothing(server):
    server.stop()
    server.ensure()
    server.stop()
    server.stop()
    assert not server.running()


def test_server_outlives_the_process_that_started_it(server):
    subprocess.run([sys.executable, "-c", STARTER, server.home], check=True, timeout=60)
    assert server.running()


USER = """
import pathlib, sys
from tilewright.service.store.embedded import EmbeddedPostgres, leave_servers
EmbeddedPostgres(pathlib.Path(sys.argv[1])).enter()
print("in", flush=True)
sys.stdin.readline()
leave_servers()
"""


@contextlib.contextmanager
def user(server):
    """A process that uses the server, and leaves in order at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", USER, server.home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "in\n"
            yield process
        finally:
            process.stdin.close()
            process.wait(60)


def test_the_last_user_to_leave_stops_the_server(server):
    with user(server):
        with user(server):
            assert not server.stop_if_unused()
        assert server.running()
    assert processes_of(server) == []
    assert server.stop_if_unused()


def test_a_killed_user_counts_no_more_and_its_server_is_stopped_by_the_next(server):
    with user(server) as killed:
        killed.kill()
    assert server.running()
    with user(server):
        pass
    assert processes_of(server) == []


def test_a_kept_server_outlives_its_users_until_it_is_stopped(server):
    with user(server):
        server.keep()
    assert server.running()
    assert server.stop_if_unused()
    with user(server):  # another start is not kept
        pass
    assert processes_of(server) == []


def test_many_starters_get_one_server(new_server):
    command = [sys.executable, "-c", STARTER, new_server.home]
    starters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {starter.communicate(timeout=60)[0] for starter in starters}
    assert [starter.returncode for starter in starters] == [0, 0, 0, 0]
    assert len(answers) == 1


def test_acknowledged_rows_survive_kill_9_of_all_processes(server):
    address = server.ensure()
    acknowledged = []

    def write(connection):
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                row = connection.execute("INSERT INTO written DEFAULT VALUES RETURNING id").fetchone()
                acknowledged.append(row[0])

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE written (id bigserial PRIMARY KEY)")
        writer = threading.Thread(target=write, args=(connection,))
        writer.start()
        while len(acknowledged) < 200:
            assert writer.is_alive()
            time.sleep(0.005)
        assert len(kill_all(server)) > 3
        writer.join(PATIENCE_S)
    with psycopg.connect(server.ensure()) as connection:
        kept = {row[0] for row in connection.execute("SELECT id FROM written")}
    assert set(acknowledged) <= kept


def test_starts_again_when_only_the_postmaster_was_killed(server):
    before = ask(server, "SELECT pg_postmaster_start_time()")
    postmaster = int((server._data / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGKILL)
    assert ask(server, "SELECT pg_postmaster_start_time()") > before


def test_a_reused_process_id_neither_blocks_the_start_nor_gets_a_signal(server):
    server.ensure()
    pid_file, lock_file = server._data / "postmaster.pid", server._socket_path().with_name(f"{embedded.SOCKET}.lock")
    kill_all(server)
    with subprocess.Popen(["sleep", "600"]) as innocent:
        try:
            for stale in (pid_file, lock_file):
                lines = stale.read_text().splitlines()
                stale.write_text("\n".join([str(innocent.pid), *lines[1:]]) + "\n")
            server.stop()
            assert innocent.poll() is None
            assert ask(server, "SELECT 1") == 1
            assert innocent.poll() is None
        finally:
            innocent.kill()


def test_a_server_whose_socket_was_swept_away_is_started_anew(server):
    server.ensure()
    with psycopg.connect(server.ensure()) as connection:
        connection.execute("CREATE TABLE found_again AS SELECT 7 AS x")
    server._socket_path().unlink()
    assert ask(server, "SELECT x FROM found_again") == 7


def test_a_server_that_never_ends_its_shutdown_is_started_anew(server, monkeypatch):
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 1.0)
    with psycopg.connect(server.ensure(), autocommit=True) as connection:
        connection.execute("CREATE TABLE long AS SELECT generate_series(1, 1000000) AS x")  # takes a while to recover
        log = server._data.with_name("log")
        seen = log.stat().st_size
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        until(lambda: "reinitializing" in log.read_text()[seen:])
        server._signal(signal.SIGINT)
        until(lambda: server._state() == "stopping")
    assert ask(server, "SELECT count(*) FROM long") == 1_000_000


def test_a_server_without_a_free_connection_counts_as_running(server):
    address = server.ensure()
    with contextlib.ExitStack() as held:
        for _ in range(int(embedded.SERVER_SETTINGS["max_connections"])):
            held.enter_context(psycopg.connect(address))
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(address)
        assert server.running()
        assert server.ensure() == address


def test_an_interrupted_initialisation_is_begun_again(new_server):
    (new_server.home / "data.new").mkdir(parents=True)
    (new_server.home / "data.new" / "PG_VERSION").write_text("18\n")
    assert ask(new_server, "SELECT current_database()") == "tilewright"


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", ["a" * 120, "with space", "comma, quote' and $dollar"])
def test_any_path_will_do(tmp_path, name):
    server = EmbeddedPostgres(tmp_path / name / "postgres")
    try:
        assert ask(server, "SELECT 1") == 1
        assert len(os.fsencode(server._socket_path())) <= embedded.SOCKET_PATH_BYTES
        assert stat.S_IMODE(server._socket_path().parent.stat().st_mode) == 0o700
        address = server.ensure()
        server.stop()
        assert server.ensure() == address
    finally:
        server.stop()
        if server._socket_path().parent.parent != server.home:
            shutil.rmtree(server._socket_path().parent)


def test_settings_for_other_servers_do_not_reach_this_one(server, monkeypatch):
    for name, value in {"PGPORT": "1", "PGDATA": "/nowhere", "PGHOST": "nowhere", "PGDATABASE": "none"}.items():
        monkeypatch.setenv(name, value)
    assert ask(server, "SELECT current_database()") == "tilewright"


def test_data_of_another_major_version_are_refused_with_the_remedy(new_server):
    (new_server.home / "data").mkdir(parents=True)
    (new_server.home / "data" / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedPostgresError, match=r"written by PostgreSQL 16.*pg_dump.*TILEWRIGHT_DATABASE_URL"):
        new_server.ensure()


def test_a_folder_of_something_else_is_left_alone(new_server):
    (new_server.home / "data").mkdir(parents=True)
    (new_server.home / "data" / "thesis.tex").write_text("years of work")
    with pytest.raises(EmbeddedPostgresError, match="not a PostgreSQL data folder"):
        new_server.ensure()
    assert (new_server.home / "data" / "thesis.tex").read_text() == "years of work"


def test_a_server_that_cannot_start_shows_its_log(new_server):
    new_server.ensure()
    new_server.stop()
    (new_server._data / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting"):
        new_server.ensure()


def test_a_data_folder_that_cannot_be_made_names_the_setting(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedPostgresError, match="TILEWRIGHT_DATA_DIR"):
        EmbeddedPostgres(tmp_path / "file" / "postgres").ensure()


@ROOT_ONLY
def test_another_users_data_folder_is_refused(tmp_path):
    os.chown(tmp_path, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(EmbeddedPostgresError, match="belongs to user"):
        EmbeddedPostgres(tmp_path).ensure()


def test_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    assert default_home() == tmp_path / "postgres"
    monkeypatch.delenv("TILEWRIGHT_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert default_home() == tmp_path / "share" / "tilewright" / "postgres"


def test_client_programs_are_found(server):
    command = [binary("psql"), "-XAtc", "SELECT 6 * 7", server.ensure()]
    assert subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout == "42\n"
    with pytest.raises(EmbeddedPostgresError, match="is missing"):
        binary("no_such_program")


@pytest.fixture
def system_folder(monkeypatch):
    """A place for the system user's copies that every user can reach, instead of /var/lib/tilewright."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    monkeypatch.setattr(embedded_identity, "SYSTEM_FOLDER", folder)
    monkeypatch.setattr(embedded_identity, "SYSTEM_USER", "nobody")
    yield folder
    shutil.rmtree(folder)


@ROOT_ONLY
def test_root_without_namespaces_runs_it_as_a_system_user_and_takes_the_data_along(
    tmp_path, system_folder, monkeypatch
):
    home = tmp_path / "postgres"
    server = EmbeddedPostgres(home)
    with psycopg.connect(server.ensure()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS x")
    server.stop()
    try:
        with monkeypatch.context() as changed:
            changed.setenv("PATH", str(tmp_path))  # no unshare is found, so there is no namespace to enter
            assert ask(server, "SELECT x FROM kept") == 7
        owners = set()
        for pid in processes_of(server):
            with contextlib.suppress(
                FileNotFoundError, ProcessLookupError
            ):  # a background process that has ended since
                owners.add(Path(f"/proc/{pid}").stat().st_uid)
        assert owners == {pwd.getpwnam("nobody").pw_uid}
        assert server._data.is_relative_to(system_folder)
        kill_all(server)
        # Namespaces or not: the data stay where they are now.
        assert ask(server, "SELECT x FROM kept") == 7
        assert server._data.is_relative_to(system_folder)
    finally:
        server.stop()


def test_nothing_listens_on_tcp(server):
    server.ensure()
    inodes = set()
    for pid in processes_of(server):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a background process has ended since
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # closed since it was listed
                    inodes.add(str(descriptor.readlink()))
    sockets = {name[len("socket:[") : -1] for name in inodes if name.startswith("socket:[")}
    listening = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            listening |= {line.split()[9] for line in Path(table).read_text().splitlines()[1:]}
    assert sockets
    assert not sockets & listening
