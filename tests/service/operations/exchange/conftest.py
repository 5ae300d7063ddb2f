"""Results of one database, to be carried to another that is empty but for its device."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import emptying
import pytest
from sqlalchemy import Engine, create_engine
from tuned_results import MODEL, Results

from tilewright.service.operations.exchange import export as exchange_export
from tilewright.service.operations.exchange.export import ExportSelection
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import session as store_session
from tilewright.service.store.session import sqlalchemy_url


@pytest.fixture(scope="session")
def exchange_database(new_database: Callable[[str], str]) -> str:
    """One migrated database for all tests of this process that import."""
    return new_database("exchange")


@pytest.fixture(scope="session")
def exchange_engine(exchange_database: str) -> Iterator[Engine]:
    engine = create_engine(sqlalchemy_url(exchange_database))
    yield engine
    engine.dispose()


def _measure() -> Results:
    with transaction() as session:
        results = Results(session)
        results.tune({"m": 64, "n": 48, "k": 80}, best_ms=0.5)
        results.tune({"m": 128, "n": 48, "k": 80}, best_ms=0.75)
    return results


def _export(**wanted: Any) -> str:
    return "".join(exchange_export.export_studies(ExportSelection(**wanted)))


@contextmanager
def _at(url: str, empty: Callable[[], None]) -> Iterator[None]:
    """`transaction()` goes there, and the database is empty afterwards."""
    store_session.configure(url)
    try:
        yield
    finally:
        store_session.configure(None)
        empty()


@pytest.fixture
def database(exchange_database: str, empty: Callable[[], None]) -> Iterator[str]:
    """An empty database that `transaction()` goes to."""
    with _at(exchange_database, empty):
        yield exchange_database


@pytest.fixture(scope="session")
def empty(exchange_engine: Engine, registered_kernels: object) -> Callable[[], None]:
    return partial(emptying.empty, exchange_engine, registered_kernels)


@pytest.fixture
def export(database: str) -> Callable[..., dict[str, Any]]:
    """The `tilewright/1` document of what the database holds."""
    return lambda **wanted: json.loads(_export(**wanted))


@pytest.fixture
def measured(database: str) -> Results:
    """Two tuned problems, five trials each, of a device that this installation has."""
    return _measure()


@pytest.fixture(scope="session")
def exported(exchange_database: str, empty: Callable[[], None]) -> str:
    """What another installation exported, with all trials: made once, which takes a fifth of a second."""
    with _at(exchange_database, empty):
        _measure()
        return _export(trials=True)


@pytest.fixture
def document(exported: str, database: str) -> dict[str, Any]:
    """The same, read; the database is empty."""
    return json.loads(exported)


@pytest.fixture
def device(document: dict[str, Any]) -> str:
    """Slug of the device model that this installation has after the export."""
    with transaction() as session:
        Results(session).device()
    return MODEL.slug
