from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from waiting import PATIENCE_S, is_running, until

from tilewright.service.cli.local import supervisor as supervisor_module
from tilewright.service.cli.local.supervisor import CLI, Program, Supervisor

FOREVER = "import threading; print('up', flush=True); threading.Event().wait()"
STUBBORN = (
    "import signal, threading; signal.signal(15, signal.SIG_IGN); print('up', flush=True); threading.Event().wait()"
)


@pytest.fixture
def supervised(tmp_path):
    made = []

    def make(code):
        program = Program("program", ("-c", code), tmp_path / "program.log")
        deaths = []
        supervisor = Supervisor([program], on_death=lambda _program, status, pause_s: deaths.append((status, pause_s)))
        made.append(supervisor)
        supervisor.start()
        return supervisor, program, deaths

    yield make
    for supervisor in made:
        supervisor.kill()


def said(program, count):
    return lambda: program.log_tail(1000).count("up") >= count


def test_a_killed_program_is_started_again(supervised):
    _, program, deaths = supervised(FOREVER)
    until(said(program, 1))
    first = program.process.pid
    os.kill(first, signal.SIGKILL)
    until(said(program, 2))
    assert program.process.pid != first
    assert [status for status, _ in deaths] == [-signal.SIGKILL]


def test_a_folder_named_like_us_where_we_are_started_is_not_run(tmp_path):
    (tmp_path / "tilewright").mkdir()  # as after `git clone`, one folder up
    (tmp_path / "typer.py").write_text("raise SystemExit('imported from the working folder')")
    subprocess.run([sys.executable, *CLI, "--version"], cwd=tmp_path, check=True)


def test_pauses_grow_while_a_program_keeps_dying(supervised):
    _, program, deaths = supervised("raise SystemExit(3)")
    until(lambda: len(deaths) >= 3)
    assert deaths[:3] == [(3, 0.5), (3, 1.0), (3, 2.0)]
    assert program.deaths >= 3


def test_a_log_is_put_aside_while_its_program_runs(supervised, monkeypatch):
    monkeypatch.setattr(supervisor_module, "LOG_BYTES", 1000)
    _, program, deaths = supervised("import time\nwhile True: print('up' * 50, flush=True); time.sleep(0.001)")
    previous = program.log.with_suffix(".log.previous")
    until(previous.exists)
    size = previous.stat().st_size
    until(lambda: previous.stat().st_size != size)  # not once only
    assert program.process.poll() is None
    assert deaths == []
    assert b"\0" not in program.log.read_bytes()  # it went on where the file then ended


def test_a_log_is_for_its_owner_alone_also_one_that_others_could_read(tmp_path):
    program = Program("program", ("-c", "print('up')"), tmp_path / "program.log")
    program.log.touch(mode=0o644)
    supervisor_module._start(program, os.environ)
    assert program.process.wait(60) == 0
    assert (program.log.stat().st_mode & 0o777, program.log.read_text()) == (0o600, "up\n")


def test_stopping_ends_what_runs_and_starts_nothing_more(supervised):
    supervisor, program, deaths = supervised(FOREVER)
    until(said(program, 1))
    process = program.process
    supervisor.stop(10)
    assert process.returncode == -signal.SIGTERM
    assert deaths == []


def test_what_ignores_a_polite_request_is_killed_after_the_grace(supervised):
    supervisor, program, _ = supervised(STUBBORN)
    until(said(program, 1))
    process = program.process
    supervisor.stop(0.2)
    assert process.returncode == -signal.SIGKILL


def test_programs_end_when_their_supervisor_is_killed(tmp_path):
    child = (
        "from tilewright.service.cli.local.supervisor import end_with_supervisor; import os, threading;"
        "end_with_supervisor(); print(os.getpid(), flush=True); threading.Event().wait()"
    )
    parent = (
        "import pathlib, threading;"
        "from tilewright.service.cli.local.supervisor import Program, Supervisor;"
        f"Supervisor([Program('p', ('-c', {child!r}), pathlib.Path({str(tmp_path / 'log')!r}))]).start();"
        "threading.Event().wait()"
    )
    log = tmp_path / "log"
    process = subprocess.Popen([sys.executable, "-c", parent])
    try:
        until(lambda: log.exists() and log.read_text().endswith("\n"))
        pid = int(log.read_text())
    finally:
        process.kill()
        process.wait()
    until(lambda: not is_running(pid))


LEAVES = """
import signal, threading
leaving = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: leaving.set())
print('up', flush=True)
leaving.wait()
print('left', flush=True)
"""


def test_draining_lets_programs_end_by_themselves_and_starts_none_again(supervised):
    supervisor, program, deaths = supervised(LEAVES)
    until(said(program, 1))
    process = program.process
    assert not supervisor.drained.is_set()
    supervisor.drain()
    assert supervisor.drained.wait(PATIENCE_S)
    assert (process.returncode, deaths) == (0, [])
    assert program.log_tail().splitlines() == ["up", "left"]
