"""Events of a job: over a real server, resumed, ended, limited."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from caller import Caller, new_app
from factories import NAIVE, TILED_16, Rows
from sqlalchemy import func
from starlette.requests import ClientDisconnect
from waiting import PATIENCE_S

from tilewright.service.api.event_stream import Streams
from tilewright.service.api.refusals import TooManyStreamsError
from tilewright.service.client.events import parse_events
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.access import keys, sessions
from tilewright.service.operations.caller import Caller as CallerOfKey
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.models import uuid7


@contextmanager
def served(app) -> Iterator[str]:
    """The address of a real server on this machine."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()
        assert not thread.is_alive()


def running_job():
    with transaction() as session:
        rows = Rows(session)
        study, problem, device = rows.study()
        job = rows.job(problem, device, study, models.JobState.RUNNING, 0)
        rows.trial(study, job, TILED_16, 2.0)
        return job.id, study.id


def finish(job_id, study_id):
    with transaction() as session:
        rows = Rows(session, {study_id: 1})
        job = session.get_one(models.TuningJob, job_id)
        rows.trial(session.get_one(models.Study, study_id), job, NAIVE, 3.0)
        job.state, job.phase, job.finished_at = models.JobState.DONE, "finished", func.now()
        job.revision = job.state_revision = job.revision + 1


def test_events_arrive_as_they_happen_and_end_with_the_job(client):
    job_id, study_id = running_job()
    with (
        served(client.app) as url,
        httpx.stream("GET", f"{url}/v1/jobs/{job_id}/events", timeout=PATIENCE_S, trust_env=False) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-content-type-options"] == "nosniff"
        events = parse_events(response.iter_lines())
        first = next(events)
        assert (first.event, first.data["time_ms"]) == ("trial", 2.0)
        finish(job_id, study_id)
        rest = list(events)
    assert [event.event for event in rest] == ["trial", "state"]
    assert rest[-1].data["state"] == "done"
    ids = [int(event.id) for event in [first, *rest]]
    assert ids == sorted(set(ids))


def test_stream_is_taken_up_after_the_last_event_seen(client):
    job_id, study_id = running_job()
    finish(job_id, study_id)
    path = f"/v1/jobs/{job_id}/events"
    everything = list(parse_events(client.get(path).text.splitlines()))
    assert [event.event for event in everything] == ["trial", "trial", "state"]
    rest = client.get(path, headers={"Last-Event-ID": everything[0].id}).text
    assert list(parse_events(rest.splitlines())) == everything[1:]


def test_reader_that_has_seen_the_end_is_told_to_stay_away(client):
    job_id, study_id = running_job()
    finish(job_id, study_id)
    response = client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "1000"})
    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize("last", ["x", "-1", "99999999999999999999"])
def test_last_event_id_that_was_never_given_is_refused(client, last):
    job_id, _ = running_job()
    response = client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "#/Last-Event-ID"


def test_more_streams_than_allowed_are_refused_and_a_closed_one_makes_room(client):
    job_id, _ = running_job()

    async def crowd():
        streams = Streams(max_streams=1)
        response = await streams.follow(job_id, 0)
        body = response.body_iterator
        await anext(body)
        with pytest.raises(TooManyStreamsError):
            await streams.follow(job_id, 0)
        await body.aclose()
        await (await streams.follow(job_id, 0)).body_iterator.aclose()

    asyncio.run(crowd())


def test_of_many_who_ask_at_once_no_more_than_allowed_get_a_stream(client):
    job_id, _ = running_job()

    async def crowd():
        streams = Streams(max_streams=2)
        found = await asyncio.gather(*[streams.follow(job_id, 0) for _ in range(6)], return_exceptions=True)
        return sum(isinstance(one, TooManyStreamsError) for one in found)

    assert asyncio.run(crowd()) == 4


def test_the_places_are_shared_among_keys(client):
    """Whoever has most gives one up to a caller with fewer; of equal ones nobody does."""
    job_id, _ = running_job()
    streams = Streams(max_streams=4, poll_s=0.01)
    callers = [CallerOfKey(f"key {name}", Scope.READ, uuid7()) for name in "ab"]

    async def crowd():
        first = [await streams.follow(job_id, 0, callers[0]) for _ in range(4)]
        readers = [asyncio.create_task(_read(stream)) for stream in first]
        second = [await streams.follow(job_id, 0, callers[1]) for _ in range(2)]
        with pytest.raises(TooManyStreamsError):
            await streams.follow(job_id, 0, callers[1])
        with pytest.raises(TooManyStreamsError):
            await streams.follow(job_id, 0, callers[0])
        done, still = await asyncio.wait(readers, timeout=5, return_when=asyncio.ALL_COMPLETED)
        for reader in still:
            reader.cancel()
        return len(second), len(done), len(still)

    assert asyncio.run(crowd()) == (2, 2, 2)


