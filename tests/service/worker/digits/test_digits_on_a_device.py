"""Drawings computed on the CPU device: by an idle worker, between the trials of a job, and who gets it when."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from drawings import answered, drawing
from sqlalchemy import text

from tilewright.service.device_lock import DeviceBusyError, host_lock
from tilewright.service.errors import DeviceUnavailableError, NoAnswerError
from tilewright.service.operations import registry
from tilewright.service.operations.digits import post as digit_post
from tilewright.service.operations.digits.digits import recognise
from tilewright.service.store import session as store_session
from tilewright.service.store.session import session_scope
from tilewright.service.worker.digits import desk as digit_desk
from tilewright.service.worker.digits.desk import DigitDesk, DigitsGuest
from tilewright.tuner.devices.local import find_device, open_device

CUT_OFF = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND query = 'SELECT 1'"
)
"""Connections that listen: they ask this to hear all that was told."""
LAST_LAYER = {"kernel": "linear", "shape": {"m": 1, "n": 10, "k": 100}, "variants": ["wpt"]}


@pytest.fixture
def asking(fleet):
    """The fleet; this process asks as an API does."""
    store_session.configure(fleet.url)
    yield fleet
    store_session.configure(None)


def test_a_worker_answers_idle_between_trials_and_then_with_what_its_job_found(asking):
    worker = asking.start_worker()
    uuid = asking.wait_for_device()
    found = answered(uuid, 3)
    here = recognise(drawing(3))
    np.testing.assert_allclose(found.probabilities, here.probabilities, atol=1e-5)
    assert (found.digit, found.cells) == (3, here.cells)
    device = found.computed
    assert (device.on, device.kernels_us, device.environment.driver) == (uuid, None, "host")
    assert [layer.kernel for layer in device.layers] == ["linear", "linear", "linear", "softmax"]
    assert device.layers[2].match == "default"
    assert 0 < device.pass_us < 1e3 * device.total_ms

    job_id = asking.request(trials=24, **LAST_LAYER)
    asking.wait_for_trials(job_id, 1)
    assert answered(uuid, 5).digit == 5
    running = asking.job(job_id)
    assert (running.state, running.trials_done < 24) == ("running", True)
    asking.assert_finished(job_id, 24, {1})

    tuned = answered(device.device_model, 8)  # any device of the model
    assert (tuned.digit, tuned.computed.on) == (8, uuid)
    assert (tuned.computed.layers[2].variant, tuned.computed.layers[2].match) == ("wpt", "exact")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0


@pytest.fixture
def registered(configured):
    """The CPU device, in this test's database."""
    entry = find_device("cpu")
    with closing(open_device("cpu")) as device, session_scope() as session:
        registry.register_kernels(session, registry.catalogue())
        registry.register_device(session, device.model, entry.uuid, "host", 0, device.environment)
    return entry


@pytest.fixture
def desk(registered, monkeypatch):
    """The desk of that device, in this process; after a failure it tries again at once."""
    monkeypatch.setattr(digit_desk, "AGAIN_S", 0.0)
    with DigitDesk(registered) as desk:
        yield desk


def test_a_desk_holds_the_device_only_while_no_job_has_it(desk, registered, monkeypatch):
    uuid = registered.uuid
    assert answered(uuid, 2).digit == 2
    with pytest.raises(DeviceBusyError), host_lock(uuid, "measuring", wait_s=0):
        pass
    desk.let_go()
    with host_lock(uuid, "measuring", wait_s=0):
        with monkeypatch.context() as patch:
            patch.setattr(digit_post, "WITHIN_S", 0.3)
            with pytest.raises(NoAnswerError, match="in the middle of a trial"):
                recognise(drawing(2, uuid))
        desk.take_back()
        with pytest.raises(DeviceUnavailableError, match="holds the device"):  # by another program
            recognise(drawing(2, uuid))
    assert answered(uuid, 2).digit == 2


def test_a_device_whose_process_dies_is_opened_anew(desk, registered):
    answered(registered.uuid, 6)
    os.kill(desk._device.child_pid, signal.SIGKILL)
    with pytest.raises(DeviceUnavailableError, match="died in call_extension"):
        recognise(drawing(6, registered.uuid))
    assert answered(registered.uuid, 6).digit == 6


def test_a_runner_hears_of_drawings_again_when_its_connection_broke(registered, monkeypatch):
    monkeypatch.setattr(digit_desk, "AGAIN_S", 0.0)
    with closing(open_device("cpu")) as device, DigitsGuest(device) as between, ThreadPoolExecutor(1) as pool:
        between.look()
        with session_scope() as session:
            assert session.scalars(CUT_OFF).all() == [True]
        between.look()  # breaks
        between.look()  # listens again
        asked = pool.submit(answered, registered.uuid, 4)
        while not asked.done():
            between.look()
        assert asked.result().digit == 4
