"""What the program loads before it runs a command."""

import subprocess
import sys

import pytest
from typer.main import get_command

from tilewright.service.cli.application import COMMANDS, program

HEAVY = ("sqlalchemy", "psycopg", "procrastinate", "fastapi", "numpy", "optuna", "httpx", "jinja2")


def loaded(*words):
    """The status of the command, and the heavy packages that it imported."""
    script = (
        "import sys; from tilewright.service.cli.application import main; status = main(sys.argv[1:]);"
        f"print(status, *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    status, *names = ran.stderr.splitlines()[-1].split()
    return int(status), names


@pytest.mark.parametrize("words", [("--help",), ("--version",), ()])
def test_help_and_version_load_neither_database_nor_web_nor_numpy(words):
    assert loaded(*words) == (0, [])


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
    script = "from tilewright.service.cli.application import main; main([])"
    words = {"_TILEWRIGHT_COMPLETE": "complete_bash", "COMP_WORDS": "tilewright jobs sh", "COMP_CWORD": "2"}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["show"]
