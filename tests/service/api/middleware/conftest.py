"""Applications that demand keys, and a log that tests can read."""

import logging
from collections.abc import Iterator

import pytest
from caller import Caller, new_app

from tilewright.service import logs
from tilewright.service.settings import settings


@pytest.fixture
def json_log() -> Iterator[None]:
    """The log goes to stderr as JSON."""
    root = logging.getLogger()
    level = root.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_LOG_FORMAT", "json")
        settings.cache_clear()
        logs.configure()
    settings.cache_clear()
    yield
    logs.configure_command()
    root.setLevel(level)
    logging.captureWarnings(capture=False)


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
