"""Documents over a real connection."""

from __future__ import annotations

import json

import pytest

from tilewright.service.client import ApiProblemError
from tilewright.service.client.errors import ApiUnreachableError
from tilewright.service.client.exchange import ExchangeClient


@pytest.fixture
def exchange(server):
    with ExchangeClient(server.url) as client:
        yield client


def test_documents_come_and_go(exchange, registered):
    document = b"".join(exchange.export(trials=True, kernel=None))
    assert json.loads(document)["studies"] == []
    answer = exchange.import_document(document, {"origin": "lab-7", "dry_run": True})
    assert (answer.origin, answer.dry_run, answer.best) == ("lab-7", True, 0)
    assert json.loads(exchange.bundle(registered))["device_model"]["slug"] == registered


def test_refusals_and_silence_are_errors_of_the_client(exchange, registered):
    with pytest.raises(ApiProblemError, match="study"):
        list(exchange.export(format="t4", study_id=999))
    with pytest.raises(ApiProblemError, match="format"):
        exchange.import_document(b"{}", {})
    with ExchangeClient("http://127.0.0.1:1") as nobody:
        with pytest.raises(ApiUnreachableError):
            list(nobody.export())
        with pytest.raises(ApiUnreachableError):
            nobody.import_document(b"{}", {})
