from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from desk import LIMITS, MODEL, SHAPE
from sqlalchemy import event, func, select, update

from tilewright.kernels.catalogue import catalogue
from tilewright.service.errors import NotFoundError
from tilewright.service.operations import registry
from tilewright.service.store import models
from tilewright.tuner.devices.device import Environment


def test_limits_and_model_come_back_as_they_were_registered(device):
    assert registry.limits_of(device.model) == LIMITS
    assert registry.device_model_of(device.model) == MODEL


def test_a_device_that_registers_again_is_brought_up_to_date_and_stays_lost(session, device):
    registry.set_device_state(session, "GPU-1", models.DeviceState.LOST)
    newer = Environment("590.2", "13.1", "nvrtc", "13.1.2", "PyCUDA 2026.1", "default")
    again = registry.register_device(session, MODEL, "GPU-1", "host-b", 1, newer)
    assert again.id == device.id
    (answer,) = registry.devices(session)
    assert (answer.host, answer.ordinal, answer.state) == ("host-b", 1, "lost")
    assert answer.environment.driver == "590.2"
    assert session.scalar(select(func.count()).select_from(models.Environment)) == 2


def test_a_device_is_alive_while_its_worker_speaks(session, device):
    def silent_for(seconds: float) -> bool:
        past = func.now() - timedelta(seconds=seconds)
        session.execute(update(models.Device).values(heartbeat_at=past))
        session.expire_all()
        return not registry.devices(session)[0].alive

    assert not silent_for(50)
    assert silent_for(70)
    registry.heartbeat(session, "GPU-1")
    session.expire_all()
    assert registry.devices(session)[0].alive


def test_a_changed_source_is_a_new_row_beside_the_old_one(session, device):
    before = registry.kernel_variant_ids(session, catalogue().get("gemm"))
    registry.register_kernels(session, catalogue())
    assert registry.kernel_variant_ids(session, catalogue().get("gemm")) == before
    count = select(func.count()).select_from(models.KernelVariant)
    there = session.scalar(count)
    session.execute(
        update(models.KernelVariant).where(models.KernelVariant.id == before["wpt"]).values(source_hash="old")
    )
    registry.register_kernels(session, catalogue())
    after = registry.kernel_variant_ids(session, catalogue().get("gemm"))
    assert session.scalar(count) == there + 1
    assert {name for name in before if after[name] != before[name]} == {"wpt"}


def test_sources_that_are_there_are_not_sent_again(session, device):
    sent = []
    with monitored(session, sent):
        registry.register_kernels(session, catalogue())
    assert sent
    assert not [statement for statement in sent if statement.startswith("INSERT INTO kernel_variants")]


@contextmanager
def monitored(session, sent):
    def note(_connection, _cursor, statement, *_more):
        sent.append(statement)

    event.listen(session.connection(), "before_cursor_execute", note)
    yield
    event.remove(session.connection(), "before_cursor_execute", note)


def test_equal_problems_share_a_row(session, device):
    gemm = catalogue().get("gemm")
    first = registry.problem_row(session, gemm.problem(SHAPE))
    assert registry.problem_row(session, gemm.problem(SHAPE)).id == first.id
    assert registry.problem_row(session, gemm.problem(SHAPE, options={"trans_a": True})).id != first.id


def test_a_problem_of_an_unregistered_kernel_is_refused(session):
    mine = replace(catalogue().get("gemm"), name="mine")
    with pytest.raises(NotFoundError, match=r"mine.*Known: .*gemm, gemv.*once a worker has started"):
        registry.problem_row(session, mine.problem(SHAPE))
