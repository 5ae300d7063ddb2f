"""Settings, and the lock of a device."""

import json
import logging
import sys
import threading
import uuid

import pytest
from pydantic import ValidationError
from sqlalchemy import text

from tilewright.service import logs
from tilewright.service.cli.explain import explain
from tilewright.service.device_lock import DeviceBusyError, FleetLock, host_lock
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.settings import settings
from tilewright.service.settings_model import Settings
from tilewright.service.store.session import session_scope


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ALLOWED_HOSTS", '["a', "TILEWRIGHT_ALLOWED_HOSTS: must be a host name, several separated by commas"),
        ("DATABASE_URL", "mysql://host/tiles", "TILEWRIGHT_DATABASE_URL: must be the address of a PostgreSQL"),
        ("STALLED_AFTER_S", "10", "TILEWRIGHT_STALLED_AFTER_S: must be several times TILEWRIGHT_HEARTBEAT_S"),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(monkeypatch, name, value, said):
    monkeypatch.setenv(f"TILEWRIGHT_{name}", value)
    monkeypatch.setenv("TILEWRIGHT_HEARTBEAT_S", "10")
    with pytest.raises(ValidationError) as raised:
        Settings()
    assert explain(raised.value).message.startswith(said)


@pytest.mark.parametrize("value", ["api.example, localhost", '["api.example", "localhost"]'])
def test_allowed_hosts_are_names_with_commas_or_a_json_list(monkeypatch, value):
    monkeypatch.setenv("TILEWRIGHT_ALLOWED_HOSTS", value)
    assert Settings().allowed_hosts == ["api.example", "localhost"]


def test_a_device_is_held_once_on_a_host():
    with host_lock("GPU-1", "worker"), host_lock("GPU-2", "worker"), host_lock("GPU-1", "measuring"):  # noqa: SIM117
        with pytest.raises(DeviceBusyError, match="GPU-1"), host_lock("GPU-1", "worker", wait_s=0):
            pass
    with host_lock("GPU-1", "worker", wait_s=0):
        pass


def test_a_gpu_is_held_once_on_a_host_whatever_the_data_folder(tmp_path, monkeypatch):
    gpu = f"GPU-{uuid.uuid4()}"
    with host_lock(gpu, "measuring", host_wide=True):
        monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
        settings.cache_clear()
        with host_lock(gpu, "worker", wait_s=0, host_wide=True):
            pass
        with pytest.raises(DeviceBusyError, match=gpu), host_lock(gpu, "measuring", wait_s=0, host_wide=True):
            pass
    with host_lock(gpu, "measuring", wait_s=0, host_wide=True):
        pass
    monkeypatch.undo()
    settings.cache_clear()


def test_a_device_is_held_once_in_the_fleet(configured):
    with FleetLock("GPU-1") as held:
        other = FleetLock("GPU-1")
        with pytest.raises(DeviceBusyError, match="GPU-1"):
            other.keep(wait_s=0)
        held.keep()
    with FleetLock("GPU-1"):
        pass


def test_the_fleet_lock_is_taken_again_after_its_connection_broke(configured):
    with FleetLock("GPU-1") as held:
        with session_scope() as session:
            session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted "
                    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
                )
            )
        with pytest.raises(DatabaseUnavailableError, match=r"terminat|closed"):
            held.keep()
        held.keep()
        with pytest.raises(DeviceBusyError):
            FleetLock("GPU-1").keep(wait_s=0)


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
