"""Entries of Helion's remote cache over HTTP."""

from __future__ import annotations

import json

import pytest
from caller import Caller, bearer, key, new_app
from factories import CPU, SHAPE, Rows

from tilewright.service.operations.exchange import helion
from tilewright.service.operations.transaction import transaction

ONE, OTHER = "1" * 64, "2" * 64
DATA = json.dumps({"config": json.dumps({"block_sizes": [64]}), "key": {"type": "LooseAutotuneCacheKey", "fields": {}}})
PATH = "/v1/helion/entries"


def listed(caller, **of) -> list[str]:
    return [item["key"] for item in caller.get(PATH, **of).json()["items"]]


def test_an_entry_is_answered_as_it_was_stored_and_is_no_result(client):
    missing = client.get(f"{PATH}/{ONE}")
    assert (missing.status_code, missing.json()["type"]) == (404, "/problems/not-found")
    stored = client.request("PUT", f"{PATH}/{ONE}", json={"data": DATA})
    assert (stored.status_code, stored.json()["data"], stored.json()["stored_by"]) == (200, DATA, "this machine")
    assert client.get(f"{PATH}/{ONE}").json() == stored.json()
    with transaction() as session:
        Rows(session).device(CPU)
    assert client.get("/v1/results").json()["items"] == []
    asked = {"device_model": CPU.slug, "shape": ",".join(f"{axis}={size}" for axis, size in SHAPE.items())}
    assert client.get("/v1/kernels/gemm/best", params=asked).json()["match"] == "default"


def test_the_newest_come_first_and_one_stored_anew_is_new(client):
    for name in (ONE, OTHER, ONE):
        assert client.request("PUT", f"{PATH}/{name}", json={"data": DATA}).status_code == 200
    assert listed(client) == [ONE, OTHER]
    page = client.get(PATH, params={"limit": 1}).json()
    assert [item["key"] for item in page["items"]] == [ONE]
    assert listed(client, params={"cursor": page["next_cursor"]}) == [OTHER]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("not-a-key", DATA),
        (ONE, ""),
        (ONE, "no JSON"),
        (ONE, "[]"),
        (ONE, '{"config": {}}'),
        (ONE, '{"config": "[]"}'),
        (ONE, json.dumps({"config": json.dumps({"text": "x" * helion.MOST_CHARACTERS})})),
    ],
)
def test_what_helion_could_not_read_is_refused(client, name, data):
    refused = client.request("PUT", f"{PATH}/{name}", json={"data": data})
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/invalid-request")
    assert listed(client) == []


@pytest.mark.usefixtures("keys_required")
def test_readers_read_tuners_store_and_each_loses_the_oldest_of_its_own(client, monkeypatch):
    monkeypatch.setattr(helion, "MOST_ENTRIES", 2)
    caller = Caller(new_app())
    reader, first, second = key("reader"), key("first", scope="tune"), key("second", scope="tune")
    assert caller.request("PUT", f"{PATH}/{ONE}", json={"data": DATA}, **bearer(reader)).status_code == 403
    assert caller.get(PATH).status_code == 401
    names = [digit * 64 for digit in "abcd"]
    for name, token in zip(names, (second, first, first, first), strict=True):
        assert caller.request("PUT", f"{PATH}/{name}", json={"data": DATA}, **bearer(token)).status_code == 200
    assert listed(caller, **bearer(reader)) == [names[3], names[2], names[0]]
    assert caller.get(f"{PATH}/{names[0]}", **bearer(reader)).json()["stored_by"] == "key second"
