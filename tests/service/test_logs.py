"""The log: one line a record, JSON where asked for, about what, and no secret."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
from contextlib import contextmanager

import pytest

from tilewright.service import logs
from tilewright.service.settings import settings

TOKEN = "tw_0123456789abcdefghijklmnopqrstuvwxyzABCDEF"


@pytest.fixture
def in_json(monkeypatch):
    yield from configured(monkeypatch, "json")


@pytest.fixture
def in_text(monkeypatch):
    yield from configured(monkeypatch, "text")


def configured(monkeypatch, log_format):
    root, hooks = logging.getLogger(), (sys.excepthook, threading.excepthook)
    level = root.level
    monkeypatch.setenv("TILEWRIGHT_LOG_FORMAT", log_format)
    settings.cache_clear()
    logs.configure()
    yield logging.getLogger("tilewright.test")
    monkeypatch.undo()
    settings.cache_clear()
    logs.configure_command()  # takes the handler back
    logs._process.clear()
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    sys.excepthook, threading.excepthook = hooks


def fail(error):
    raise error


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_record_is_one_json_object(in_json, capsys):
    logs.always(worker="host:1:cuda:0", device="GPU-1")
    in_json.warning("Job %s\nis “slow”.", 7, extra={"job": 7, "unknown": 1})
    (line,) = lines(capsys)
    said = json.loads(line)
    assert said.pop("time").endswith("Z")
    assert said == {
        "level": "warning",
        "logger": "tilewright.test",
        "message": "Job 7\nis “slow”.",
        "job": 7,
        "worker": "host:1:cuda:0",
        "device": "GPU-1",
    }


def test_an_exception_is_in_its_records_line(in_json, capsys):
    try:
        fail(ValueError("of the test"))
    except ValueError:
        in_json.exception("It failed.")
    (line,) = lines(capsys)
    said = json.loads(line)
    assert said["exception"].startswith("Traceback")
    assert said["exception"].endswith("ValueError: of the test")
    assert logs.plain(line).splitlines()[0] == "It failed."
    assert logs.plain(line).splitlines()[-1] == "ValueError: of the test"


@pytest.mark.parametrize("log_format", ["in_json", "in_text"])
@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {TOKEN}",
        "Authorization: Bearer of-another-kind",
        f"cookie tilewright_session={TOKEN}; path=/",
        f"GET /?key={TOKEN}&x=1",
        "secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "postgresql://worker:hunter22@db.example/tilewright",
    ],
)
def test_no_secret_is_written_wherever_it_stands(request, capsys, log_format, text):
    logger = request.getfixturevalue(log_format)
    logger.info("%s", text)
    try:
        fail(RuntimeError(text))
    except RuntimeError:
        logger.exception("It failed.", extra={"caller": text})
    written = capsys.readouterr().err
    assert written.count("***") >= 3
    for secret in (TOKEN, TOKEN[3:], "of-another-kind", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "hunter22"):
        assert secret not in written


def test_text_that_a_caller_sent_cannot_pass_for_a_record_or_steer_a_terminal(in_text, capsys):
    in_text.info("a\n2026-01-01T00:00:00.000Z INFO tilewright: forged \x1b[31m")
    first, second = lines(capsys)
    assert first.endswith("INFO tilewright.test: a")
    assert second.startswith("    2026")
    assert "\x1b" not in second


def test_lines_say_what_they_are_about_and_other_tasks_lines_do_not(in_text, capsys):
    logs.always(worker="host:1:cpu")

    def other():
        in_text.info("elsewhere")

    logs.speak_of(lambda: {"request_id": "r-1", "caller": None})
    try:
        in_text.info("here")
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    finally:
        logs.speak_of(dict)
    here, elsewhere = lines(capsys)
    assert here.endswith("here [request_id=r-1]")
    assert elsewhere.endswith("elsewhere")


def test_what_nobody_catches_is_a_record_too(in_json, capsys):
    thread = threading.Thread(target=lambda: 1 // 0, name="divides")
    thread.start()
    thread.join()
    (line,) = lines(capsys)
    assert json.loads(line)["message"] == "Unexpected ZeroDivisionError: integer division or modulo by zero"


def test_lines_of_a_child_are_passed_on_whole_and_others_become_records(in_json, capsys):
    record = '{"time": "2026-01-01T00:00:00.000Z", "level": "info", "message": "of the runner"}'
    logs.pass_on(record)
    logs.pass_on("Fatal Python error: Segmentation fault")
    first, second = lines(capsys)
    assert first == record
    assert json.loads(second)["message"] == "Fatal Python error: Segmentation fault"


def test_level_is_a_setting(monkeypatch, in_json, capsys):
    monkeypatch.setenv("TILEWRIGHT_LOG_LEVEL", "error")
    settings.cache_clear()
    logs.configure()
    in_json.warning("not worth a line")
    assert lines(capsys) == []


def said(**of):
    facts = {"request_id": "0123456789", "caller": "key ci", "method": "GET", "route": "/v1/jobs/{job_id}"}
    return logs.Answered(**facts | {"status": 200, "duration_ms": 1.23456} | of)


OF_REQUESTS = [
    said(),
    said(caller=None, route="(refused)", status=421, duration_ms=0.0004),
    said(caller='key "é" \\', duration_ms=12345.6),
    said(request_id=TOKEN),
    said(caller=f"Bearer {TOKEN}"),
]


@pytest.fixture(params=["in_json", "in_text"])
def logger(request):
    return request.getfixturevalue(request.param)


@contextmanager
def nobody_else_hears():
    """As in a server; here the test framework listens too."""
    with pytest.MonkeyPatch.context() as patch:
        root = logging.getLogger()
        patch.setattr(root, "handlers", [one for one in root.handlers if isinstance(one, logs._Stderr)])
        yield patch


def test_the_short_line_of_a_request_is_the_line_of_its_record(logger, capsys):
    for one in OF_REQUESTS:
        capsys.readouterr()
        with nobody_else_hears():
            assert logs.write_answered(logger, one)
        short = capsys.readouterr().err
        logger.info("%s", one.message, extra=one._asdict() | {"duration_ms": round(one.duration_ms, 3)})
        assert without_moment(short) == without_moment(capsys.readouterr().err)
        assert TOKEN not in short


def without_moment(line):
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "a moment", line)


def test_where_others_listen_a_request_is_a_record(logger, caplog):
    assert not logs.write_answered(logger, said())  # the test framework
    with nobody_else_hears() as patch:
        assert logs.write_answered(logger, said())
        patch.setattr(logger, "handlers", [caplog.handler])
        assert not logs.write_answered(logger, said())
    with nobody_else_hears() as patch:
        patch.setattr(logger, "propagate", False)
        assert not logs.write_answered(logger, said())


def test_a_process_that_always_says_something_says_it_of_requests_too(logger):
    with nobody_else_hears():
        assert logs.write_answered(logger, said())
        logs.always(worker="w1")
        assert not logs.write_answered(logger, said())


def test_where_stderr_is_gone_no_request_fails(logger):
    closed = io.StringIO()
    closed.close()
    with nobody_else_hears() as patch:
        assert logs.write_answered(logger, said())
        patch.setattr(sys, "stderr", closed)
        assert not logs.write_answered(logger, said())
