"""Schedules over HTTP: the whole life of one, and one refusal per rule."""

import pytest
from factories import H100, SHAPE, Rows
from test_endpoints import commit, refused, the_field

from tilewright.service.operations.transaction import transaction

SCHEDULE = {
    "name": "nightly",
    "cron": "0 30 2 * * *",
    "time_zone": "Europe/Berlin",
    "problems": [{"kernel": "gemm", "shape": SHAPE}],
    "budget": {"trials": 5},
}
AT = "/v1/schedules"


@pytest.fixture(autouse=True)
def _device(client):
    commit(lambda rows: rows.device())


def test_the_life_of_a_schedule(client):
    made = client.post(AT, json=SCHEDULE)
    assert made.status_code == 201, made.text
    where = made.headers["location"]
    assert client.get(where).json() == made.json()
    assert made.json()["next_at"].endswith("Z")
    assert len(made.json()["next_fires"]) == 5
    assert client.get(AT).json() == {"items": [made.json()], "next_cursor": None}

    changed = client.request("PUT", where, json=SCHEDULE | {"budget": {"trials": 9}})
    assert (changed.status_code, changed.json()["budget"]["trials"]) == (200, 9)
    assert client.get(where).json() == changed.json()

    paused = client.post(f"{where}/pause").json()
    assert (paused["enabled"], paused["next_at"]) == (False, None)
    assert client.post(f"{where}/resume").json()["next_fires"] == made.json()["next_fires"]

    ran = client.post(f"{where}/run")
    assert ran.status_code == 202
    (job,) = ran.json()["items"]
    assert (job["state"], job["schedule_id"]) == ("queued", made.json()["id"])
    assert client.get(f"/v1/jobs/{job['id']}").json() == job
    (fire,) = client.get(f"{where}/fires").json()["items"]
    assert (fire["manual"], fire["outcome"], fire["fire_at"]) == (True, "fired", job["fire_at"])
    assert client.get(where).json()["last_jobs"] == [job["id"]]

    gone = client.request("DELETE", where)
    assert (gone.status_code, gone.content) == (204, b"")
    missing = client.request("PUT", where, json=SCHEDULE)
    for again in (
        missing,
        client.request("DELETE", where),
        client.get(where),
        client.post(f"{where}/run"),
        client.get(f"{where}/fires"),
    ):
        refused(again, 404, "not-found")
    assert client.get(f"/v1/jobs/{job['id']}").json()["schedule_id"] is None


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"cron": "* * * *"}, "#/cron"),
        ({"cron": "0 0 0 30 2 *"}, "#/cron"),
        ({"time_zone": "Europe/Berlinn"}, "#/time_zone"),
        ({"problems": []}, "#/problems"),
        ({"problems": SCHEDULE["problems"] * 101}, "#/problems"),
        ({"problems": SCHEDULE["problems"] * 2}, "#/problems/1"),
        ({"problems": [{"kernel": "gemmm", "shape": SHAPE}]}, "#/problems/0/kernel"),
        ({"problems": [{"kernel": "gemm", "shape": {"m": 1, "n": 1}}]}, "#/problems/0/shape/k"),
        (
            {"problems": [{"kernel": "gemm", "shape": SHAPE, "options": {"trans_q": True}}]},
            "#/problems/0/options/trans_q",
        ),
        ({"device_model": "nvidia-h300"}, "#/device_model"),
        ({"overlap": "double"}, "#/overlap"),
        ({"name": ""}, "#/name"),
        ({"name": "x" * 65}, "#/name"),
        ({"name": "bell \x07"}, "#/name"),
        ({"budget": {"trials": 0}}, "#/budget/trials"),
        ({"budget": {"trials": 10**6}}, "#/budget/trials"),
        ({"problems": [{"kernel": "gemm", "shape": dict.fromkeys("mnk", 200_000)}]}, "#/problems/0/shape"),
        (
            {"problems": [*SCHEDULE["problems"], SCHEDULE["problems"][0] | {"options": {"trans_b": False}}]},
            "#/problems/1",
        ),
        ({"device": "GPU-2"}, "#/device"),
        ({"variants": ["warp9"]}, "#/variants"),
        ({"priority": 101}, "#/priority"),
        ({"enabled": "yes"}, "#/enabled"),
    ],
)
def test_a_field_that_is_wrong_is_named_and_nothing_is_stored(client, more, pointer):
    assert the_field(client.post(AT, json=SCHEDULE | more)) == ("body", pointer)
    assert client.get(AT).json()["items"] == []


