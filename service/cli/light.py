"""The command line of a light installation, which has NumPy and no web server: the standard library does.

`best` asks an API, `record` watches a PyTorch program, `run` runs one with Triton on what is tuned. Any other command
says what to install for it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.parse
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any, NoReturn

from tilewright import __version__
from tilewright.service.cli.failure import ExitCode
from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.recording import command as record_command
from tilewright.tuner.runtime.known.local_service import local_address
from tilewright.tuner.runtime.known.service import ApiCalls, refusal
from tilewright.tuner.start import RUN, run_watched

INSTALL = "pip install 'tilewright[service]'"
LIMIT_S = 30.0

_ARGUMENTS = frozenset({"kernel", "device model", "device_model", "option"})
"""A missing one of these is a wrong argument, as in `explain.py`."""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.USAGE, f"error {message}. Try: {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of one command line, after running it."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    command = next((word for word in words if not word.startswith("-")), None)
    if command not in {None, "best", "record", "run"}:
        sys.stderr.write(f"error `tilewright {command}` is not part of a light installation. Install it: {INSTALL}\n")
        return ExitCode.FAILED
    try:
        if command == "record":  # what comes behind it is another program's command line
            return record_command.main(words[words.index("record") + 1 :])
        if command == "run":
            return _run(words[words.index("run") + 1 :])
        given = _parser().parse_args(words)
        if command is None:
            _parser().print_help()
            return 0
        return _best(given)
    except SystemExit as ended:  # of argparse: help, version, usage
        return int(ended.code or 0)


def _run(words: Sequence[str]) -> int:
    """The program's exit code."""
    program = [*words][words[:1] == ["--"] :]
    if not program:
        sys.stderr.write("error a program stands behind --: tilewright run -- python app.py\n")
        return ExitCode.USAGE
    try:
        return run_watched(program, RUN, {})
    except OSError as error:
        sys.stderr.write(f"error {program[0]}: {error.strerror}\n")
        return ExitCode.FAILED


def _parser() -> _Parser:
    parser = _Parser(
        prog="tilewright",
        description="Tuned CUDA kernels in an application: a light installation, which asks a service.",
        epilog=f"All other commands: {INSTALL}",
    )
    parser.add_argument("--version", action="version", version=f"tilewright {__version__}")
    commands = parser.add_subparsers(dest="command", parser_class=_Parser, metavar="COMMAND")
    best = commands.add_parser("best", help="print the best known configuration, from the API at TILEWRIGHT_URL")
    best.add_argument("kernel", metavar="KERNEL")
    best.add_argument("--shape", required=True, metavar="M=…,N=…", help="axis sizes, like m=512,n=512,k=512")
    best.add_argument("--device-model", help="slug, like nvidia-h200; default: the only one that has devices")
    best.add_argument("--dtype", default="float32")
    best.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    best.add_argument("--json", action="store_true", help="print JSON instead of text")
    commands.add_parser("record", help="write down which operations of a PyTorch program could be tuned")
    return parser


def _best(given: argparse.Namespace) -> int:
    url = os.environ.get("TILEWRIGHT_URL") or local_address()
    if not url:
        return _fail(
            ExitCode.FAILED, "there is no service: set TILEWRIGHT_URL to the address of one, like http://host:8000"
        )
    query = {"shape": given.shape, "dtype": given.dtype}
    query |= {"options": ",".join(given.option)} if given.option else {}
    query |= {"device_model": given.device_model} if given.device_model else {}
    path = f"/v1/kernels/{urllib.parse.quote(given.kernel, safe='')}/best?{urllib.parse.urlencode(query, safe='=,:')}"
    try:
        answer = ApiCalls(url, os.environ.get("TILEWRIGHT_KEY") or None, LIMIT_S).call(path)
    except TunerError as error:
        return _fail(ExitCode.FAILED, str(error))
    except urllib.error.HTTPError as error:
        return _fail(*_explained(refusal(error)))
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        message = f"The API at {url} does not answer ({reason}). If it is not running, start it there"
        return _fail(ExitCode.FAILED, message)
    if given.json:
        sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    else:
        _print(answer)
    return 0


def _print(answer: dict[str, Any]) -> None:
    problem = answer["problem"]
    shape = ",".join(f"{axis}={size}" for axis, size in problem["shape"].items())
    time_ms, library = answer.get("time_ms"), answer.get("library") or {}
    sys.stdout.write(f"{problem['kernel']} {shape} {problem['dtype']} on {answer['device_model']}\n")
    facts = {
        "best": " ".join([answer["variant"], *(f"{name}={value}" for name, value in answer["configuration"].items())]),
        "time": f"{time_ms:.4g} ms" if time_ms else None,
        "library": _library(library),
        "found by": answer["match"] + (f", from {answer['shipped']}" if answer.get("shipped") else ""),
    }
    sys.stdout.writelines(f"{name:10}{value}\n" for name, value in facts.items() if value)


def _library(library: dict[str, Any]) -> str | None:
    if not library.get("time_ms"):
        return None
    advice = "; launchers make this call" if library.get("launched") else "; use the library here"
    time = f"{library.get('name', 'library')}: {library['time_ms']:.4g} ms"
    return f"{time}{' expected' if library.get('expected') else ''}{advice if library.get('faster') else ''}"


def _explained(document: dict[str, Any]) -> tuple[int, str]:
    """Exit code and message of a refusal, as in the whole command line."""
    status, kind = document.get("status"), str(document.get("type"))
    is_usage = status in {400, 413, 415, 422} or document.get("missing") in _ARGUMENTS
    is_nothing = kind.endswith(("/no-configuration", "/not-found"))
    fields = [f"{one.get('field')}: {one.get('detail')}" for one in document.get("errors") or [] if "field" in one]
    code = ExitCode.USAGE if is_usage else ExitCode.NOTHING_FOUND if is_nothing else ExitCode.FAILED
    return code, "; ".join(fields) or str(document.get("detail") or document.get("title"))


def _fail(code: int, message: str) -> int:
    sys.stderr.write(f"error {' '.join(message.split())}\n")
    return code
