from __future__ import annotations

import uuid

import pytest
from sqlalchemy import text

from tilewright.service.device_lock import DeviceBusyError, FleetLock, host_lock
from tilewright.service.settings import settings
from tilewright.service.store.session import session_scope


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
