"""Rows, an application on a real database that is emptied between tests, and settings for several layers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from caller import Caller
from factories import Rows
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from tilewright.service.app import create_app
from tilewright.service.settings import settings
from tilewright.service.store import session as store_session
from tilewright.service.store.models import Base
from tilewright.service.store.session import sqlalchemy_url


@pytest.fixture
def rows(session) -> Rows:
    """Rows in a transaction that is rolled back: for operations."""
    return Rows(session)


@pytest.fixture(scope="session")
def api_database(postgres_url: str, template: str) -> str:
    """One migrated database for all tests of this process that go through HTTP: making one takes half a second."""
    name = f"api_{uuid.uuid4().hex[:12]}"
    admin = create_engine(sqlalchemy_url(postgres_url), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    return make_url(postgres_url).set(database=name).render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def api_engine(api_database: str) -> Iterator[Engine]:
    """Connections to that database, for emptying it."""
    engine = create_engine(sqlalchemy_url(api_database))
    yield engine
    engine.dispose()


@pytest.fixture
def client(api_database: str, api_engine: Engine) -> Iterator[Caller]:
    """A client of a fresh application on an empty database; without the lifespan, so without maintenance."""
    store_session.configure(api_database)
    yield Caller(create_app())
    store_session.configure(None)
    with api_engine.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
        connection.execute(text("DELETE FROM procrastinate_jobs"))


@pytest.fixture
def private_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Webhooks may go to private addresses, and without TLS."""
    monkeypatch.setenv("TILEWRIGHT_WEBHOOK_PRIVATE_ADDRESSES", "true")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()
