"""What the program loads before it runs a command, and what a light installation can do."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.main import get_command
from waiting import PATIENCE_S, is_running, until

from tilewright.service import cli
from tilewright.service.cli import light
from tilewright.service.cli.application import COMMANDS, COMPLETION, _only_tells, program
from tilewright.service.cli.failure import ExitCode
from tilewright.service.cli.local import supervisor as supervisor_module
from tilewright.service.cli.local.supervisor import CLI, Program, Supervisor

HEAVY = ("sqlalchemy", "psycopg", "procrastinate", "fastapi", "numpy", "optuna", "httpx", "jinja2", "uvicorn")
HEAVY += ("pydantic_settings",)  # Typer itself has Pydantic


def command_lines(command, *words):
    """The words of every command and group."""
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_lines(inner, *words, name)


def loaded(*lines):
    """For each command line, run one after another in a process: its status, and the heavy packages that are there."""
    script = (
        "import json, sys; from tilewright.service.cli.application import main\n"
        f"def heavy(): return [name for name in {HEAVY!r} if name in sys.modules]\n"
        "told = [(main(words), *heavy()) for words in json.loads(sys.argv[1])]\n"
        "print(json.dumps(told), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script, json.dumps(lines)], capture_output=True, text=True, check=True)
    return json.loads(ran.stderr.splitlines()[-1])


def test_help_and_version_load_neither_database_nor_web_nor_numpy():
    helps = [(*words, "--help") for words in command_lines(get_command(program()))]
    assert len(helps) > 50
    lines = [(), ("--version",), *helps]
    assert {words: told for words, told in zip(lines, loaded(*lines), strict=True) if told != [0]} == {}


def test_a_typing_error_is_told_without_them():
    lines = ("jbos",), ("jobs", "--nosuch"), ("best", "gemm"), ("best", "gemm", "--shape", "m=x")
    assert loaded(*lines) == [[2, "pydantic_settings"]] * len(lines)


def test_the_help_of_all_commands_is_what_each_says_itself():
    shown = get_command(program())
    whole = shown.commands
    for name, command in get_command(program(())).commands.items():
        assert command.get_short_help_str(500) == whole[name].get_short_help_str(500)
        assert command.help == whole[name].help.split("\n\n")[0].replace("\n", " ")
    assert shown.list_commands(None) == list(COMMANDS)


def test_only_the_named_command_is_loaded(run):
    assert run("--", "kernels", "check", "--help").status == 0
    assert run("jbos").err.startswith("error No such command 'jbos'. Did you mean 'jobs'?")
    assert run("kernels", "chek_").status == 2


def test_completion_knows_the_arguments_of_every_command(monkeypatch):
    script = (
        "import sys; from tilewright.service.cli.application import main\n"
        f"try: main([])\nfinally: print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    )
    words = {"_TILEWRIGHT_COMPLETE": "complete_bash", "COMP_WORDS": "tilewright jobs sh", "COMP_CWORD": "2"}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.stdout.split(), ran.stderr.split()) == (["show"], [])


@pytest.mark.parametrize(
    ("words", "tells"),
    [([], False), (["-h"], True), (["best", "--help"], True), (["best", "gemm"], False), (["--", "best", "-h"], False)],
)
def test_a_help_or_a_completion_runs_nothing(monkeypatch, words, tells):
    assert _only_tells(words) is tells
    monkeypatch.setenv(COMPLETION, "complete_bash")
    assert _only_tells(words)


ANSWER = {
    "match": "exact",
    "problem": {"kernel": "gemm", "shape": {"m": 4, "n": 5, "k": 6}, "dtype": "float32", "options": {}},
    "device_model": "nvidia-h200",
    "variant": "wpt",
    "configuration": {"TILE_M": 64},
    "time_ms": 0.0123,
    "library": None,
}
SHAPE = ["--shape", "m=4,n=5,k=6"]


@pytest.fixture(scope="module")
def api():
    """An API of another machine that knows gemm and nothing else; it keeps the addresses that it was asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            known = "/gemm/" in self.path
            missing = {"type": "/problems/not-found", "status": 404, "missing": "kernel", "detail": "There is no such."}
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps(ANSWER if known else missing).encode())

        def log_message(self, *_): ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def answers(api, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_URL", f"http://127.0.0.1:{api.server_port}")
    return api


def test_best_is_asked_of_the_api(answers, capsys):
    assert light.main(["best", "gemm", *SHAPE, "--option", "trans_b=true", "--device-model", "nvidia-h200"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gemm m=4,n=5,k=6 float32 on nvidia-h200",
        "best      wpt TILE_M=64",
        "time      0.0123 ms",
        "found by  exact",
    ]
    assert answers.asked[-1] == (
        "/v1/kernels/gemm/best?shape=m=4,n=5,k=6&dtype=float32&options=trans_b=true&device_model=nvidia-h200"
    )
    assert light.main(["best", "gemm", *SHAPE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ANSWER


def test_a_refusal_is_one_line_with_the_code_that_the_whole_command_line_has(answers, capsys):
    assert light.main(["best", "gem", *SHAPE]) == ExitCode.USAGE
    assert capsys.readouterr().err == "error There is no such.\n"


def test_an_api_that_is_away_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("TILEWRIGHT_URL", "http://127.0.0.1:9")
    assert light.main(["best", "gemm", *SHAPE]) == ExitCode.FAILED
    assert re.fullmatch(r"error The API at http://127\.0\.0\.1:9 does not answer \(.*\).*\n", capsys.readouterr().err)
    monkeypatch.setenv("TILEWRIGHT_URL", "here")
    assert light.main(["best", "gemm", *SHAPE]) == ExitCode.FAILED
    assert "is not an HTTP address" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["tune", "gemm"],
            ExitCode.FAILED,
            "error `tilewright tune` is not part of a light installation. Install it: ",
        ),
        (["best", "gemm"], ExitCode.USAGE, "error the following arguments are required: --shape. Try: "),
    ],
)
def test_what_is_not_there_is_said_in_one_line(words, code, said, capsys, monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda _name: None)
    assert cli.main(words) == code
    told = capsys.readouterr().err
    assert told.startswith(said)
    assert told.count("\n") == 1


def test_help_and_version_are_there(capsys):
    assert light.main([]) == 0
    assert light.INSTALL in capsys.readouterr().out
    assert light.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tilewright ")


def test_what_is_looked_for_belongs_to_the_service_and_not_to_an_application():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extra = {re.split(r"[^\w-]", line)[0] for line in project["optional-dependencies"]["service"]}
    assert {name.replace("_", "-") for name in cli.SERVICE} <= extra
    own = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    assert own == {"ml_dtypes", "numpy", "platformdirs", "threadpoolctl"}


def test_a_program_is_run_and_its_exit_code_passed_on(capsys):
    assert light.main(["run", "--", sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert light.main(["run"]) == ExitCode.USAGE
    assert "a program stands behind --: tilewright run -- python app.py" in capsys.readouterr().err


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
