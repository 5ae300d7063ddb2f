"""Pages as a browser asks for them."""

from collections.abc import Callable

import pytest
from caller import Caller
from factories import Rows

from tilewright.service.app import create_app
from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings


@pytest.fixture
def page(client: Caller) -> Callable[..., str]:
    """The text of a page, which must answer with HTML and the expected status."""

    def page(path: str = "/", status: int = 200) -> str:
        response = client.get(path)
        assert response.status_code == status, response.text
        assert response.headers["content-type"].startswith("text/html")
        return response.text

    return page


@pytest.fixture
def commit(client: Caller) -> Callable:
    """What a function makes of rows, committed."""

    def commit(make):
        with transaction() as session:
            return make(Rows(session))

    return commit


@pytest.fixture
def as_key(client, commit, monkeypatch):
    """Opens pages with a key of a scope, on a server that demands keys."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    client.app = create_app()

    def as_key(scope: Scope, path: str):
        made = commit(lambda rows: keys.create_key(rows.session, KeyRequest(name=f"k-{scope}", scope=scope)))
        return client.get(path, headers={"Authorization": f"Bearer {made.token}"})

    yield as_key
    monkeypatch.undo()
    settings.cache_clear()
