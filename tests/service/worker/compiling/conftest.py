from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tilewright.service.store import session as store_session

TABLES = ("compiled_cubins", "compile_requests", "compile_sources", "compile_workers")


@pytest.fixture
def configured(api_database: str, api_engine: Engine) -> Iterator[str]:
    """The database of this test process, without compilations; to make one for each test takes as long as the test."""
    store_session.configure(api_database)
    yield api_database
    store_session.configure(None)
    with api_engine.begin() as connection:
        for table in TABLES:
            connection.exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608 - our own names
