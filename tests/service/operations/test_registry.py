"""What requests may name: kernels and devices that are there, and bodies that make sense."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from desk import LIMITS, MODEL, SHAPE
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import event, func, select, update

from tilewright.kernels.catalogue import catalogue
from tilewright.service.errors import NotFoundError
from tilewright.service.operations import registry, strict_json
from tilewright.service.operations.validation_words import plain
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


ATOMS = [
    *(b"0", b"null", b"0.5", b"1e5", b"1e999", b"-1E400", b"1" * 400 + b".0", b"9223372036854775807"),
    *(b"9223372036854775808", b"-9223372036854775808", b'"\\u0000"', b'"\\ud800"', b'"\\ud83d\\ude00"'),
    *(b'"]"', b'"\\"["', b'"\\\\"', b'{"a":1,"a":2}', "\u00e9".encode().join((b'"', b'"'))),
]


def bodies() -> st.SearchStrategy[bytes]:
    names = st.sampled_from([b"a", b"b", b"\\u0000", b"[", b'\\"}'])

    def grown(inner):
        members = st.lists(st.builds(lambda name, value: b'"%b":%b' % (name, value), names, inner), max_size=3)
        nested = st.builds(lambda deep, value: b"[" * deep + value + b"]" * deep, st.integers(20, 40), inner)
        lists = st.lists(inner, max_size=3).map(lambda parts: b"[%b]" % b",".join(parts))
        return lists | members.map(lambda parts: b"{%b}" % b",".join(parts)) | nested

    return st.recursive(st.sampled_from(ATOMS), grown, max_leaves=8)


def refusal(body: bytes) -> str | None:
    try:
        strict_json.check(body)
    except strict_json.RefusedJSONError as error:
        return str(error)
    return None


@given(bodies())
def test_what_is_refused_does_not_depend_on_the_short_way(body):
    said = refusal(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "_is_deep", lambda _: True)
        assert refusal(body) == said


@pytest.mark.parametrize(("levels", "is_refused"), [(32, False), (33, True)])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_counted_for_both_kinds_of_brackets(begin, end, levels, is_refused):
    body = begin * levels + b"0" + end * levels
    assert (refusal(body) is not None) is is_refused


class Budget(BaseModel):
    model_config = ConfigDict(extra="forbid")

    trials: int = Field(gt=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trials": 0}, "must be greater than 0"),
        ({"trials": "x"}, "must be a valid integer"),
        ({}, "is missing"),
        ({"trials": 1, "colour": 1}, "is not a known field"),
    ],
)
def test_a_refusal_is_a_predicate_of_the_field(given, said):
    with pytest.raises(ValidationError) as refused:
        Budget.model_validate(given)
    (error,) = refused.value.errors()
    assert plain(error["msg"]) == said
