"""Predictions for callers: in time or pending, in turn, given up when nobody waits, and never twice."""

import asyncio
import json
import os
import signal
import threading

import httpx
import pytest
from caller import BASE_URL
from factories import Rows, tune_four
from waiting import PATIENCE_S, until

from tilewright.service.api import best_answers
from tilewright.service.operations.best_pool import pool as pools
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
