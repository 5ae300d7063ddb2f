"""What the program loads before it runs a command."""

import json
import subprocess
import sys

import pytest
from typer.main import get_command

from tilewright.service.cli.application import COMMANDS, COMPLETION, _only_tells, program

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
