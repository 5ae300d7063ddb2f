"""One engine for a process, whoever asks for it first, and `configure` while its connections are open."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tilewright.service.store import session as store_session


@pytest.fixture
def connection_of(configured):
    """The driver's connection behind a session."""

    def find(session: Session) -> psycopg.Connection:
        return session.connection().connection.dbapi_connection

    return find


def test_a_connection_at_work_goes_on_and_is_closed_when_it_comes_back(connection_of):
    with store_session.session_scope() as session:
        connection = connection_of(session)
        store_session.configure(None)
        assert session.scalar(text("SELECT 1")) == 1
        assert not connection.closed
    assert connection.closed


def test_an_idle_connection_is_closed_at_once(connection_of):
    with store_session.session_scope() as session:
        connection = connection_of(session)
    assert not connection.closed  # the pool keeps it
    store_session.configure(None)
    assert connection.closed


def test_threads_that_come_at_once_get_one_engine(configured):
    together = threading.Barrier(8)

    def first(_):
        together.wait()
        return store_session.engine()

    seldom = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # the others come while the first is still making it
    try:
        with ThreadPoolExecutor(8) as threads:
            assert len(set(threads.map(first, range(8)))) == 1
    finally:
        sys.setswitchinterval(seldom)