def test_a_change_is_judged_as_a_new_one_is(client):
    where = client.post(AT, json=SCHEDULE).headers["location"]
    client.post(AT, json=SCHEDULE | {"name": "other"})
    before = client.get(where).json()
    assert the_field(client.request("PUT", where, json=SCHEDULE | {"cron": "never"})) == ("body", "#/cron")
    refused(client.request("PUT", where, json=SCHEDULE | {"name": "other"}), 409, "conflict")
    assert client.get(where).json() == before


def test_an_edit_changes_what_it_names_leaves_the_rest_and_is_recorded(client):
    where = client.post(AT, json=SCHEDULE | {"priority": 7}).headers["location"]
    before = client.get(where).json()
    edited = client.request("PATCH", where, json={"cron": "0 30 3 * * *", "budget": {"seconds": 9.0}})
    assert edited.status_code == 200, edited.text
    changed = {"cron", "budget", "next_at", "next_fires"}
    assert {name: edited.json()[name] for name in before if name not in changed} == {
        name: value for name, value in before.items() if name not in changed
    }
    assert edited.json()["cron"] == "0 30 3 * * *"
    assert edited.json()["budget"] == {"trials": None, "seconds": 9.0, "target_ms": None}
    assert edited.json()["next_fires"] != before["next_fires"]
    entry = client.get("/v1/audit").json()["items"][0]
    assert (entry["action"], entry["changed"]["schedules"] > 0) == (f"PATCH {where}", True)

    found = client.request("PATCH", where, json={"target": "stale", "problems": [], "top": 3}).json()
    assert (found["target"], found["problems"], found["top"]) == ("stale", [], 3)
    assert client.request("PATCH", where, json={"top": 4}).json()["target"] == "stale"


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"cron": "* * * *"}, "#/cron"),
        ({"name": ""}, "#/name"),
        ({"cron": None}, "#/cron"),
        ({"budget": {}}, "#/budget"),
        ({"problems": SCHEDULE["problems"] * 2}, "#/problems/1"),
        ({"target": "stale"}, "#/problems"),
        ({"device_model": "nvidia-nosuch"}, "#/device_model"),
        ({"trials": 3}, "#/trials"),
    ],
)
def test_an_edit_that_is_wrong_is_named_and_changes_nothing(client, changes, pointer):
    where = client.post(AT, json=SCHEDULE).headers["location"]
    before = client.get(where).json()
    assert the_field(client.request("PATCH", where, json=changes)) == ("body", pointer)
    assert client.get(where).json() == before


def test_an_edit_of_nothing_and_of_a_taken_name(client):
    where = client.post(AT, json=SCHEDULE).headers["location"]
    client.post(AT, json=SCHEDULE | {"name": "other"})
    refused(client.request("PATCH", where, json={"name": "other"}), 409, "conflict")
    refused(client.request("PATCH", f"{AT}/99", json={"priority": 1}), 404, "not-found")
    before = client.get(where).json()
    assert client.request("PATCH", where, json={}).json() == before


def test_the_same_body_is_the_same_schedule_and_another_of_its_name_a_conflict(client):
    first = client.post(AT, json=SCHEDULE)
    again = client.post(AT, json=SCHEDULE)
    assert (again.status_code, again.json()) == (201, first.json())
    refused(client.post(AT, json=SCHEDULE | {"cron": "0 0 3 * * *"}), 409, "conflict")


def test_of_several_models_one_must_be_named(client):
    with transaction() as session:
        Rows(session).device(H100)
    assert the_field(client.post(AT, json=SCHEDULE)) == ("body", "#/device_model")
    assert client.post(AT, json=SCHEDULE | {"device_model": "nvidia-h100"}).json()["device_model"] == "nvidia-h100"


@pytest.mark.parametrize("wrong", ["0", "-1", "nightly", "99999999999"])
def test_an_id_that_is_none_is_refused(client, wrong):
    (field,) = refused(client.get(f"{AT}/{wrong}"), 422, "invalid-request")["errors"]
    assert (field["location"], field["pointer"]) == ("path", "#/schedule_id")
