"""The log: one line a record, JSON where asked for, about what, and no secret."""

from __future__ import annotations

import json
import logging
import sys
import threading

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
