"""Reads and refusals in the record of changes, where the settings ask for them."""

import pytest
from caller import Caller, new_app
from keyed import bearer, key

from tilewright.service.operations.access import audit
from tilewright.service.settings import settings
from tilewright.service.store.session import session_scope

REFUSED = [("key ci", "POST (refused) 403"), ("nobody", "GET (refused) 401 x 2")]
READ = [("key ci", "GET /v1/kernels 200 x 3")]


@pytest.mark.parametrize(("kinds", "expected"), [("changes", []), ("refusals", REFUSED), ("all", REFUSED + READ)])
def test_what_is_asked_for_is_recorded_and_equal_requests_once(client, monkeypatch, kinds, expected):
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    monkeypatch.setenv("TILEWRIGHT_RECORD_REQUESTS", kinds)
    settings.cache_clear()
    caller = Caller(new_app())
    of = bearer(key())
    for _ in range(3):
        assert caller.get("/v1/kernels", **of).status_code == 200
    for secret in ("tw_one", "tw_two"):
        assert caller.get(f"/v1/kernels?key={secret}", **bearer(secret)).status_code == 401
    assert caller.post("/v1/jobs", json={}, **of).status_code == 403
    assert caller.get("/health").status_code == 200
    caller.app.state.record.flush()
    with session_scope() as session:
        entries = audit.entries(session, limit=50, cursor=None).items
    found = [(one.actor, one.action) for one in entries if one.changed == {}]
    assert sorted(found) == sorted(expected)
    settings.cache_clear()
