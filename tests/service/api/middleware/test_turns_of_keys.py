"""Whose request is worked on next, and that what only waits keeps nobody's turn."""

import asyncio
import threading
import time

import httpx
import pytest
from caller import BASE_URL
from factories import Rows, tune_four
from keyed import bearer, key
from waiting import PATIENCE_S, until

from tilewright.service.api import best_answers
from tilewright.service.api.middleware import turns
from tilewright.service.api.middleware.turns import Turns
from tilewright.service.operations.best_pool import pool as pools
from tilewright.service.operations.caller import Scope
from tilewright.service.store.session import session_scope


async def work(order, one, name, rounds=0):
    await order.take(name)
    one.append(name)
    for _ in range(rounds):
        await asyncio.sleep(0)
    order.give_back(name)


def test_of_each_caller_few_requests_begin_in_a_round():
    async def begun():
        order, one = Turns(), []
        tasks = [asyncio.ensure_future(work(order, one, "evil")) for _ in range(50)]
        tasks += [asyncio.ensure_future(work(order, one, "honest")) for _ in range(2)]
        await asyncio.gather(*tasks)
        return one

    found = asyncio.run(begun())
    assert found.index("honest") <= turns.A_ROUND
    assert found[: turns.A_ROUND + 2].count("honest") == 2
    assert len(found) == 52


def test_refusals_of_one_caller_do_not_keep_anothers_request_waiting(keyed):
    evil, honest = bearer(key("evil"))["headers"], bearer(key("honest"))["headers"]

    async def order():
        transport, ended = httpx.ASGITransport(keyed.app, client=keyed.peer), []
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=PATIENCE_S) as client:

            async def ask(sends):
                answer = await client.post("/v1/jobs", headers=sends)
                ended.append((sends is honest, answer.status_code))

            await ask(evil)
            await ask(honest)  # both keys are known now
            await asyncio.gather(*(ask(evil) for _ in range(50)), ask(honest))
        return ended[2:]

    ended = asyncio.run(order())
    assert {status for _, status in ended} == {403}
    assert ended.index((True, 403)) <= 3 * turns.A_ROUND


def test_few_requests_of_a_caller_are_worked_on_at_a_time():
    async def most():
        order, working, seen = Turns(), [], []

        async def one():
            await order.take("evil")
            working.append(1)
            seen.append(len(working))
            await asyncio.sleep(0.002)
            working.pop()
            order.give_back("evil")

        await asyncio.gather(*(one() for _ in range(20)))
        return max(seen), len(seen)

    assert asyncio.run(most()) == (turns.WORKING, 20)


def test_who_leaves_while_it_waits_or_as_its_turn_comes_takes_nobodys_turn():
    async def left():
        order, one = Turns(), []
        holding = [asyncio.ensure_future(order.take("evil")) for _ in range(turns.WORKING)]
        await asyncio.gather(*holding)
        waiting = [asyncio.ensure_future(work(order, one, "evil")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        order.give_back("evil")
        await asyncio.sleep(0)  # the round gives the second its turn
        waiting[1].cancel()
        await asyncio.wait(waiting)
        assert one == ["evil"]
        for _ in range(turns.WORKING - 1):
            order.give_back("evil")
        return order._working, order._waiting

    working, waiting = asyncio.run(left())
    assert (working, waiting) == ({}, {})


@pytest.mark.parametrize("path", ["/v1/jobs/x", "/v1/kernels"])
def test_an_answered_request_has_given_its_turn_back(keyed, path):
    of = bearer(key(scope=Scope.TUNE))
    assert len({keyed.get(path, **of).status_code for _ in range(2 * turns.WORKING)}) == 1


def test_a_long_answer_that_is_read_slowly_keeps_no_other_request_of_its_key_waiting(keyed, monkeypatch):
    monkeypatch.setattr(turns, "WORKING", 1)
    of = bearer(key(scope=Scope.ADMIN))
    sent = []

    async def both():
        transport = httpx.ASGITransport(keyed.app, client=keyed.peer)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=PATIENCE_S, **of) as client:

            async def receive():
                await asyncio.sleep(PATIENCE_S)

            async def send(message):
                if message.get("more_body") and not sent:
                    sent.append((await client.get("/v1/kernels")).status_code)

            token = of["headers"]["Authorization"].encode()
            scope = {"type": "http", "method": "GET", "path": "/v1/export", "raw_path": b"/v1/export", "server": None}
            scope |= {"query_string": b"", "http_version": "1.1", "root_path": "", "client": keyed.peer}
            headers = [(b"host", b"127.0.0.1:8000"), (b"authorization", token)]
            await asyncio.wait_for(keyed.app(scope | {"scheme": "http", "headers": headers}, receive, send), PATIENCE_S)

    asyncio.run(both())
    assert sent == [200]


@pytest.mark.in_turn(2)
def test_what_waits_for_a_prediction_keeps_no_other_request_of_its_key_waiting(keyed, monkeypatch):
    monkeypatch.setattr(turns, "WORKING", 1)
    goes_on, exchange = threading.Event(), pools._Lane._exchange
    monkeypatch.setattr(pools._Lane, "_exchange", lambda *asked: goes_on.wait(PATIENCE_S) and exchange(*asked))
    with session_scope() as session:
        tune_four(Rows(session))
    question = {"shapes": [{"m": 300, "n": 100, "k": 784}], "device_model": "nvidia-h200"}

    async def both():
        transport = httpx.ASGITransport(keyed.app, client=keyed.peer)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=PATIENCE_S, **of) as client:
            first = asyncio.ensure_future(client.post("/v1/kernels/gemm/best:batch", json=question))
            await asyncio.to_thread(until, lambda: keyed.app.state.pool.waiting)
            second = await client.get("/v1/kernels")
            was_waiting = not first.done()
            goes_on.set()
            return was_waiting, (await first).status_code, second.status_code

    of = bearer(key())
    assert asyncio.run(both()) == (True, 200, 200)


def test_what_is_answered_without_its_prediction_waits_for_its_turn(keyed, monkeypatch):
    monkeypatch.setattr(turns, "WORKING", 1)
    monkeypatch.setattr(best_answers, "MEANWHILE_AFTER_S", 0.01)
    goes_on, exchange, look_up = threading.Event(), pools._Lane._exchange, best_answers._looked_up
    monkeypatch.setattr(pools._Lane, "_exchange", lambda *asked: goes_on.wait(PATIENCE_S) and exchange(*asked))
    with session_scope() as session:
        tune_four(Rows(session))
    working, most = [], []

    def looked_up(asked, problems, effort):
        working.append(effort)
        most.append(len(working))
        time.sleep(0.02)  # as long as some take
        working.remove(effort)
        found = look_up(asked, problems, effort)
        if most.count(1) + len(most) > 8:
            goes_on.set()
        return found

    monkeypatch.setattr(best_answers, "_looked_up", looked_up)
    path = "/v1/kernels/gemm/best?device_model=nvidia-h200&shape=m=300,n=100,k="

    async def all_of_them():
        transport = httpx.ASGITransport(keyed.app, client=keyed.peer)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=PATIENCE_S, **of) as client:
            return [
                one.status_code for one in await asyncio.gather(*(client.get(path + str(700 + n)) for n in range(6)))
            ]

    of = bearer(key())
    assert asyncio.run(all_of_them()) == [200] * 6
    assert max(most) == 1
