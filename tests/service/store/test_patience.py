from __future__ import annotations

import pytest
from sqlalchemy import text

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.store.patience import patiently
from tilewright.service.store.session import configure


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_work_is_done_again_when_the_connection_breaks_under_it(configured):
    time, tries = Time(), []

    def work(session):
        tries.append(session.scalar(text("SELECT pg_backend_pid()")))
        if len(tries) < 3:
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return "done"

    assert patiently(work, clock=time.clock, sleep=time.sleep) == "done"
    assert len(set(tries)) == 3
    assert time.slept == [0.1, 0.2]


def test_patience_ends():
    time = Time()
    configure("postgresql://postgres@/nowhere?host=/nonexistent")
    try:
        with pytest.raises(DatabaseUnavailableError):
            patiently(lambda session: session.scalar(text("SELECT 1")), clock=time.clock, sleep=time.sleep)
    finally:
        configure(None)
    assert 60 <= time.now < 65
    assert max(time.slept) == 2.0


def test_an_error_of_the_work_itself_is_not_tried_again(configured):
    tries = []

    def work(session):
        tries.append(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        patiently(work)
    assert tries == [1]
