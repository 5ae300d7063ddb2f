"""Settings that tests of several layers need otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.service.settings import settings


@pytest.fixture
def private_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Webhooks may go to private addresses, and without TLS."""
    monkeypatch.setenv("TILEWRIGHT_WEBHOOK_PRIVATE_ADDRESSES", "true")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()
