"""Rows, an application on a real database that is emptied between tests, and settings for several layers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from caller import Caller
from factories import Rows
from fastapi import APIRouter
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tilewright.service.app import create_app
from tilewright.service.operations import registry
from tilewright.service.settings import settings
from tilewright.service.store import session as store_session
from tilewright.service.store.models import Base
from tilewright.service.store.session import sqlalchemy_url


@pytest.fixture
def rows(session) -> Rows:
    """Rows in a transaction that is rolled back: for operations."""
    return Rows(session)


OF_KERNELS = ("kernel_variants", "kernels")
TABLES = [table.name for table in reversed(Base.metadata.sorted_tables) if table.name not in OF_KERNELS]
EMPTY = "; ".join(f"DELETE FROM {table}" for table in [*TABLES, "procrastinate_jobs"])  # noqa: S608 - our own names
WITHOUT_KERNELS = "; ".join(f"DELETE FROM {table}" for table in OF_KERNELS)  # noqa: S608
KERNELS = text(
    "SELECT (SELECT string_agg(name || declaration, ' ' ORDER BY id) FROM kernels),"
    " (SELECT string_agg(name || source_hash, ' ' ORDER BY id) FROM kernel_variants)"
)


def register_kernels(engine: Engine) -> object:
    """What of the kernels is stored once all are, as a worker leaves them that starts; a megabyte of sources."""
    with Session(engine) as session, session.begin():
        registry.register_kernels(session, registry.catalogue())
        return session.execute(KERNELS).one()


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


@pytest.fixture(scope="session")
def registered_kernels(api_engine: Engine) -> object:
    """What that database holds between tests."""
    return register_kernels(api_engine)


@pytest.fixture(scope="session")
def routes() -> APIRouter:
    """Those of any application; FastAPI makes the models of their bodies at the first request, which takes 40 ms."""
    return create_app().router


@pytest.fixture
def client(api_database: str, api_engine: Engine, registered_kernels: object, routes: APIRouter) -> Iterator[Caller]:
    """A client of a fresh application on a database with the kernels alone; no lifespan, so no maintenance."""
    store_session.configure(api_database)
    app = create_app()
    app.router = routes
    yield Caller(app)
    store_session.configure(None)
    with api_engine.begin() as connection:
        connection.exec_driver_sql(EMPTY)
        is_changed = connection.execute(KERNELS).one() != registered_kernels
        if is_changed:
            connection.exec_driver_sql(WITHOUT_KERNELS)
    if is_changed:
        register_kernels(api_engine)


@pytest.fixture
def private_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Webhooks may go to private addresses, and without TLS."""
    monkeypatch.setenv("TILEWRIGHT_WEBHOOK_PRIVATE_ADDRESSES", "true")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()
