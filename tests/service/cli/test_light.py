"""The command line where the extra `service` is not installed."""

from __future__ import annotations

import json
import re
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tilewright.service import cli
from tilewright.service.cli import light
from tilewright.service.cli.failure import ExitCode

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