async def _read(stream):
    async for _ in stream.body_iterator:
        pass


def test_one_key_leaves_room_for_others(client, monkeypatch):
    monkeypatch.setattr("tilewright.service.api.event_stream.OF_ONE_CALLER", 2)
    job_id, _ = running_job()
    greedy, other = (CallerOfKey(f"key {name}", Scope.READ, uuid7()) for name in ("greedy", "other"))

    async def crowd():
        streams = Streams(max_streams=5)
        open_ones = [await streams.follow(job_id, 0, greedy) for _ in range(2)]
        with pytest.raises(TooManyStreamsError, match="key greedy has 2"):
            await streams.follow(job_id, 0, greedy)
        open_ones += [await streams.follow(job_id, 0, other)]
        body = open_ones[0].body_iterator
        await anext(body)
        await body.aclose()
        open_ones += [await streams.follow(job_id, 0, greedy)]
        return [await streams.follow(job_id, 0) for _ in range(2)]  # this machine's

    assert len(asyncio.run(crowd())) == 2


@pytest.mark.parametrize("ended", ["key", "session"])
def test_a_stream_ends_with_what_let_it_in_whichever_process_ended_that(client, monkeypatch, ended):
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    job_id, _ = running_job()
    with transaction() as session:
        token = keys.create_key(session, KeyRequest(name="ci")).token
        cookie = sessions.open_session(session, token)
    header = {"Authorization": f"Bearer {token}"} if ended == "key" else {"Cookie": f"{sessions.COOKIE}={cookie}"}
    try:
        with (
            served(new_app()) as url,
            httpx.stream(
                "GET", f"{url}/v1/jobs/{job_id}/events", headers=header, timeout=PATIENCE_S, trust_env=False
            ) as answer,
        ):
            lines = answer.iter_lines()
            assert any(line.startswith("data:") for line in lines)
            with transaction() as session:  # as another process would
                if ended == "key":
                    keys.revoke_key(session, "ci")
                else:
                    sessions.close_session(session, cookie)
            assert list(parse_events(lines)) == []  # the job goes on: without a look-up the stream would too
    finally:
        monkeypatch.undo()
        settings.cache_clear()


def test_who_gets_no_stream_or_leaves_before_it_begins_takes_no_place(client):
    job_id, study_id = running_job()
    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}

    async def gone(message):
        raise OSError

    async def come_and_go():
        streams = Streams(max_streams=1)
        with pytest.raises(NotFoundError):
            await streams.follow(uuid7(), 0)
        with pytest.raises(ClientDisconnect):
            await (await streams.follow(job_id, 0))(scope, None, gone)
        finish(job_id, study_id)
        assert (await streams.follow(job_id, 1000)).status_code == 204
        return await streams.follow(job_id, 0)

    assert asyncio.run(come_and_go()).status_code == 200


def test_silence_is_filled_so_that_nobody_hangs_up(client, monkeypatch):
    monkeypatch.setattr("tilewright.service.api.event_stream.KEEP_ALIVE_SECONDS", 0.0)
    job_id, _ = running_job()

    async def listen():
        streams = Streams(poll_s=0.001)
        body = (await streams.follow(job_id, 1000)).body_iterator
        parts = [await anext(body), await anext(body)]
        await body.aclose()
        return parts

    assert asyncio.run(listen())[1].startswith(":")


def test_large_body_is_told_so_over_a_real_connection(client):
    with served(client.app) as url, httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as http:
        headers = {"Content-Type": "application/json"}
        assert http.post("/v1/jobs", content=b" " * 5_000_000, headers=headers).status_code == 413
        assert http.post("/v1/jobs", content=(b" " * 65536 for _ in range(80)), headers=headers).status_code == 413
        assert http.get("/health").status_code == 200


def test_application_starts_and_stops_its_maintenance(client):
    async def live():
        app = new_app()
        async with app.router.lifespan_context(app):
            return {thread.name for thread in threading.enumerate()}

    assert "maintenance" in asyncio.run(live())
    assert "maintenance" not in {thread.name for thread in threading.enumerate()}
    assert Caller(client.app).get("/health").status_code == 200
