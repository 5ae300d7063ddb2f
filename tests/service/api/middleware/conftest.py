"""Applications that demand keys."""

from collections.abc import Iterator

import pytest
from caller import Caller, new_app

from tilewright.service.settings import settings


@pytest.fixture
def keyed(client, monkeypatch) -> Iterator[Caller]:
    """An application on the same database that demands keys, asked from another machine."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    yield Caller(new_app(), peer=("192.0.2.7", 50000))
    monkeypatch.delenv("TILEWRIGHT_REQUIRE_KEYS")
    settings.cache_clear()


@pytest.fixture
def slow_rate(keyed, monkeypatch) -> None:
    """Two requests at once, four a minute, in applications that are made afterwards."""
    monkeypatch.setenv("TILEWRIGHT_REQUESTS_PER_MINUTE", "4")
    settings.cache_clear()
