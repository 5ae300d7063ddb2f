"""Predictions and tables of families over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from uuid import UUID

import httpx
import pytest
from caller import BASE_URL
from factories import TILED_16, TILED_32, Rows, tune_four
from sqlalchemy import update
from waiting import PATIENCE_S, until

from tilewright.service.api import best_answers
from tilewright.service.operations.best_pool import pool as pools
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.service.store.session import session_scope

BATCH = "/v1/kernels/gemm/best:batch"
SHAPES = [{"m": 300 + m, "n": 100, "k": 784} for m in range(40)]
BODY = {"shapes": SHAPES, "device_model": "nvidia-h200"}


@pytest.fixture
def tuned(client):
    """Enough tuned shapes to predict from."""
    with session_scope() as session:
        tune_four(Rows(session))
    return client


def matches(response):
    assert response.status_code == 200, response.text
    return [(one["match"], one["pending"]) for one in response.json()["items"]]


@pytest.fixture
def held_up(monkeypatch):
    """No slice is answered before the event is set."""
    goes_on, exchange = threading.Event(), pools._Lane._exchange

    def waits(self, asked):
        assert goes_on.wait(PATIENCE_S)
        return exchange(self, asked)

    monkeypatch.setattr(pools._Lane, "_exchange", waits)
    yield goes_on
    goes_on.set()


def test_a_batch_is_predicted_by_a_process_of_the_pool(tuned):
    assert set(matches(tuned.post(BATCH, json=BODY))) == {("predicted", False)}


def test_what_is_not_predicted_in_time_is_pending_and_predicted_later(tuned, held_up, computing, monkeypatch):
    monkeypatch.setattr(best_answers, "WAIT_S", 0.2)
    until(lambda: tuned.app.state.best.state_of("gemm", "nvidia-h200"))
    response = tuned.post(BATCH, json=BODY)
    assert set(matches(response)) == {("nearest", True)}
    one = tuned.get("/v1/kernels/gemm/best", params={"shape": "m=300,n=100,k=784", "device_model": "nvidia-h200"})
    assert (one.json()["pending"], one.headers["cache-control"]) == (True, "no-cache")
    held_up.set()
    find = tuned.app.state.best.find
    until(lambda: all((a := find("gemm", "nvidia-h200", s, "float32", {})) and a.match == "predicted" for s in SHAPES))
    held_up.clear()  # nothing more is asked of the pool
    assert set(matches(tuned.post(BATCH, json=BODY))) == {("predicted", False)}


def test_the_nearest_shapes_are_predicted_first(tuned, monkeypatch):
    monkeypatch.setattr(pools, "SLICE_S", 0.0)
    order, serve = [], pools._Lane._serve

    def noted(self, work):
        before = list(work.left)
        serve(self, work)
        order.extend(place for place in before if place not in work.left)

    monkeypatch.setattr(pools._Lane, "_serve", noted)
    shapes = [{"m": m, "n": 100, "k": 784} for m in (700, 520, 1100, 6000, 257)]
    tuned.post(BATCH, json=BODY | {"shapes": shapes})
    until(lambda: len(order) == len(shapes))
    assert [shapes[place]["m"] for place in order] == [257, 520, 1100, 700, 6000]


def test_work_is_given_up_when_its_caller_is_gone(tuned, held_up):
    async def leave():
        sent, body = [], json.dumps(BODY).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        headers = {
            b"host": b"127.0.0.1:8000",
            b"content-type": b"application/json",
            b"content-length": b"%d" % len(body),
        }
        scope = {"type": "http", "method": "POST", "path": BATCH, "raw_path": BATCH.encode(), "query_string": b""}
        scope |= {"headers": list(headers.items()), "client": ("127.0.0.1", 1), "scheme": "http", "server": None}

        async def receive():
            if messages:
                return messages.pop()
            await asyncio.to_thread(until, lambda: tuned.app.state.pool.waiting)
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await tuned.app(scope | {"http_version": "1.1", "root_path": ""}, receive, send)
        return sent[0]["status"]

    assert asyncio.run(leave()) == 499
    assert tuned.app.state.pool.waiting == 0


def test_a_full_pool_refuses_and_says_when_to_come_again(tuned, held_up, monkeypatch):
    monkeypatch.setattr(pools, "MOST_OF_CALLER", 1)

    async def both():
        transport = httpx.ASGITransport(tuned.app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            first = asyncio.ensure_future(client.post(BATCH, json=BODY, timeout=PATIENCE_S))
            await asyncio.to_thread(until, lambda: tuned.app.state.pool.waiting)
            second = await client.post(BATCH, json=BODY)
            held_up.set()
            return await first, second

    first, second = asyncio.run(both())
    assert first.status_code == 200
    assert (second.status_code, second.headers["retry-after"]) == (503, "5")
    assert second.json()["type"] == "/problems/unavailable"


@pytest.mark.in_turn(2)
def test_a_process_that_was_killed_is_replaced(tuned):
    tuned.post(BATCH, json=BODY)
    (lane,) = [lane for lane in tuned.app.state.pool._lanes if lane._child]
    before = lane._child
    os.kill(before.pid, signal.SIGKILL)
    assert set(matches(tuned.post(BATCH, json=BODY | {"shapes": [{"m": 333, "n": 101, "k": 784}]}))) == {
        ("predicted", False)
    }
    assert lane._child is not before


def test_a_question_that_takes_too_long_is_refused_and_its_process_ended(tuned, monkeypatch):
    monkeypatch.setattr(pools, "MOST_S", 0.0)
    refused = tuned.post(BATCH, json=BODY)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


def test_a_shape_counts_as_several_requests(tuned, monkeypatch):
    charged = []
    monkeypatch.setattr(best_answers, "charge_for_work", lambda _scope, count: charged.append(count))
    tuned.post(BATCH, json=BODY)
    assert charged == [best_answers.PREDICTION_COST * len(SHAPES)]


SHAPE = {"m": "1..1024", "n": 512, "k": 512}
TEXT = "m=1..1024,n=512,k=512"
TIMES = {TILED_16: {1: 1.0, 64: 9.0, 1024: 9.0}, TILED_32: {1: 1.5, 64: 1.9, 1024: 4.0}}
TABLE = "/v1/kernels/gemm/table"


def made() -> int:
    with transaction() as session:
        return Rows(session).table(SHAPE, [(1, 64, TILED_16), (65, 1024, TILED_32)], TIMES)


def test_a_table_is_answered_whole(client):
    table_id = made()
    answered = client.get(TABLE, params={"shape": TEXT})
    assert answered.status_code == 200
    told = answered.json()
    assert (told["id"], told["shape"], told["at_launch"], told["device_model"]) == (table_id, SHAPE, "m", "nvidia-h200")
    assert [(one["low"], one["high"], one["configuration"]) for one in told["ranges"]] == [
        (1, 64, {"TILE_WIDTH": 16}),
        (65, 1024, {"TILE_WIDTH": 32}),
    ]
    assert [one["verified_at"] for one in told["ranges"]] == [[1, 64], [65, 1024]]
    assert [(one["size"], one["time_ms"]) for one in told["measured"]] == [(1, 1.0), (64, 9.0), (1024, 4.0)]
    one = client.get("/v1/kernels/gemm/best", params={"shape": "m=70,n=512,k=512"}).json()
    assert (one["match"], one["sizes"], one["expected_loss"]) == ("range", "m=65..1024", 9.0 / 1.9 - 1)


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ({"shape": "m=1..1024,n=512,k=8"}, 404, "tilewright tune gemm --shape m=1..1024,n=512,k=8"),
        ({"shape": "m=1,n=512,k=8"}, 422, "one axis must be a range"),
        ({"shape": "m=9..1,n=512,k=8"}, 422, "9..1 is empty"),
        ({"shape": "m=1..,n=512,k=8"}, 422, "LOW..HIGH"),
        ({}, 422, "shape"),
        ({"shape": TEXT, "device_model": "none"}, 404, "none"),
    ],
)
def test_what_has_no_table_is_a_problem_document(client, query, status, says):
    made()
    refused = client.get(TABLE, params=query)
    assert refused.status_code == status
    assert refused.headers["content-type"] == "application/problem+json"
    assert says in refused.text


def test_jobs_and_schedules_take_a_range_and_best_does_not(client):
    made()
    job = client.post("/v1/jobs", json={"kernel": "gemm", "shape": SHAPE})
    assert job.status_code == 202
    assert job.json()["problem"]["shape"] == SHAPE
    assert client.post("/v1/jobs", json={"kernel": "gemm", "shape": SHAPE}).json()["id"] == job.json()["id"]
    assert client.get("/v1/jobs", params={"search": "m=1..1024"}).json()["items"][0]["id"] == job.json()["id"]
    body = {"name": "rows", "cron": "0 0 3 * * *", "problems": [{"kernel": "gemm", "shape": SHAPE}]}
    schedule = client.post("/v1/schedules", json=body).json()
    assert schedule["problems"][0]["shape"] == SHAPE
    (fired,) = client.post(f"/v1/schedules/{schedule['id']}/run", json={}).json()["items"]
    assert fired["problem"]["shape"] == SHAPE
    assert client.get(f"/v1/schedules/{schedule['id']}/comparisons").json()["items"] == []
    refused = client.get("/v1/kernels/gemm/best", params={"shape": TEXT})
    assert refused.status_code == 422
    assert "is a range" in refused.text
    several = client.post("/v1/jobs", json={"kernel": "gemm", "shape": {**SHAPE, "n": "1..2"}})
    assert (several.status_code, "one axis must be a range" in several.text) == (422, True)


@pytest.mark.parametrize("path", ["/jobs", "/schedules", "/fleet", "/", "/demand", "/attention", "/kernels/gemm"])
def test_pages_show_jobs_and_schedules_of_ranges(client, path):
    made()
    client.post("/v1/jobs", json={"kernel": "gemm", "shape": SHAPE})
    body = {"name": "rows", "cron": "0 0 3 * * *", "problems": [{"kernel": "gemm", "shape": SHAPE}]}
    client.post("/v1/schedules", json=body)
    shown = client.get(path)
    assert shown.status_code == 200


def test_the_page_of_a_job_and_of_one_size_show_where_it_comes_from(client):
    made()
    job = client.post("/v1/jobs", json={"kernel": "gemm", "shape": SHAPE}).json()
    assert "1..1024" in client.get(f"/jobs/{job['id']}").text
    query = {"kernel": "gemm", "device_model": "nvidia-h200"}
    assert "m=65..1024" in client.get("/ask", params=query | {"shape": "m=70,n=512,k=512"}).text
    whole = client.get("/ask", params=query | {"shape": TEXT}, follow_redirects=False)
    assert (whole.status_code, whole.headers["location"].startswith("/tables/")) == (303, True)
    missing = client.get("/ask", params=query | {"shape": "m=1..9,n=8,k=8"})
    assert (missing.status_code, "tilewright tune gemm --shape m=1..9,n=8,k=8" in missing.text) == (422, True)


def test_the_page_of_a_table_draws_it_and_the_kernels_page_leads_there(client):
    first = made()
    shown = client.get(f"/tables/{first}")
    assert shown.status_code == 200
    options = json.loads(
        re.search(r'<script type="application/json" id="over-sizes-options">(.*?)</script>', shown.text)[1]
    )
    ours, fastest = options["series"]
    assert [one["value"] for one in ours["data"]] == [[1, 1.0], [64, 9.0], [1024, 4.0]]
    assert [mark["name"] for mark in ours["markLine"]["data"]] == ["2"]
    assert [one["value"] for one in fastest["data"]] == [[64, 1.9]]
    assert f'href="/tables/{first}"' in client.get("/kernels/gemm").text
    second = made()
    assert f'href="/tables/{second}"' in client.get(f"/tables/{first}").text
    assert f'href="/tables/{first}"' not in client.get("/kernels/gemm").text
    assert client.get("/tables/999").status_code == 404
    assert client.get("/tables/99999999999999999999").status_code == 404


def test_questions_for_a_table_that_is_missing_are_demand_for_one_family(client):
    made()
    other = "m=1..8192,n=256,k=512"
    for shape in (other, other, TEXT):
        client.get(TABLE, params={"shape": shape, "device_model": "nvidia-h200"})
    client.get("/v1/kernels/gemm/best", params={"shape": "m=70,n=512,k=512"})  # of the table: nobody must tune it
    client.app.state.demand.flush()
    (row,) = client.get("/v1/demand").json()["items"]
    assert (row["problem"]["shape"], row["count"]) == ({"m": "1..8192", "n": 256, "k": 512}, 2)
    for sort in ("problem", "-requests", "answered"):
        assert "m=1..8192,n=256,k=512" in client.get("/demand", params={"sort": sort}).text
    assert client.get("/attention").status_code == client.get("/v1/attention").status_code == 200
    (tuned,) = client.post("/v1/demand:tune?top=1", json={"budget": {"trials": 20}}).json()["items"]
    job = client.get(f"/v1/jobs/{tuned['job_id']}").json()
    assert (job["problem"]["shape"], job["state"]) == (row["problem"]["shape"], "queued")
    with transaction() as session:
        Rows(session).table({"m": "1..8192", "n": 256, "k": 512}, [(1, 8192, TILED_16)], TIMES)
    assert client.get("/v1/demand").json()["items"] == []


def test_a_schedule_tunes_the_families_that_are_in_demand(client):
    made()
    client.get(TABLE, params={"shape": "m=1..64,n=24,k=16"})
    client.app.state.demand.flush()
    body = {"name": "demand", "cron": "0 0 3 * * *", "target": "demand"}
    schedule = client.post("/v1/schedules", json=body).json()
    (job,) = client.post(f"/v1/schedules/{schedule['id']}/run", json={}).json()["items"]
    assert job["problem"]["shape"] == {"m": "1..64", "n": 24, "k": 16}


@pytest.mark.parametrize("path", ["/", "/?kernel=gemm&family=square", "/?kernel=gemm&shape=512", "/attention", "/jobs"])
def test_a_failed_job_of_a_family_breaks_no_page(client, path):
    made()
    client.post("/v1/jobs", json={"kernel": "gemm", "shape": SHAPE})
    with transaction() as session:
        Rows(session).best()
        session.execute(update(models.TuningJob).values(state="failed", error="no size was right"))
    assert client.get(path).status_code == 200


def test_the_page_of_a_family_job_leads_to_its_table(client):
    table_id = made()
    job = client.post("/v1/jobs", json={"kernel": "gemm", "shape": SHAPE}).json()
    result = {"stopped_by": None, "table": table_id, "ranges": 2, "loss": {"mean": 0.01, "largest": 0.02}}
    with transaction() as session:
        own = models.TuningJob.id == UUID(job["id"])
        session.execute(update(models.TuningJob).where(own).values(state="done", phase="finished", result=result))
    shown = client.get(f"/jobs/{job['id']}").text
    assert f'<a href="/tables/{table_id}">2 ranges</a>' in shown
    assert "Nothing was measured" not in shown
    assert client.get("/jobs").status_code == 200
