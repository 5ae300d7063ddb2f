"""Settings, and the lock of a device."""

from __future__ import annotations

import uuid

import pytest
from pydantic import ValidationError
from sqlalchemy import text

from tilewright.service.cli.explain import explain
from tilewright.service.device_lock import DeviceBusyError, FleetLock, host_lock
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
        with pytest.raises(Exception, match=r"terminat|closed"):
            held.keep()
        held.keep()
        with pytest.raises(DeviceBusyError):
            FleetLock("GPU-1").keep(wait_s=0)
