"""Rows, an application on a real database that is emptied between tests, and settings for several layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import emptying
import kept_children
import pytest
import shipped_file
from caller import Caller, new_app
from factories import Rows
from sqlalchemy import Engine, create_engine
from waiting import PATIENCE_S

from tilewright.service.api import best_answers
from tilewright.service.api.missing_answers import MissingAnswers
from tilewright.service.operations.best_cache.watch import BestWatch
from tilewright.service.operations.best_pool import pool
from tilewright.service.settings import settings
from tilewright.service.store import session as store_session
from tilewright.service.store.session import sqlalchemy_url
from tilewright.tuner.predict import shipped


@pytest.fixture
def rows(session) -> Rows:
    """Rows in a transaction that is rolled back: for operations."""
    return Rows(session)


@pytest.fixture
def shipped_records(tmp_path) -> Iterator[None]:
    """The package has records of gemm on an H200, invented ones."""
    shipped_file.write(tmp_path, shipped_file.document())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "FOLDER", tmp_path)
        patch.setenv("TILEWRIGHT_SHIPPED_RECORDS", "true")
        settings.cache_clear()
        yield
    settings.cache_clear()  # after the variable is gone: threads of a server still read the settings


@pytest.fixture(scope="session")
def api_database(new_database: Callable[[str], str]) -> str:
    """One migrated database for all tests of this process that go through HTTP."""
    return new_database("api")


@pytest.fixture(scope="session")
def api_engine(api_database: str) -> Iterator[Engine]:
    """Connections to that database, for emptying it."""
    engine = create_engine(sqlalchemy_url(api_database))
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def kept_processes() -> Iterator[None]:
    """The processes of pools outlive the tests of an application."""
    yield
    kept_children.end()


@pytest.fixture
def client(
    api_database: str,
    api_engine: Engine,
    registered_kernels: object,
    kept_processes: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Caller]:
    """A client of a fresh application on a database with the kernels alone; no lifespan, so no maintenance."""
    monkeypatch.setattr(best_answers, "WAIT_S", PATIENCE_S)  # on a machine with other things to do
    monkeypatch.setattr(pool, "Child", kept_children.KeptChild)
    store_session.configure(api_database)
    app = new_app()
    yield Caller(app)
    app.state.pool.close()
    store_session.configure(None)
    emptying.empty(api_engine, registered_kernels)


@pytest.fixture
def computing(client: Caller) -> Iterator[MissingAnswers]:
    """What pages show of predictions is kept ready, as in a server."""
    state = client.app.state
    parts = BestWatch(state.best), MissingAnswers(state.best, state.pool)
    for part in parts:
        part.start()
    yield parts[1]
    for part in parts:
        part.stop()


@pytest.fixture
def keys_required(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody is served without a key."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def private_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Webhooks may go to private addresses, and without TLS."""
    monkeypatch.setenv("TILEWRIGHT_WEBHOOK_PRIVATE_ADDRESSES", "true")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()
