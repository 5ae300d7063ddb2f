"""Pages as a browser asks for them."""

from collections.abc import Callable

import pytest
from caller import Caller, new_app
from factories import CPU, H100, NEW, OLD, Rows
from shown_matrix import LLAMA, SQUARE

from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store.models import JobState


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
def filled(commit):
    """A matrix of three families on two GPUs and a CPU; one problem only failed, one has two environments."""

    def make(rows):
        rows.best(SQUARE, 0.6, environment=OLD)
        rows.best(SQUARE, 0.5, library_ms=0.75)
        rows.best(SQUARE, 0.9, model=H100, environment=NEW)
        rows.best(LLAMA, 2.0, library_ms=1.0, options={"trans_b": True})
        rows.best({"m": 1023, "n": 1025, "k": 1027}, 1.0, model=CPU)
        study, problem, device = rows.study({"m": 64, "n": 100, "k": 100})
        rows.job(problem, device, study, JobState.FAILED).error = "the worker died"

    commit(make)


@pytest.fixture
def as_key(client, commit, monkeypatch):
    """Opens pages with a key of a scope, on a server that demands keys."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    client.app = new_app()

    def as_key(scope: Scope, path: str):
        made = commit(lambda rows: keys.create_key(rows.session, KeyRequest(name=f"k-{scope}", scope=scope)))
        return client.get(path, headers={"Authorization": f"Bearer {made.token}"})

    yield as_key
    monkeypatch.undo()
    settings.cache_clear()
