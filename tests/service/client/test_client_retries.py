"""A caller that asks too often waits as long as it is told, and is answered."""

from __future__ import annotations

import time

import pytest

from tilewright.service.client import Client
from tilewright.service.operations.access import keys
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings


@pytest.fixture
def limited(configured, monkeypatch, request):
    """A client whose key may send thirty requests at once and then one a second."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    monkeypatch.setenv("TILEWRIGHT_REQUESTS_PER_MINUTE", "60")
    settings.cache_clear()
    with transaction() as session:
        token = keys.create_key(session, KeyRequest(name="ci", scope="read")).token
    server = request.getfixturevalue("server")
    with Client(server.url, key=token) as client:
        yield client
    monkeypatch.undo()
    settings.cache_clear()


def test_too_many_requests_are_spread_and_all_answered(limited):
    waited_s = 0.0
    for _ in range(60):
        began = time.monotonic()
        limited.device_models()
        waited_s = max(waited_s, time.monotonic() - began)
        if waited_s > 0.9:  # the first pause of a retry alone is 0.2 s
            return
    pytest.fail("never told to wait")
